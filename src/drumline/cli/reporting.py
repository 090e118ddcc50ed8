"""Words of `drumline report` and `drumline compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, app
from drumline.core.language import Language

Lang = Annotated[Language, typer.Option("--lang", help="Of the page.")]
Out = Annotated[Path | None, typer.Option("-o", "--out", help="The folder of the page.")]


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Names or paths of runs.")],
    out: Out = None,
    lang: Lang = Language.EN,
) -> None:
    """Write a page about any runs: curves on one figure, where the time went, in what they differ.

    The page, report.html, needs nothing else; figures (PNG, SVG, PDF) and data (CSV) lie beside it.
    A run that crashed is shown as far as it came.

    [bold]Examples[/bold]

      drumline report run-1

      drumline report run-1 run-2 run-3 --out three --lang zh
    """
    from drumline.cli.report import report_command

    report_command(runs, out=out, lang=lang)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A", help="A run's name or path.")],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="Another's.")],
    out: Out = None,
    lang: Lang = Language.EN,
    as_json: Json = False,
) -> None:
    """Compare two runs: in what their specs differ, and what came of it. Writes a page, too.

    [bold]Examples[/bold]

      drumline compare run-1 run-2

      drumline compare run-1 run-2 --out ring-or-tree --json
    """
    from drumline.cli.report import compare_command

    compare_command(first, second, out=out, lang=lang, as_json=as_json)
