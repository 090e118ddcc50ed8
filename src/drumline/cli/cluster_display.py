"""What a person sees of a cluster: its nodes as a table or as live rows, and a job's output."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from drumline.cli.app import print_text
from drumline.core.errors import DrumlineError, UsageError
from drumline.core.formatting import format_seconds, name_ranks

if TYPE_CHECKING:
    from drumline.cluster.jobs.follow import OutputLine
    from drumline.cluster.providers import Machine
    from drumline.node.job import JobState

_GAP = 2
_LEFT_OUT = ("address", "id", "reached at")
"""where there is no room, in this order; `status --json` and `inventory --list` have all of it"""


def print_machines(
    console: Console, machines: Sequence[Machine], states: Mapping[int, str] | None = None
) -> None:
    """Print a table of a cluster's nodes, with their state where that is known."""
    columns = {
        "node": [f"{one.name}{' (leader)' if one.node == 0 else ''}" for one in machines],
        "state": [states[one.node] for one in machines] if states else [],
        "address": [one.address for one in machines],
        "reached at": [f"{one.user}@{one.host}" for one in machines],
        "id": [one.identity for one in machines],
        "USD/h": [f"{one.price_usd:.3f}" if one.price_usd else "" for one in machines],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    for name in _LEFT_OUT if console.is_terminal else ():  # a file has room for all
        if max(map(len, _lines(columns))) > console.width:
            columns.pop(name, None)
    for number, line in enumerate(_lines(columns)):
        print_text(console, line, None if number else "bold")


def _lines(columns: Mapping[str, Sequence[str]]) -> list[str]:
    padded = []
    for column in ([name, *cells] for name, cells in columns.items()):
        width = max(map(len, column)) + _GAP
        padded.append([cell.ljust(width) for cell in column])
    return ["".join(row).rstrip() for row in zip(*padded, strict=True)]


class NodeRows:
    """What happens to whom; `report(who, what)` may be called from any thread."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._began = time.monotonic()
        self._rows: dict[str, tuple[str, float]] = {}
        self._guard = threading.Lock()
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._draw, console=console, refresh_per_second=5, transient=True
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, who: str, what: str) -> None:
        """Tell what happens to a node or a resource now."""
        with self._guard:
            known = self._rows.get(who, ("", 0.0))[0] == what
            if not known:
                self._rows[who] = (what, time.monotonic())
        if self._live is None and not known:
            print_text(self._console, f"{who}: {what}")

    def _draw(self) -> Group:
        took = format_seconds(time.monotonic() - self._began)
        title = Text(f"{self._title} · {took}", style="italic", overflow="ellipsis", no_wrap=True)
        table = Table(box=None, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()  # is what gives way where all together are too wide
        table.add_column(justify="right", no_wrap=True)
        with self._guard:
            rows = list(self._rows.items())
        for who, (what, since) in rows:
            waited = time.monotonic() - since
            text = Text(what, overflow="ellipsis", no_wrap=True)
            table.add_row(who, text, format_seconds(waited) if waited > 2 else "")
        return Group(title, table)


def print_note(line: str) -> None:
    """Print a line for the person at the CLI that is not a job's output, on stderr."""
    print(line, file=sys.stderr, flush=True)


class Printer:
    """Prints what ranks print, with the rank in front."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, line: OutputLine) -> None:
        """Print one."""
        self.lines += 1
        print(f"{line.prefix} {line.text}", flush=True)


def print_end(job_id: str, state: JobState) -> int:
    """Print how a cluster's job ended; returns the exit code of the CLI."""
    took = ""
    if state.started is not None and state.ended is not None:
        took = f" after {format_seconds(state.ended - state.started)}"
    print_note(f"{job_id} is {state.phase}{took}")
    if state.phase == "done":
        return 0
    if state.error:
        failed = DrumlineError(state.error)
        failed.exit_code = state.code or 1  # type: ignore[misc]  # the job's own
        raise failed
    return state.code or 1


def refuse_rank(job_id: str, rank: int | None, ranks: Collection[int]) -> None:
    """Refuse a `--rank` that a cluster's job does not have."""
    if rank is None or rank in ranks:
        return
    if isinstance(ranks, range) and len(ranks) > 2:
        has = f"has ranks 0 to {len(ranks) - 1}"
    else:
        has = f"has {name_ranks(sorted(ranks))}" if ranks else "never had any"
    raise UsageError(f"no rank {rank}: {job_id} {has}")
