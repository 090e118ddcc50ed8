"""Commands about the labs: `lab list`, `start`, `check`, `run`, `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, lab_app
from drumline.labs.check import TIMEOUT_S
from drumline.report.page.translator import Language

Lang = Annotated[
    Language | None, typer.Option("--lang", help="English or Chinese (default: as started).")
]
Number = Annotated[int, typer.Argument(metavar="N", help="The lab: 1, 2, 3 or 4.")]


@lab_app.command("list", calls="labs:list_command")
def list_labs(lang: Lang = None, as_json: Json = False) -> None:
    """List the labs: what each is about, and what it needs.

    Example:
        drumline lab list --lang zh
    """


@lab_app.command(calls="labs:start_command")
def start(
    number: Number,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    lang: Lang = None,
) -> None:
    """Make a folder with a lab's starter files, its task sheet and a few tests.

    The starter files have holes to fill, and need nothing but torch. Nothing is overwritten.

    Examples:
        drumline lab start 1 my-lab
        drumline lab start 2 my-lab --lang zh
    """


@lab_app.command(calls="labs:check_command")
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by lab start.")],
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML, for graders.")
    ] = None,
    lang: Lang = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="S", min=1.0, max=3600.0, help="Seconds that one check may take."
        ),
    ] = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Run your code against references, and explain what is wrong, and why.

    Your code runs in processes of its own: one that hangs or crashes ends in bounded time. Holes
    that are not filled yet are to do, not wrong. Exit code 0: all is done and right.

    Examples:
        drumline lab check my-lab
        drumline lab check my-lab --lang zh --timeout 60
        drumline lab check my-lab --junit result.xml --json
    """


@lab_app.command(calls="labs:run_lab_command")
def run(
    number: Annotated[int, typer.Argument(metavar="LAB", help="1, 2, 3 or 4.")],
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="The long form: more steps, seeds and cases; on all of MNIST if it was fetched "
            "(drumline data fetch mnist).",
        ),
    ] = False,
    lang: Annotated[Language, typer.Option("--lang", help="Of the report.")] = Language.EN,
    out: Annotated[Path | None, typer.Option(help="Where the report goes (default: labs/LAB).")] = (
        None
    ),
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Keep what was measured before with the same arguments.")
    ] = False,
    as_json: Json = False,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="nodes, link, seed.")
    ] = None,
) -> None:
    """Run a lab's experiments, and write them up: report.html, report.md, figures, CSV files.

    The page needs nothing else and opens from disk. What you write into words.md beside it becomes
    a part of it, and is kept when the lab is run again.

    Examples:
        drumline lab run 2
        drumline lab run 2 --lang zh --reuse
        drumline lab run 2 nodes=4 link=100mbit --out slow-links
        drumline lab run 1 --full
    """


@lab_app.command(calls="labs:verify_command")
def verify(
    folder: Annotated[Path, typer.Argument(help="A report's folder, e.g. labs/2.")],
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Also train again, and compare the weights.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a report as a grader would: its files, its numbers, and that they follow from its runs.

    Examples:
        drumline lab verify labs/2
        drumline lab verify labs/1 --rerun
    """
