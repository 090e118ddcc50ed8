"""Commands about the labs: `lab list`, `lab start`, `lab check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, lab_app
from drumline.core.language import Language
from drumline.labs.check import TIMEOUT_S

Lang = Annotated[
    Language | None, typer.Option("--lang", help="English or Chinese (default: as started).")
]
Number = Annotated[int, typer.Argument(metavar="N", help="The lab: 1, 2, 3 or 4.")]


@lab_app.command("list")
def list_labs(lang: Lang = None, as_json: Json = False) -> None:
    """List the labs: what each is about, and what it needs.

    [bold]Example[/bold]

      drumline lab list --lang zh
    """
    from drumline.cli.lab_folders import list_command

    list_command(lang or Language.EN, as_json=as_json)


@lab_app.command()
def start(
    number: Number,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    lang: Lang = None,
) -> None:
    """Make a folder with a lab's starter files, its task sheet and a few tests.

    The starter files have holes to fill, and need nothing but torch. Nothing is overwritten.

    [bold]Examples[/bold]

      drumline lab start 1 my-lab

      drumline lab start 2 my-lab --lang zh
    """
    from drumline.cli.lab_folders import start_command

    start_command(number, folder, lang or Language.EN)


@lab_app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by lab start.")],
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML, for graders.")
    ] = None,
    lang: Lang = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="S", min=1.0, max=3600.0, help="Seconds that one check may take."),
    ] = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Run your code against references, and explain what is wrong, and why.

    Your code runs in processes of its own: one that hangs or crashes ends in bounded time. Holes
    that are not filled yet are to do, not wrong. Exit code 0: all is done and right.

    [bold]Examples[/bold]

      drumline lab check my-lab

      drumline lab check my-lab --lang zh --timeout 60

      drumline lab check my-lab --junit result.xml --json
    """
    from drumline.cli.lab_check import check_command

    check_command(folder, junit=junit, language=lang, timeout_s=timeout, as_json=as_json)
