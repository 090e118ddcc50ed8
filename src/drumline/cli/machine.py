"""What this machine has and can do: `drumline doctor`, `drumline data fetch`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from drumline.cli.app import print_json
from drumline.data.catalogue import default_folder
from drumline.data.fetch import fetch, find_published
from drumline.launcher.doctor import Check, remove_leftovers, run_checks


def doctor_command(*, clean: bool, as_json: bool) -> None:
    """Run `drumline doctor`: print one line per check, and remove leftovers if asked to."""
    checks = [*run_checks(), _data_folder()]
    removed = remove_leftovers() if clean else []
    if as_json:
        print_json({"checks": [asdict(check) for check in checks], "removed": removed})
        return
    console = Console(highlight=False)
    columns = Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold")
    table = Table(*columns, show_header=False, box=None, padding=(0, 2, 0, 0))
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


def fetch_command(names: list[str], folder: Path | None) -> None:
    """Run `drumline data fetch`: fetch data sets, with a bar per file."""
    folder = folder or default_folder()
    console = Console()
    for name in names:
        find_published(name)  # refuses unknown names before anything is fetched
    for name in names:
        with Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console
        ) as bars:
            fetched = fetch(name, folder, _file_bars(bars))
        kept = f", {len(fetched.kept)} were there already" if fetched.kept else ""
        console.print(f"{name}: {len(fetched.brought)} files fetched{kept}: {fetched.folder}")


def _file_bars(bars: Progress) -> Callable[[str, int, int | None], None]:
    """Show a bar per file, added when the file is first heard of."""
    tasks = defaultdict[str, TaskID](lambda: bars.add_task(""))

    def show(file: str, done: int, total: int | None) -> None:
        bars.update(tasks[file], description=file, completed=done, total=total)

    return show
