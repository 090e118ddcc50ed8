"""What `lab list` and `lab start` print."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table

from drumline.cli.printing import print_json
from drumline.labs.catalogue import LABS, find_lab
from drumline.labs.explanation import label
from drumline.labs.start import start_lab
from drumline.report.page.translator import Language


def list_command(language: Language, *, as_json: bool) -> None:
    """List the labs."""
    if as_json:
        print_json(
            [
                {
                    "lab": lab.number,
                    "name": lab.name,
                    "title": lab.title.within(language),
                    "about": lab.about.within(language),
                    "needs": lab.needs.within(language),
                    "files": [f"{module}.py" for module in lab.modules],
                }
                for lab in LABS
            ]
        )
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("lab", "title", "about", "needs"):
        table.add_column(label(name, language), overflow="fold")
    for lab in LABS:
        said = (lab.title, lab.about, lab.needs)
        table.add_row(str(lab.number), *(each.within(language) for each in said))
    Console().print(table)


def start_command(number: int, folder: Path, language: Language) -> None:
    """Make a folder for a lab, and say what to do next."""
    files = start_lab(number, folder, language)
    console = Console(highlight=False, soft_wrap=True)
    title = find_lab(number).title.within(language)
    said = label("started", language).format(lab=number, title=title, folder=folder)
    console.print(said, markup=False)
    for path in files:
        console.print(f"  {path.name}", markup=False)
    console.print(label("next", language).format(folder=shlex.quote(str(folder))), markup=False)
