"""What a run looks like in a notebook: the terminal's own tables, as HTML, redrawn in place.

Notebooks show HTML; files that hold them, and other readers, the same as plain text. Nothing but
IPython is needed, which every kernel has.
"""

from __future__ import annotations

import io
import sys
import time
from importlib import import_module
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.text import Text

from drumline.cli.display import Display, draw_ranks, run_title
from drumline.core.rundir import RunDir
from drumline.report.progress import RunProgress
from drumline.spec.run_spec import RunSpec

_WIDTH = 100
_REDRAW_S = 0.25
_LAST_LINES = 50  # shown while a run lasts
_PRE = (
    '<pre style="line-height:1.25;white-space:pre;overflow-x:auto;'
    "font-family:Menlo,'DejaVu Sans Mono',consolas,monospace\">{code}</pre>"
)


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel: IPython's own terminal is none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def render(*shown: RenderableType) -> tuple[str, str]:
    """Render for a notebook what rich draws: as plain text, and as HTML."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_WIDTH,
        force_jupyter=False,
        color_system="standard",
        force_terminal=True,
    )
    console.print(*shown, sep="\n")
    html = console.export_html(inline_styles=True, code_format=_PRE, clear=False)
    lines = console.export_text().splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip(), html


def build_notebook_display(run: RunDir, spec: RunSpec) -> Display:
    """Build the display of a run in a notebook."""
    progress = RunProgress(run, spec.world_size, nodes=spec.nodes)
    return NotebookDisplay(progress, run_title(run.path.name, spec))


def _as_bundle(*shown: RenderableType) -> dict[str, str]:
    """Return what rich draws as the formats that a notebook chooses from."""
    text, html = render(*shown)
    return {"text/plain": text, "text/html": html}


class NotebookDisplay(Display):
    """A run in a notebook: a line per epoch, and a row per rank while it lasts."""

    def __init__(self, progress: RunProgress, title: str) -> None:
        super().__init__(Console(width=_WIDTH, force_jupyter=False), progress, title)
        self._lines: list[str] = []
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        ipython: Any = import_module("IPython.display")  # the kernel's own
        shown = _as_bundle(Text(f"{self._title}: starting the workers …"))
        self._handle = ipython.display(shown, raw=True, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        super().update()
        self._redraw(self._title, *self._lines)

    def update(self) -> None:
        """Read what is new, and redraw a few times a second: the last lines, or it takes long."""
        super().update()
        if self.progress.total_steps is not None and time.monotonic() > self._drawn_at + _REDRAW_S:
            ranks = draw_ranks(self.progress, self._title, width=_WIDTH)
            self._redraw(*self._lines[-_LAST_LINES:], ranks)

    def _redraw(self, *shown: str | RenderableType) -> None:
        self._drawn_at = time.monotonic()
        drawn = (Text(each) if isinstance(each, str) else each for each in shown)
        self._handle.update(_as_bundle(*drawn), raw=True)

    def _print(self, line: str) -> None:
        self._lines.append(line)
