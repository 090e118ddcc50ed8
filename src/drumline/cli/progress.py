"""Progress of what ranks measure and of runs that follow each other: a bar, or lines in a pipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from drumline.cli.printing import say
from drumline.launch.probe import Progress as ProbeProgress
from drumline.launch.probe import Watch

_QUIET_S = 10.0
"""how often a line is printed where nobody sees a bar"""


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Show on stderr how far the ranks have come: a bar, or a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("starting ranks", total=1.0)

        def watch(progress: ProbeProgress | None) -> None:
            if progress is not None:
                bar.update(task, completed=progress.share, description=progress.now)

        yield watch


class _Lines:
    """Progress where nobody sees a bar; a short run prints nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def __call__(self, progress: ProbeProgress | None) -> None:
        if progress is not None and time.monotonic() - self._last > _QUIET_S:
            self._last = time.monotonic()
            say(self._console, f"{progress.share:.0%} measured: {progress.now}")


@contextlib.contextmanager
def watched_cases() -> Iterator[Watch]:
    """Show on stderr which case runs: a bar with its steps, or a line for each."""
    console = Console(stderr=True)
    if console.is_terminal:
        with watched() as watch:
            yield watch
        return
    last = None

    def tell(progress: ProbeProgress | None) -> None:
        nonlocal last
        if progress is not None and progress.case != last:
            last = progress.case
            say(console, progress.case)

    yield tell
