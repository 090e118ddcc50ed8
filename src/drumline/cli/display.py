"""What people see of a run: a live table, a bar, plain lines in a pipe, ranks' logs, the result."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from drumline.cli.app import print_json, print_text
from drumline.core.errors import RunDirError
from drumline.core.files import GrowingFile
from drumline.core.formatting import counted, format_metric, format_seconds
from drumline.core.rundir import Event, RunDir
from drumline.launcher.probe import Progress as ProbeProgress
from drumline.launcher.probe import Watch
from drumline.report.progress import RunProgress
from drumline.report.runs.record import RunRecord, read_record
from drumline.report.tables import (
    BAR_WIDTH,
    Accounts,
    metrics_of,
    summary_table,
    time_bar,
    time_bar_legend,
)
from drumline.spec.run_spec import RunSpec

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_UP_AND_DOWN = re.compile(rb"(?:\x1b\[A)+\n+")  # how a bar below another is drawn over
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_BAR_EVERY_S = 1.0
_LINE_EVERY_S = 5.0
_QUIET_S = 10.0
"""how often a line is printed where nobody sees a bar"""
_TOO_SHORT_S = 1.0
_COLUMNS_BESIDE_BAR = 49  # of the live table


def build_display(
    console: Console, run: RunDir, spec: RunSpec, *, name: str = "", title: str = ""
) -> Display:
    """Choose a run's display in the terminal by where the output goes.

    It says in one line what the run called `name` is, unless a `title` is given.
    """
    progress = RunProgress(run, spec.world_size, nodes=spec.nodes)
    title = title or run_title(name or run.path.name, spec)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveTable(console, progress, title)
    return PlainLines(console, progress, title)


def run_title(name: str, spec: RunSpec) -> str:
    """Say in one line what a run is."""
    ranks = counted(spec.world_size, "rank")
    ranks += f" on {spec.nodes} nodes" if spec.nodes > 1 else ""
    return f"{name}: {spec.model.name} on {spec.data.name}, {ranks}, {spec.strategy.kind}"


class Display:
    """Shows a run while its context lasts: no more than what is noted of it, and who is slow.

    Call `update` a few times a second.
    """

    def __init__(self, console: Console, progress: RunProgress, title: str = "") -> None:
        self._console = console
        self._title = title
        self.progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.update()

    def update(self) -> None:
        """Read what is new, and show it."""
        for news in self.progress.update():
            self._print(news if isinstance(news, str) else _epoch_line(news, self.progress))
        if straggler := self.progress.name_straggler():
            self._print(straggler)

    def _print(self, line: str) -> None:
        print_text(self._console, line)


class PlainLines(Display):
    """A line per epoch, and one every few seconds between."""

    def __enter__(self) -> Self:
        self._print(self._title)
        return self

    def update(self) -> None:
        """Print what is new."""
        super().update()
        if time.monotonic() - self._printed > _LINE_EVERY_S:
            self._print(step_line(self.progress))

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        super()._print(line)


class LiveTable(Display):
    """A row per rank, redrawn in place."""

    def __enter__(self) -> Self:
        spinner = Spinner("dots", text=f" {self._title}: starting the workers …")
        self._live = Live(spinner, console=self._console, refresh_per_second=5, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            self._live.stop()

    def update(self) -> None:
        """Read what is new and redraw."""
        super().update()
        if self.progress.total_steps is not None:
            self._live.update(draw_ranks(self.progress, self._title, width=self._console.width))


def draw_ranks(progress: RunProgress, title: str, *, width: int) -> Group:
    """Draw a row per rank, for a display that is so wide."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    first = ("node", "rank") if progress.nodes > 1 else ("rank",)
    for name in (*first, "step", "loss", "samples/s"):
        table.add_column(name, justify="right", min_width=4 if name in first else 9)
    table.add_column("time")
    ledger = progress.ledger()
    bar = max(4, min(BAR_WIDTH, width - _COLUMNS_BESIDE_BAR))
    for rank, row in zip(progress.ranks, ledger.ranks, strict=True):
        node = rank.rank * progress.nodes // len(progress.ranks)
        table.add_row(
            *(str(node), str(rank.rank))[-len(first) :],
            f"{rank.step}/{progress.total_steps}",
            "" if rank.loss is None else f"{rank.loss:.4f}",
            f"{rank.samples_per_s:,.0f}",
            time_bar(row, bar),
        )
    eta = "" if progress.eta_s is None else f"   about {format_seconds(progress.eta_s)} left"
    return Group(table, time_bar_legend() + Text(f"{progress.samples_per_s:,.0f} samples/s{eta}"))


def _epoch_line(event: Event, progress: RunProgress) -> str:
    parts = [
        f"epoch {event['epoch'] + 1}",
        f"step {event['step']}/{progress.total_steps}",
        f"loss {event['loss']:.4f}",
    ]
    if "test_loss" in event:
        parts.append(f"test loss {event['test_loss']:.4f}")
        parts += [f"{name} {format_metric(name, v)}" for name, v in metrics_of(event).items()]
    held_out = event.get("validation", {})
    parts += [f"val {name} {format_metric(name, value)}" for name, value in held_out.items()]
    parts.append(f"{progress.samples_per_s:,.0f} samples/s")
    return "  ".join(parts)


def step_line(progress: RunProgress) -> str:
    """Return in one line of the terminal which step a run is at."""
    if progress.total_steps is None:
        return f"starting the workers ({time.monotonic() - progress.started:.0f} s)"
    loss = progress.ranks[0].loss
    shown = "" if loss is None else f"  loss {loss:.4f}"
    eta = "" if progress.eta_s is None else f"  about {format_seconds(progress.eta_s)} left"
    return f"step {progress.step}/{progress.total_steps}{shown}{eta}"


@contextlib.contextmanager
def followed_logs(run: RunDir, ranks: int, console: Console) -> Iterator[Callable[[], None]]:
    """Give what prints the new lines of all ranks, and print the last ones in the end."""
    tails = [LogTail(run.rank_log(rank), f"[{rank}]") for rank in range(ranks)]

    def show(*, to_the_end: bool = False) -> None:
        for tail in tails:
            tail.print_new(console, to_the_end=to_the_end)

    try:
        yield show
    finally:
        show(to_the_end=True)


class LogTail:
    """Prints what a growing log gained since the last look.

    A progress bar draws over itself by carriage returns: about once a second it is a line.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self._log = GrowingFile(path)
        self._prefix = Text(f"{prefix} ", style=_COLORS[sum(prefix.encode()) % len(_COLORS)])
        self._pending = b""  # of a line that has not ended, what is still seen
        self._shown: str | None = None  # of that line
        self._bar_due = 0.0

    def print_new(self, console: Console, *, to_the_end: bool = False) -> None:
        """Print the lines that have ended since; `to_the_end`: also a last one without newline."""
        chunk = _UP_AND_DOWN.sub(b"", self._pending + self._log.read(to_the_end=True))
        *ended, pending = chunk.split(b"\n")
        self._pending = pending[max(0, pending.rstrip(b"\r").rfind(b"\r")) :]
        lines = [_last_drawn(line) for line in ended]
        if ended:
            lines = lines[lines[0] == self._shown :]
            self._shown = None
        seen, now = _last_drawn(self._pending), time.monotonic()
        due = to_the_end or (b"\r" in self._pending and now > self._bar_due)
        if due and seen.strip() and seen != self._shown:
            self._shown, self._bar_due = seen, now + _BAR_EVERY_S
            lines.append(seen)
        if lines:
            self._print(console, lines)

    def _print(self, console: Console, lines: list[str]) -> None:
        """Print with the colours, where the console shows any, and no other control sequence."""
        prefix = _render(console, self._prefix)
        clean = [
            _render(console, Text.from_ansi(line)) if _CONTROL.search(line) else line
            for line in lines
        ]
        console.file.write("".join(f"{prefix}{line}\n" for line in clean))
        console.file.flush()


def _last_drawn(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]


def _render(console: Console, text: Text) -> str:
    with console.capture() as captured:
        console.print(text, end="")
    return captured.get()


def print_result(run: RunDir, *, as_json: bool = False) -> None:
    """Print summary and ledger of a finished run, for people or as JSON."""
    record = read_record(run)
    if not record.done:
        raise RunDirError(f"{run.path} has no summary.json: the run has not finished")
    accounts = Accounts.of(record)
    if as_json:
        print_json({**record.result, **accounts.to_json(), "run_dir": str(run.path)})
    else:
        print_record(record, accounts)


def print_record(record: RunRecord, accounts: Accounts) -> None:
    """Print ledger and summary of a finished run; nothing of a script that has too little to tell.

    That is one that was not metered, or that made no steps and was over soon.
    """
    ledger = accounts.ledger
    if ledger.steps or ledger.seconds > _TOO_SHORT_S or not record.script:
        Console().print(accounts.table(), summary_table(record.result, str(record.path)))


@contextlib.contextmanager
def watched(*, by_case: bool = False) -> Iterator[Watch]:
    """Show a bench's or lab's progress on stderr: a bar; in a pipe, lines, or one by case."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console, by_case=by_case)
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
    """Progress where nobody sees a bar: a line for each case, or one every few seconds."""

    def __init__(self, console: Console, *, by_case: bool) -> None:
        self._console, self._by_case = console, by_case
        self._case, self._printed = "", time.monotonic()

    def __call__(self, progress: ProbeProgress | None) -> None:
        if progress is None:
            return
        if self._by_case:
            if progress.case != self._case:
                print_text(self._console, progress.case)
        elif time.monotonic() - self._printed > _QUIET_S:
            self._printed = time.monotonic()
            print_text(self._console, f"{progress.share:.0%} measured: {progress.now}")
        self._case = progress.case
