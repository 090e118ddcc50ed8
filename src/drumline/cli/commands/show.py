"""Commands that start no rank: runs and reports about them, and files for others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, app, data_app, print_json
from drumline.cli.commands.cluster import Which
from drumline.report.page.translator import Language

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or path.")]
PageLanguage = Annotated[Language, typer.Option("--lang", help="Of the page.")]
PageFolder = Annotated[Path | None, typer.Option("-o", "--out", help="The folder of the page.")]


@app.command(calls="show:runs_command")
def runs(as_json: Json = False) -> None:
    """List the runs in ./runs, newest first."""


@app.command(calls="show:show_command")
def show(name: RunName, as_json: Json = False) -> None:
    """Show one run: its result, its ledger, who saw which data.

    Example:
        drumline show run-1
    """


@app.command(calls="show:trace_command")
def trace(
    name: RunName,
    steps: Annotated[
        str | None, typer.Option(help="Which steps, e.g. 5-10 (default: the first 20).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file (default: RUN/trace.json).")
    ] = None,
) -> None:
    """Write what every rank did when, for Perfetto or Chrome: a pipeline's staircase.

    Example:
        drumline trace run-1 --steps 5-8
    """


@app.command(calls="stacks:stacks_command")
def stacks(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run here, or a cluster's job.")],
    whole: Annotated[bool, typer.Option("--all", help="The stacks of all threads.")] = False,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Tell where each rank of a running script is: its step, its collective, its Python stack.

    Examples:
        drumline stacks train-1
        drumline stacks train-3f9a01 --all   (a job of the cluster)
    """


@app.command()
def schema() -> None:
    """Print the JSON Schema of the spec, for editors.

    Example:
        drumline schema > drumline.schema.json
    """
    from drumline.spec.run_spec import RunSpec

    meta = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print_json(meta | RunSpec.model_json_schema())


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """What the containers are like."""

    nodes: Annotated[int, typer.Option("-n", help="How many nodes, with one rank each.")] = 2
    cpus: Annotated[float | None, typer.Option(help="Cores that each node may use.")] = None
    gpu: Annotated[bool, typer.Option("--gpu", help="Give each node a GPU.")] = False
    port: Annotated[int, typer.Option(help="Where node01 listens.")] = 29500


@app.command(calls="compose:compose_command")
def compose(
    containers: ContainerOptions,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.yaml] [KEY=VALUE]…", help="The arguments of drumline train."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
) -> None:
    """Write compose.yaml and a Dockerfile: the same training with containers as nodes.

    Examples:
        drumline compose -n 4 --cpus 1.5 model=mlp epochs=2
        docker compose up
    """


@app.command(calls="machine:doctor_command")
def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what killed launches left behind.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can do, and what to install for the rest.

    Examples:
        drumline doctor
        drumline doctor --clean
    """


@data_app.command("fetch", calls="machine:fetch_command")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="mnist, fashion-mnist")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to (default: DRUMLINE_DATA or the user's cache).")
    ] = None,
) -> None:
    """Fetch data sets from public mirrors, checked by SHA-256.

    Example:
        drumline data fetch mnist fashion-mnist
    """


@app.command(calls="report:report_command")
def report(
    names: Annotated[list[str], typer.Argument(metavar="RUN…", help="Names or paths of runs.")],
    out: PageFolder = None,
    lang: PageLanguage = Language.EN,
) -> None:
    """Write a page about any runs: curves on one figure, where the time went, in what they differ.

    The page, report.html, needs nothing else; figures (PNG, SVG, PDF) and data (CSV) lie beside it.
    A run that crashed is shown as far as it came.

    Examples:
        drumline report run-1
        drumline report run-1 run-2 run-3 --out three --lang zh
    """


@app.command(calls="report:compare_command")
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run's name or path.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another's.")],
    out: PageFolder = None,
    lang: PageLanguage = Language.EN,
    as_json: Json = False,
) -> None:
    """Compare two runs: in what their specs differ, and what came of it. Writes a page, too.

    Examples:
        drumline compare run-1 run-2
        drumline compare run-1 run-2 --out ring-or-tree --json
    """
