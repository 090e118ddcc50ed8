"""The command line's root, which all commands hang on, and what they have in common."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., None])


class _PlainHelp:
    """Help that reads alike with every version of typer: no `<bool>`, no `[[KEY=VALUE]…]...`."""

    options_metavar: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return options and arguments, without types beside what takes no value or names it."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                name = param.metavar or param.name.upper()
                if param.nargs != 1 and "…" not in name:
                    name += "…"
                bare = param.required or name.startswith("[")
                param.metavar = name if bare else f"[{name}]"
                param.display_type_rich = lambda ctx: None
            elif param.is_flag:
                param.metavar = ""
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        arguments = [p.metavar for p in self.get_params(ctx) if p.param_type_name == "argument"]
        commands = [self.subcommand_metavar] if isinstance(self, TyperGroup) else []
        return [self.options_metavar or "", *arguments, *commands]


class _Command(_PlainHelp, TyperCommand):
    """A command."""


class _Group(_PlainHelp, TyperGroup):
    """Commands of one kind."""


class App(typer.Typer):
    """A group of commands, with the settings that all of them share."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, rich_markup_mode="rich", **settings)

    def command(
        self, name: str | None = None, *, calls: str | None = None, **settings: Any
    ) -> Callable[[F], F]:
        """Add a function as a command; its docstring is the help.

        Args:
            name: of the command, if not the function's.
            calls: the function of this package that does the work, `module:function`, where the
                one that is added only declares the options: as parameters, or as the fields of a
                dataclass. It is imported when the command is called, so that `--help` loads none
                of what commands need.
            settings: typer's.
        """

        def add(function: F) -> F:
            function.__doc__ = _flowing(inspect.cleandoc(function.__doc__ or ""))
            command = function if calls is None else _handed_over(function, calls)
            super(App, self).command(name, cls=_Command, **settings)(command)
            return function

        return add


def _handed_over(declaration: Callable[..., None], calls: str) -> Callable[..., None]:
    @functools.wraps(declaration)
    def command(**options: Any) -> None:
        function = find_handler(calls)
        function(**bind_options(function, options))

    signature = inspect.Signature(list(_parameters(declaration)))
    command.__signature__ = signature  # type: ignore[attr-defined]  # what typer asks for
    return command


def _parameters(declaration: Callable[..., object]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(declaration, eval_str=True).parameters.values():
        type_ = parameter.annotation
        if isinstance(type_, type) and is_dataclass(type_):
            yield from _parameters(type_)
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def find_handler(calls: str) -> Callable[..., None]:
    """Import the function that a CLI command calls, `module:function`."""
    module, _, name = calls.partition(":")
    handler: Callable[..., None] = getattr(importlib.import_module(f"drumline.cli.{module}"), name)
    return handler


def bind_options(function: Callable[..., None], options: Mapping[str, object]) -> dict[str, object]:
    """Bind a CLI command's options to a function's arguments; a list that is not given is empty."""

    def bind(name: str, type_: Any) -> object:
        if isinstance(type_, type) and is_dataclass(type_):
            return type_(**{key: bind(key, hint) for key, hint in get_type_hints(type_).items()})
        return [] if options[name] is None and get_origin(type_) is list else options[name]

    hints = get_type_hints(function).items()
    return {name: bind(name, hint) for name, hint in hints if name != "return"}


def _flowing(text: str) -> str:
    """Let the terminal break a paragraph's lines; those below `Examples:` stay as they are."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        first, *others = map(str.strip, paragraph.splitlines())
        if first in ("Example:", "Examples:"):
            paragraphs += [f"[bold]{first[:-1]}[/bold]", "\n".join(others)]
        else:
            paragraphs.append(" ".join([first, *others]))
    return "\n\n".join(paragraphs)


app = App(
    name="drumline",
    help="Distributed deep learning for PyTorch in a glass box: every algorithm readable, every "
    "second accounted for.",
    pretty_exceptions_enable=False,
)
data_app = App(help="Data sets that do not come with the package.")
app.add_typer(data_app, name="data")
bench_app = App(help="Measure communication and training: algorithms, backends, links, strategies.")
app.add_typer(bench_app, name="bench")
lab_app = App(
    help="Four labs: run them and read the report, or write them yourself and be checked."
)
app.add_typer(lab_app, name="lab")

REST_IS_THEIRS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""what follows the first argument belongs to it, options too"""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout at the end.")]
Module = Annotated[
    bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")
]


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


def print_json(document: Any) -> None:
    """Print a command's result as one JSON document on stdout."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_text(console: Console, text: str, style: str | None = None) -> None:
    """Print text to the console as it is: not marked up, not highlighted, not broken."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
