"""The command line's root, which all commands hang on, and what they have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

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
bench_app = typer.Typer(
    help="Measure communication and training: algorithms, backends, links, strategies.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(bench_app, name="bench")
lab_app = typer.Typer(
    help="Four labs: run them and read the report, or write them yourself and be checked.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(lab_app, name="lab")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout at the end.")]


F = TypeVar("F", bound=Callable[..., None])


def flowing(command: F) -> F:
    """Let the terminal break the lines of a command's help: it keeps those of the docstring."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    return command


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
