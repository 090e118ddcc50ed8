"""`drumline`: the commands. Each one's work is imported when it is called; torch never is."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.output import forgive_output
from drumline.cli.signals import EndingSignals
from drumline.core.errors import DrumlineError, InterruptError

app = typer.Typer(
    name="drumline",
    help="Distributed deep learning for PyTorch in a glass box: every algorithm readable, every "
    "second accounted for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets that do not come with the package.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout at the end.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("drumline"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take what goes before any command."""


@app.command()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.yaml] [KEY=VALUE]…", help="A spec file; keys to override."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Exact run directory (default: runs/<name>-<n>).")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Be this one rank, started by hand.")] = None,
    world_size: Annotated[int | None, typer.Option(help="With --rank: how many there are.")] = None,
    master: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="With --rank: where rank 0 listens.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model on N workers of this machine, or on simulated nodes.

    [bold]Examples[/bold]

      drumline train

      drumline train model=mlp workers=4 strategy=chunked_ring epochs=3

      drumline train spec.yaml optimizer.lr=0.1 --json

      drumline train resume=runs/run-3 epochs=10

      drumline train nodes=4 workers=1 link=1gbit slow_nodes.2.rate=100mbit slow_nodes.3.cpu=0.5

      drumline train --rank 0 --world-size 2 --master localhost:29500   (and rank 1 elsewhere)

      torchrun --nproc-per-node 2 -m drumline train model=cnn
    """
    from drumline.launch.agents import Agents
    from drumline.launch.by_hand import rank_by_hand
    from drumline.launch.join import outer_launcher

    launcher = rank_by_hand(rank, world_size, master) or outer_launcher()
    several = any(word.startswith("nodes=") for word in words or [])
    with Agents() as agents:
        if launcher is None and not several:  # simulated nodes start theirs inside
            agents.warm_up()
        from drumline.cli.train import train_command

        train_command(words or [], launcher, agents, out=out, as_json=as_json)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(help="A PyTorch script, as for torchrun.")],
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    shape: Annotated[
        str, typer.Option("-j", metavar="[N]x[M]", help="N nodes with M workers each.")
    ] = "1x2",
    restarts: Annotated[
        int, typer.Option(min=0, max=100, help="How often to start again when a worker dies.")
    ] = 0,
    link_rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Rate of each node's link, e.g. 100mbit.")
    ] = None,
) -> None:
    """Run anybody's PyTorch script on many workers, with the variables that torchrun sets.

    [bold]Examples[/bold]

      drumline run train.py --epochs 3

      drumline run -j 2x2 train.py

      drumline run -j 4x1 --link-rate 100mbit train.py
    """
    from drumline.cli.script import run_command

    run_command(script, args or [], shape=shape, restarts=restarts, link_rate=link_rate)


@app.command()
def runs(as_json: Json = False) -> None:
    """List the runs in ./runs, newest first."""
    from drumline.cli.runs import runs_command

    runs_command(as_json=as_json)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's name or path.")],
    as_json: Json = False,
) -> None:
    """Show one run: its result, its ledger, who saw which data.

    [bold]Example[/bold]

      drumline show run-1
    """
    from drumline.cli.runs import show_command

    show_command(run, as_json=as_json)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the spec, for editors.

    [bold]Example[/bold]

      drumline schema > drumline.schema.json
    """
    from drumline.cli.schema import schema_command

    schema_command()


@app.command()
def compose(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.yaml] [KEY=VALUE]…", help="The words for drumline train."),
    ] = None,
    nodes: Annotated[int, typer.Option("-n", help="How many nodes, with one rank each.")] = 2,
    cpus: Annotated[float | None, typer.Option(help="Cores that each node may use.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Give each node a GPU.")] = False,
    port: Annotated[int, typer.Option(help="Where node01 listens.")] = 29500,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to write to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
) -> None:
    """Write compose.yaml and a Dockerfile: the same training with containers as nodes.

    [bold]Examples[/bold]

      drumline compose -n 4 --cpus 1.5 model=mlp epochs=2

      docker compose up
    """
    from drumline.cli.compose import compose_command

    compose_command(words or [], nodes=nodes, cpus=cpus, gpu=gpu, port=port, out=out, force=force)


@app.command()
def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what killed launches left behind.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can do, and what to install for the rest.

    [bold]Examples[/bold]

      drumline doctor

      drumline doctor --clean
    """
    from drumline.cli.doctor import doctor_command

    doctor_command(clean=clean, as_json=as_json)


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="mnist, fashion-mnist")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to (default: DRUMLINE_DATA or the user's cache).")
    ] = None,
) -> None:
    """Fetch data sets from public mirrors, checked by SHA-256.

    [bold]Example[/bold]

      drumline data fetch mnist fashion-mnist
    """
    from drumline.cli.data import fetch_command

    fetch_command(names, folder)


def main() -> None:
    """Run the command line; every error ends here, as one message and an exit code."""
    signals = EndingSignals()
    output = forgive_output()
    problem, code = _run()
    with contextlib.suppress(BrokenPipeError):
        output.flush()
    if output.lost is not None and problem is None:
        problem, code = f"the output is not whole: {output.lost.strerror}", 1
    if problem is not None:
        print(f"drumline: {problem}", file=sys.stderr)
    sys.exit(signals.exit_code if code == InterruptError.exit_code else code)


def _run() -> tuple[str | None, int]:
    """Return what went wrong, where there is something to say, and the exit code."""
    try:
        app()
    except DrumlineError as error:
        return error.message, error.exit_code
    except SystemExit as end:  # how typer ends, whatever happened
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return "interrupted" if code == InterruptError.exit_code else None, code
    except KeyboardInterrupt:
        return "interrupted", InterruptError.exit_code
    return None, 0


if __name__ == "__main__":
    main()
