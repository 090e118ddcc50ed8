"""Tables for the terminal: the ledger, what a run came to, which samples its ranks saw.

A `FittingTable` leaves out whole columns where the terminal is narrow: rich cuts cells to fit, and
half a number is a wrong number. The columns that matter least go, one after the other, until the
others fit; a line below says which, and where they can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from drumline.core.formatting import counted, format_bytes, format_metric, format_seconds
from drumline.report.ledger.accounts import Ledger, RankLedger, compute_ledger
from drumline.report.ledger.bubble import Bubble
from drumline.report.ledger.links import SlowLink
from drumline.report.ledger.straggler import find_straggler
from drumline.report.runs.record import RunRecord

Row = TypeVar("Row")
KEPT = 0  # the drop_order of columns that stay
NOTHING = "—"
_WIDER = 10_000  # than any terminal
BAR_WIDTH = 16
_LABEL_COLUMNS = 10
_MARKS = {"data": "░", "compute": "█", "wait": "▒", "transfer": "▓"}
_COLORS = {"data": "blue", "compute": "green", "wait": "yellow", "transfer": "magenta"}


def narrow_table(*columns: Column, gap: int = 2) -> Table:
    """Make a terminal table that wastes no space: many terminals have only 80 columns."""
    return Table(
        *columns,
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - 1, 0, 0),
        collapse_padding=True,
    )


def number_columns(*names: str) -> list[Column]:
    """Make columns of a terminal table for numbers, which are never folded."""
    return [Column(name, justify="right", no_wrap=True) for name in names]


def time_bar(row: RankLedger, width: int = BAR_WIDTH) -> Text:
    """Draw a bar of a rank's step in the terminal: data, compute, exposed wait and transfer."""
    bar = Text()
    total = sum(row.parts.values()) or 1.0
    drawn, passed = 0, 0.0
    for name, seconds in row.parts.items():
        passed += seconds
        upto = round(width * passed / total)
        bar.append(_MARKS[name] * (upto - drawn), style=_COLORS[name])
        drawn = upto
    return bar


def time_bar_legend() -> Text:
    """Explain the marks of the ledger's time bar, for the terminal."""
    text = Text()
    for name, mark in _MARKS.items():
        text.append(f"{mark} {name}  ", style=_COLORS[name])
    return text


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Where the time of a run went: its ledger, its slowest link, the bubble of a pipeline."""

    ledger: Ledger
    bubble: Bubble | None
    nodes: int
    link: SlowLink | None = None

    @classmethod
    def of(cls, record: RunRecord) -> Accounts:
        """Account for a run by its record."""
        return cls(
            ledger=record.ledger or compute_ledger([[] for _ in record.logs]),
            bubble=record.bubble,
            nodes=record.nodes,
            link=record.slow_link,
        )

    @property
    def told(self) -> bool:
        """Whether there is anything to account for."""
        return bool(self.ledger.steps or self.ledger.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return them as a command's JSON document has them."""
        found = {"bubble": self.bubble, "slow_link": self.link}
        told = {key: asdict(each) for key, each in found.items() if each is not None}
        return {"ledger": self.ledger.to_json(), **told}

    def table(self) -> RenderableType:
        """Show them in the terminal, with an empty line below."""
        bubble = [] if self.bubble is None else [Text(str(self.bubble))]
        table = ledger_table(self.ledger, nodes=self.nodes, link=self.link)
        return Group(table, *bubble, Text())


def ledger_table(ledger: Ledger, *, nodes: int = 1, link: SlowLink | None = None) -> RenderableType:
    """Show the ledger of all ranks, in milliseconds per step, and who lost the most."""
    over = counted(ledger.steps, "step")
    if ledger.seconds:
        over = f"{format_seconds(ledger.seconds)} without steps"
    title = f"where the time went (ms per {ledger.unit}, over {over})"
    first = ("node", "rank") if nodes > 1 else ("rank",)
    numbers = number_columns(*first, ledger.unit, "data", "compute", "wait", "transfer", "exposed")
    table = narrow_table(*numbers, Column("", no_wrap=True, min_width=BAR_WIDTH))
    scale = 1000 / ledger.count
    for row in ledger.ranks:
        values = (row.total_s, row.data_s, row.compute_s, row.wait_s, row.transfer_s, row.exposed_s)
        place = (str(row.rank * nodes // len(ledger.ranks)), str(row.rank))[-len(first) :]
        table.add_row(*place, *(f"{value * scale:.2f}" for value in values), time_bar(row))
    said = [Text(line) for line in ledger_verdict(ledger, link)]
    return Group(Text(title, style="bold"), table, time_bar_legend(), *said)


def ledger_verdict(ledger: Ledger, link: SlowLink | None = None) -> list[str]:
    """Say from the ledger what cost the most time, and in a second line why, where that is known.

    `link`: the slowest, which is why transfer took so long.
    """
    total = sum(row.total_s for row in ledger.ranks)
    if len(ledger.ranks) < 2:
        return ["one rank: no time is lost between ranks"]
    if not total:
        return ["no step was logged"]
    lost = f"{ledger.lost_s / total:.0%} of the ranks' time was lost in communication"
    straggler = find_straggler(ledger)
    if straggler is not None and (straggler.stands_out or straggler.lost_share > 0.5):
        rank = f"rank {straggler.rank}"
        why = [f"{rank} is {straggler.why()}"] if straggler.phase else []
        if straggler.once:
            why = [f"{rank} {straggler.why()}"]
        return [f"{lost}; {straggler.lost_share:.0%} of that was waiting for {rank}", *why]
    if ledger.transfer_share > 0.5:
        size = format_bytes(ledger.nbytes / ledger.count)
        transfer = f"{ledger.transfer_share:.0%} of that was transfer ({size} per {ledger.unit})"
        return [f"{lost}; {transfer}", *([str(link)] if link else [])]
    return [f"{lost}; no single rank or link stands out"]


def summary_table(summary: dict[str, Any], run_path: str) -> Table:
    """Show a run's summary in the terminal, as far as it tells."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in metrics_of(summary).items():
        table.add_row(f"test {name}", format_metric(name, value))
    if summary.get("test_loss") is not None:
        table.add_row("test loss", f"{summary['test_loss']:.4f}")
    for name, value in summary.get("validation", {}).items():
        table.add_row(f"validation {name}", format_metric(name, value))
    if summary.get("loss") is not None:
        table.add_row("training loss", f"{summary['loss']:.4f}")
    if summary.get("train_s") is not None:
        table.add_row("steps", f"{summary['steps']} in {format_seconds(summary['train_s'])}")
    if summary.get("samples_per_s") is not None:
        table.add_row("samples/s", f"{summary['samples_per_s']:,.0f}")
    by = f" by {summary['strategy']}{_mesh(summary)}" if "strategy" in summary else ""
    table.add_row("ranks", f"{summary['world_size']}{by}")
    if "backend" in summary:
        table.add_row("backend", f"{summary['backend']}: {summary['backend_why']}")
    if best := summary.get("best"):
        scores = {name: value for name, value in best.items() if isinstance(value, float)}
        told = ", ".join(f"{name} {format_metric(name, v)}" for name, v in scores.items())
        table.add_row("best epoch", f"{told} at step {best['step']}: {best['checkpoint']}")
    if summary.get("collectives"):
        nbytes = format_bytes(summary.get("collective_bytes", 0))
        table.add_row("collectives", f"{summary['collectives']:,} of {nbytes} together")
    if summary.get("sent_bytes"):
        table.add_row("sent", f"{format_bytes(summary['sent_bytes'])} over the nodes' links")
    if "weights_sha256" in summary:
        table.add_row("weights", f"sha256 {summary['weights_sha256'][:16]}…")
    table.add_row("run", run_path)
    return table


def metrics_of(told: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the metrics on the test set by name, of a summary or the event of an epoch.

    Runs of before have their accuracy only.
    """
    accuracy = told.get("accuracy")
    found: Mapping[str, float] = told.get("metrics", {})
    return found or ({} if accuracy is None else {"accuracy": accuracy})


def _mesh(summary: dict[str, Any]) -> str:
    """Tell the axes of a mesh that has several."""
    axes = [f"{axis} {size}" for axis, size in summary.get("mesh", {}).items() if size > 1]
    return f" ({' × '.join(axes)})" if len(axes) > 1 else ""


def coverage_table(coverage: dict[str, Any]) -> RenderableType:
    """Show in the terminal which rank saw how much of the data, over the whole run."""
    seen = coverage["run"]
    title = f"who saw which samples ({coverage['kind']}, {counted(seen['steps'], 'step')})"
    names = list(seen["ranks"][0]["labels"] or {})
    by_column = len(names) <= _LABEL_COLUMNS
    labels = number_columns(*names) if by_column else [Column("label:draws")]
    table = narrow_table(*number_columns("rank", "draws", "distinct", "shared"), *labels, gap=1)
    for row in seen["ranks"]:
        overlaps = seen["overlap"][row["rank"]]
        shared = max((n for other, n in enumerate(overlaps) if other != row["rank"]), default=0)
        counts = {label: _short(count) for label, count in (row["labels"] or {}).items()}
        listed = " ".join(f"{label}:{count}" for label, count in counts.items())
        numbers = (str(row[key]) for key in ("rank", "draws", "distinct"))
        table.add_row(*numbers, str(shared), *(counts.values() if by_column else [listed]))
    notes = [
        f"{seen['seen_share']:.1%} of the samples were seen by some rank",
        "shared: distinct samples that one other rank saw too, at most",
    ]
    if names and by_column:
        notes.append(f"{names[0]} … {names[-1]}: draws by label")
    return Group(Text(title, style="bold"), table, Text("\n".join(notes)))


def _short(count: int) -> str:
    """Write a count in four characters at most: `9999`, `60k`, `1.2M`."""
    if count < 10_000:
        return str(count)
    if count < 999_500:
        return f"{count / 1000:.0f}k"
    millions = count / 1_000_000
    return f"{millions:.1f}M" if millions < 9.95 else f"{millions:.0f}M"


def format_known(
    form: str, value: float | None, missing: str = NOTHING, *, scale: float = 1
) -> str:
    """Format a number of a bench's table, which may not be known, times `scale`."""
    return missing if value is None else form.format(value * scale)


@dataclass(frozen=True)
class FittingColumn(Generic[Row]):
    """A column, and what it shows of a row."""

    name: str
    show: Callable[[Row], str]
    _: KW_ONLY
    justify: Literal["left", "right"] = "right"
    drop_order: int = KEPT
    """in a narrow terminal columns with 1 are dropped first, then those with 2; KEPT: never"""
    dropped_name: str = ""
    """what it is called where it was dropped, if not by its name"""


@dataclass(frozen=True, kw_only=True)
class FittingTable(Generic[Row]):
    """Rows, and those of their columns that a terminal has room for."""

    rows: Sequence[Row]
    columns: Sequence[FittingColumn[Row]]
    gap: int = 2
    elsewhere: str = "--json"
    """where all columns can be seen, besides in a wider terminal"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = list(self.columns)
        unlimited = options.update(width=_WIDER)
        for order in sorted({column.drop_order for column in shown} - {KEPT}):
            if console.measure(self._table(shown), options=unlimited).maximum <= options.max_width:
                break
            shown = [column for column in shown if column.drop_order != order]
        yield self._table(shown)
        dropped = [column for column in self.columns if column not in shown]
        if names := dict.fromkeys(column.dropped_name or column.name for column in dropped):
            yield Text(f"no room for {', '.join(names)}: see {self.elsewhere} or a wider terminal")

    def _table(self, columns: Sequence[FittingColumn[Row]]) -> Table:
        table = narrow_table(gap=self.gap)
        for column in columns:
            # where not even those that are kept fit, a number goes on in the next line
            table.add_column(column.name, justify=column.justify, overflow="fold")
        for row in self.rows:
            table.add_row(*(column.show(row) for column in columns))
        return table
