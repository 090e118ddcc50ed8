"""Following the log files of ranks, line by line, with the rank in front."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class LogTail:
    """Prints what a growing log gained since the last look."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._style = _COLORS[sum(prefix.encode()) % len(_COLORS)]
        self._offset = 0

    def print_new(self, console: Console, *, to_the_end: bool = False) -> None:
        """Print the whole lines that were added; `to_the_end`: also a last one without newline."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        if not to_the_end:
            chunk = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(chunk)
        for line in chunk.decode(errors="replace").splitlines():
            console.print(Text(f"{self._prefix} ", style=self._style) + Text.from_ansi(line))
