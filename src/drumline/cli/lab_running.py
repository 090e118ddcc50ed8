"""Words of `drumline lab run` and `lab verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, lab_app
from drumline.core.language import Language

Lang = Annotated[Language, typer.Option("--lang", help="Of the report.")]


@lab_app.command()
def run(
    number: Annotated[int, typer.Argument(metavar="LAB", help="1, 2, 3 or 4.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="nodes, link, seed."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="The long form: more steps, seeds and cases; on all of MNIST if it was fetched "
            "(drumline data fetch mnist).",
        ),
    ] = False,
    lang: Lang = Language.EN,
    out: Annotated[
        Path | None, typer.Option(help="Where the report goes (default: labs/LAB).")
    ] = None,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Keep what was measured before by the same words.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a lab's experiments, and write them up: report.html, report.md, figures, CSV files.

    The page needs nothing else and opens from disk. What you write into words.md beside it becomes
    a part of it, and is kept when the lab is run again.

    [bold]Examples[/bold]

      drumline lab run 2

      drumline lab run 2 --lang zh --reuse

      drumline lab run 2 nodes=4 link=100mbit --out slow-links

      drumline lab run 1 --full
    """
    from drumline.cli.lab_run import RunWishes, run_command

    wishes = RunWishes(full=full, lang=lang, out=out, reuse=reuse, as_json=as_json)
    run_command(number, words or [], wishes)


@lab_app.command()
def verify(
    folder: Annotated[Path, typer.Argument(help="A report's folder, e.g. labs/2.")],
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Also train again, and compare the weights.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a report as a grader would: its files, its numbers, and that they follow from its runs.

    [bold]Examples[/bold]

      drumline lab verify labs/2

      drumline lab verify labs/1 --rerun
    """
    from drumline.cli.lab_run import verify_command

    verify_command(folder, rerun=rerun, as_json=as_json)
