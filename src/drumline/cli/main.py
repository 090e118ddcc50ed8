"""`drumline`: the commands. Each one's work is imported when it is called; torch never is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

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


@app.command()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.yaml] [KEY=VALUE]…", help="A spec file; keys to override."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Exact run directory (default: runs/<name>-<n>).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model on N workers of this machine.

    [bold]Examples[/bold]

      drumline train

      drumline train model=mlp workers=4 strategy=chunked_ring epochs=3

      drumline train spec.yaml optimizer.lr=0.1 --json

      drumline train resume=runs/run-3 epochs=10

      torchrun --nproc-per-node 2 -m drumline train model=cnn
    """
    from drumline.launch.agents import Agents
    from drumline.launch.join import outer_launcher

    launcher = outer_launcher()
    with Agents() as agents:
        if launcher is None:
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
    restarts: Annotated[int, typer.Option(help="How often to start again when a worker dies.")] = 0,
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")
    ] = False,
) -> None:
    """Run anybody's PyTorch script on many workers, with the variables that torchrun sets.

    [bold]Examples[/bold]

      drumline run train.py --epochs 3

      drumline run -j 2x2 train.py

      drumline run -m package.train --epochs 3
    """
    from drumline.cli.script import run_command

    run_command(script, args or [], shape=shape, restarts=restarts, module=module)


@app.command()
def explain(
    collective: Annotated[
        str,
        typer.Argument(
            help="broadcast, reduce, scatter, gather, all_gather, reduce_scatter, all_reduce, "
            "all_to_all or barrier."
        ),
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(help="linear, tree, ring, chunked_ring, halving_doubling, … (default: ours)."),
    ] = None,
    ranks: Annotated[int, typer.Option(help="How many, up to 16.")] = 4,
    size: Annotated[
        str, typer.Option(help="Of the tensor, or of all parts together, as in nccl-tests.")
    ] = "64KiB",
    root: Annotated[int, typer.Option(help="The rank that sends or collects.")] = 0,
    ranks_per_node: Annotated[
        int, typer.Option(help="For hierarchical: how many ranks share a node.")
    ] = 2,
    mismatch: Annotated[
        bool, typer.Option(help="Let one rank make another call, and see who waits for what.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page to play with.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the run directory there.")] = None,
    as_json: Json = False,
) -> None:
    """Record every message of a real collective, and play it back step by step.

    [bold]Examples[/bold]

      drumline explain all_reduce

      drumline explain all_reduce --algorithm halving_doubling --ranks 8 --html all_reduce.html

      drumline explain broadcast --algorithm tree --root 2 --size 1MiB

      drumline explain all_reduce --mismatch
    """
    from drumline.cli.explain import Words, explain_command

    words = Words(
        collective=collective,
        algorithm=algorithm,
        ranks=ranks,
        size=size,
        root=root,
        ranks_per_node=ranks_per_node,
        mismatch=mismatch,
    )
    explain_command(words, html=html, out=out, show=show, as_json=as_json)


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
    try:
        app()
    except DrumlineError as error:
        print(f"drumline: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("drumline: interrupted", file=sys.stderr)
        sys.exit(InterruptError.exit_code)


if __name__ == "__main__":
    main()
