"""`drumline data`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from drumline.data import default_folder
from drumline.data.fetch import fetch, find_published


def fetch_command(names: list[str], folder: Path | None) -> None:
    """Fetch data sets, with a bar per file."""
    folder = folder or default_folder()
    console = Console()
    for name in names:
        find_published(name)  # refuses unknown names before anything is fetched
    for name in names:
        with Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console
        ) as bars:
            fetched = fetch(name, folder, _FileBars(bars))
        kept = f", {len(fetched.kept)} were there already" if fetched.kept else ""
        console.print(f"{name}: {len(fetched.brought)} files fetched{kept}: {fetched.folder}")


class _FileBars:
    """A bar per file, added when the file is first heard of."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, file: str, done: int, total: int | None) -> None:
        if file not in self._tasks:
            self._tasks[file] = self._bars.add_task(file, total=total)
        self._bars.update(self._tasks[file], completed=done, total=total)
