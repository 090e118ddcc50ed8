"""Following the log files of ranks, line by line, with the rank in front."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class LogTail:
    """Prints what a growing log gained since the last look."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = Text(f"{prefix} ", style=_COLORS[sum(prefix.encode()) % len(_COLORS)])
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
        if not chunk:
            return
        prefix = _render(console, self._prefix)
        lines = chunk.decode(errors="replace").splitlines()
        console.file.write("".join(f"{prefix}{_tame(console, line)}\n" for line in lines))
        console.file.flush()


def _tame(console: Console, line: str) -> str:
    """Keep colours where the console shows any, and nothing else that steers a terminal."""
    return _render(console, Text.from_ansi(line)) if _CONTROL.search(line) else line


def _render(console: Console, text: Text) -> str:
    with console.capture() as captured:
        console.print(text, end="")
    return captured.get()
