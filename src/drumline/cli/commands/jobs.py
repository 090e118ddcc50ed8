"""Commands that use a cluster: `submit`, `status`, `logs`, `cancel`, `pull`, `ssh`, `jupyter`, …"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import REST_IS_THEIRS, Json, Module, app
from drumline.cli.commands.cluster import PANEL, Which
from drumline.cli.commands.train import ObserveOptions

Job = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Default: the newest.")]
Browser = Annotated[bool, typer.Option(help="Open the page in the browser.")]


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """How a job is to be run."""

    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return at once; the job goes on.")
    ] = False
    workers: Annotated[
        int | None, typer.Option(min=1, help="Ranks on each node (default: cluster.yaml's).")
    ] = None
    module: Module = False
    restarts: Annotated[
        int, typer.Option(min=0, max=100, help="How often to start again when a rank dies.")
    ] = 0
    resume: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Go on from a job's checkpoints; latest: the storage's."),
    ] = None


@app.command(rich_help_panel=PANEL, context_settings=REST_IS_THEIRS, calls="submit:submit_command")
def submit(
    script: Annotated[str, typer.Argument(help="A PyTorch script, or a spec (SPEC.yaml).")],
    options: SubmitOptions,
    observe: ObserveOptions,
    args: Annotated[
        list[str] | None, typer.Argument(help="The script's arguments, or KEY=VALUE for a spec.")
    ] = None,
    which: Which = None,
) -> None:
    """Sync this folder to all nodes, run a script or a spec on them, and stream all ranks' output.

    Examples:
        drumline submit -- train.py epochs=5
        drumline submit --detach -- spec.yaml optimizer.lr=0.1
        drumline submit --workers 2 -m package.train
        drumline submit --resume mnist-3f9a -- spec.yaml epochs=10
    """


@app.command(rich_help_panel=PANEL, calls="jobs:status_command")
def status(which: Which = None, as_json: Json = False) -> None:
    """Show the cluster's nodes, what they cost so far, when they end, and its jobs."""


@app.command(rich_help_panel=PANEL, calls="jobs:logs_command")
def logs(
    job: Job = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Until the job ends.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Of one rank only.")] = None,
    which: Which = None,
) -> None:
    """Print what a job's ranks printed; also after the nodes are gone, if it was pulled.

    Examples:
        drumline logs -f
        drumline logs train-3f9a01 --rank 1
    """


@app.command(rich_help_panel=PANEL, calls="jobs:cancel_command")
def cancel(job: Job = None, which: Which = None) -> None:
    """End a job on all nodes; one that waits leaves the queue."""


@app.command(rich_help_panel=PANEL, calls="jobs:pull_command")
def pull(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Default: all.")] = None,
    into: Annotated[Path | None, typer.Option(help="A folder (default: runs/<job>).")] = None,
    watch: Annotated[bool, typer.Option(help="Again and again, until the jobs end.")] = False,
    which: Which = None,
) -> None:
    """Bring results, logs and checkpoints here; only what is new travels.

    Examples:
        drumline pull
        drumline pull train-3f9a01 --watch
    """


@app.command(rich_help_panel=PANEL, context_settings=REST_IS_THEIRS, calls="jobs:ssh_command")
def ssh(
    node: Annotated[str, typer.Argument(help="worker0 (the leader), worker1, …")] = "worker0",
    command: Annotated[list[str] | None, typer.Argument(help="Instead of a shell.")] = None,
    which: Which = None,
) -> None:
    """Open a shell on a node, or run a command there.

    Examples:
        drumline ssh worker1
        drumline ssh worker1 -- nvidia-smi
    """


@app.command(rich_help_panel=PANEL, calls="jobs:jupyter_command")
def jupyter(which: Which = None, browser: Browser = True) -> None:
    """Run JupyterLab on the leader, and open it here through a tunnel; Ctrl-C closes the tunnel."""


@app.command(rich_help_panel=PANEL, calls="jobs:tensorboard_command")
def tensorboard(which: Which = None, browser: Browser = True) -> None:
    """Run TensorBoard on the leader, and open it here through a tunnel."""
