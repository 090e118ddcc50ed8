"""`drumline doctor`: what this machine can do, and what killed launches left on it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drumline.cli.printing import print_json
from drumline.data import default_folder
from drumline.launch.doctor import Check, remove_leftovers, run_checks


def doctor_command(*, clean: bool, as_json: bool) -> None:
    """Print one line per check, and remove leftovers if asked to."""
    checks = [*run_checks(), _data_folder()]
    removed = remove_leftovers() if clean else []
    if as_json:
        print_json({"checks": [asdict(check) for check in checks], "removed": removed})
        return
    console = Console(highlight=False)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        mark = Text("ok", style="green") if check.good else Text("--", style="yellow")
        rest = "" if check.good or not check.way_out else f"; {check.way_out}"
        table.add_row(mark, check.name, Text(f"{check.found}{rest}"))
    console.print(table)
    for line in removed:
        console.print(line, markup=False, soft_wrap=True)
    if clean and not removed:
        console.print("nothing was left behind")


def _data_folder() -> Check:
    folder = default_folder()
    there: Path = next(path for path in (folder, *folder.parents) if path.exists())
    way_out = "set DRUMLINE_DATA to a folder that you can write to"
    return Check("data folder", os.access(there, os.W_OK), str(folder), way_out)
