"""Tables of collectives and aggregation for a terminal, and their figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.communication.aggregation import AggregationRow
from drumline.bench.communication.collectives import CollectiveFit, CollectiveRow
from drumline.core.formatting import format_size
from drumline.report.intervals import Interval
from drumline.report.plots import FigureStyle, draw_rank_bars
from drumline.report.tables import KEPT, FittingColumn, FittingTable, format_known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_RANKS = 4


def _format_time(seconds: float) -> str:
    """Write a benched time of microseconds to seconds with three digits, in ms."""
    return f"{seconds * 1e3:.3g}" if seconds < 0.9995 else f"{seconds * 1e3:.0f}"


def collectives_table(rows: Sequence[CollectiveRow]) -> RenderableType:
    """Show `bench collectives`' rows by size and rival; times are the slowest rank's."""
    shaped = any(row.link_share is not None for row in rows)
    counts = len({row.ranks for row in rows}) > 1
    firsts = {(row.ranks, row.asked_size): row for row in reversed(rows)}

    def size(row: CollectiveRow) -> str:
        """Return the size that was asked for, in the first row of each group."""
        first = firsts[row.ranks, row.asked_size]
        return format_size(row.asked_size) if first is row else ""

    columns: list[FittingColumn[CollectiveRow]] = [
        FittingColumn("size", size),
        FittingColumn("algorithm", lambda row: row.algorithm, justify="left"),
        FittingColumn("on", lambda row: row.backend, justify="left"),
        FittingColumn("ranks", lambda row: str(row.ranks)),
        FittingColumn("ms", lambda row: _format_time(row.median_s)),
        FittingColumn("quartiles", _quartiles, drop_order=5),
        FittingColumn("alg", lambda row: _bandwidth(row.algorithm_bandwidth), drop_order=2),
        FittingColumn("bus", lambda row: _bandwidth(row.bus_bandwidth), drop_order=4),
        FittingColumn("wire", _wire, drop_order=1),
        FittingColumn("link", lambda row: format_known("{:.0%}", row.link_share, ""), drop_order=6),
        FittingColumn(
            "pred.", lambda row: format_known("{:+.0%}", row.prediction_error, ""), drop_order=3
        ),
    ]
    hidden = {"ranks": not counts, "link": not shaped}
    table = FittingTable(
        rows=rows,
        columns=[column for column in columns if not hidden.get(column.name)],
        gap=1 if shaped or counts else 2,
        elsewhere="--json, --csv",
    )
    notes = [_legend(rows[0], shaped), *_rounded(rows)]
    return Group(Text(collectives_title(rows), style="bold"), table, Text("\n".join(notes)))


def fits_table(fits: Sequence[CollectiveFit]) -> RenderableType:
    """Show `bench collectives`' fits: what a message costs by each rival, what a byte adds."""
    micro = partial(format_known, "{:.0f}", missing="?", scale=1e6)
    nano = partial(format_known, "{:.2g}", missing="?", scale=1e9)

    def megabytes_per_s(fit: CollectiveFit) -> str:
        return f"{1e-6 / fit.beta_s_per_byte:,.0f}" if fit.beta_s_per_byte else ""

    errors = "the errors (±)"
    columns: list[FittingColumn[CollectiveFit]] = [
        FittingColumn("algorithm", lambda fit: fit.algorithm, justify="left"),
        FittingColumn("on", lambda fit: fit.backend, justify="left"),
        FittingColumn("ranks", lambda fit: str(fit.ranks), drop_order=3),
        FittingColumn("alpha µs", lambda fit: f"{fit.alpha_s * 1e6:.0f}"),
        FittingColumn("±", lambda fit: micro(fit.alpha_error_s), drop_order=2, dropped_name=errors),
        FittingColumn("beta ns/B", lambda fit: f"{fit.beta_s_per_byte * 1e9:.3g}"),
        FittingColumn(
            "±", lambda fit: nano(fit.beta_error_s_per_byte), drop_order=2, dropped_name=errors
        ),
        FittingColumn("that is MB/s", megabytes_per_s, drop_order=1, dropped_name="MB/s"),
    ]
    note = (
        "fitted to all sizes: time = alpha · rounds + beta · bytes on the critical path\n"
        "(one round where only the backend knows the messages, as by native)"
    )
    table = FittingTable(rows=fits, columns=columns)
    return Group(Text("what a message costs", style="bold"), table, Text(note))


def aggregation_table(rows: Sequence[AggregationRow]) -> RenderableType:
    """Show `bench aggregation`'s steps, and what each rank waits and transfers."""
    ranks = sorted({row.rank for row in rows})
    shown = ranks if len(ranks) <= _MOST_RANKS else []
    own_heads = [f"rank {rank}" for rank in shown] or ["least", "most"]
    heads = ["strategy", "step", "× even", *own_heads]
    columns = [
        FittingColumn(
            name,
            itemgetter(number),
            justify="left" if number == 0 else "right",
            drop_order=len(heads) - number if number > 2 else KEPT,  # the last rank first
        )
        for number, name in enumerate(heads)
    ]
    even = {row.kind: row.step_ms for row in rows if row.situation == "even"}
    parts: list[RenderableType] = []
    for situation in dict.fromkeys(row.situation for row in rows):
        own = [row for row in rows if row.situation == situation]
        cells: list[list[str]] = []
        for kind in dict.fromkeys(row.kind for row in own):
            of_kind = [row for row in own if row.kind == kind]
            step = of_kind[0].step_ms
            lost = [row.wait_ms + row.transfer_ms for row in of_kind]
            ends = shown or [lost.index(min(lost)), lost.index(max(lost))]
            own_parts = [f"{of_kind[k].wait_ms:.1f}+{of_kind[k].transfer_ms:.1f}" for k in ends]
            over_even = f"{step / even[kind]:.2f}" if even.get(kind) else ""
            cells.append([kind, f"{step:.1f}", over_even, *own_parts])
        table = FittingTable(rows=cells, columns=columns, elsewhere="--json, --csv")
        parts += [Text(situation, style="bold"), table, Text()]
    note = (
        "ms per step: wait + transfer of each rank. Wait: until the last rank arrives\n"
        "at a bucket; transfer: after that. step: the slowest rank's median, with compute."
    )
    return Group(*parts, Text(note))


def _rounded(rows: Sequence[CollectiveRow]) -> list[str]:
    """Say what was measured where it is not what was asked for, by number of ranks."""
    lines: dict[int, dict[int, str]] = {}
    for row in rows:
        if row.asked_size != row.size:
            rounded = f"{format_size(row.size)} for {format_size(row.asked_size)}"
            lines.setdefault(row.ranks, {})[row.asked_size] = rounded
    return [
        f"measured, so that {ranks} ranks have equal parts: {', '.join(sizes.values())}."
        for ranks, sizes in lines.items()
    ]


def _quartiles(row: CollectiveRow) -> str:
    return f"{_format_time(row.low_s)}–{_format_time(row.high_s)}"


def _wire(row: CollectiveRow) -> str:
    return "" if row.wire_bytes is None else _short(max(row.wire_bytes))


def collectives_title(rows: Sequence[CollectiveRow]) -> str:
    """Return the title of `bench collectives`: which collective, on how many ranks."""
    where = f" on {rows[0].nodes} nodes" if rows[0].nodes > 1 else ""
    counts = " and ".join(map(str, sorted({row.ranks for row in rows})))
    return f"{rows[0].collective}, {counts} ranks{where}"


def _legend(row: CollectiveRow, shaped: bool) -> str:
    wire = "what the busiest node sent" if row.nodes > 1 else "what crossed the loopback"
    lines = [
        "ms: median of the slowest rank. alg, bus: nccl-tests' bandwidths in MB/s.",
        f"wire: {wire}, in bytes, as the interface counts.",
        "pred.: alpha and beta fitted to the other sizes, against the measured time.",
    ]
    if shaped:
        lines.insert(2, "link: share of the least time that the busiest link allows the algorithm.")
    return "\n".join(lines)


def _bandwidth(bytes_per_s: float) -> str:
    megabytes = bytes_per_s / 1e6
    return f"{megabytes:.0f}" if megabytes >= 9.95 else f"{megabytes:.1f}"


def _short(count: int) -> str:
    """Write a count of bytes in five characters: `812`, `98.3k`, `50.3M`."""
    for unit, scale in (("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g}{unit}"
    return str(count)


def draw_collectives(style: FigureStyle, rows: Sequence[CollectiveRow]) -> Figure:
    """Draw `bench collectives`' figure: time over size, both logarithmic, a line per rival."""
    figure = style.figure(width=8, height=4.8)
    axes = figure.subplots()
    lines: dict[tuple[str, str, int], list[CollectiveRow]] = {}
    several = len({row.ranks for row in rows}) > 1
    for row in rows:
        lines.setdefault((row.algorithm, row.backend, row.ranks), []).append(row)
    for number, ((algorithm, backend, ranks), own) in enumerate(lines.items()):
        sizes = [row.asked_size for row in own]
        times = [Interval(middle=row.median_s, low=row.low_s, high=row.high_s) for row in own]
        label = f"{algorithm} on {backend}" + (f", {ranks} ranks" if several else "")
        style.points(axes, sizes, times, number=number, scale=1e3, markersize=5, label=label)
    sizes = sorted({row.asked_size for row in rows})
    style.scale_sizes(axes, {size: format_size(size) for size in sizes}, rotation=30)
    y = "time of the slowest rank (ms): median, quartiles"
    style.finish(axes, title=collectives_title(rows), x="size", y=y, legend=False)
    axes.legend()
    return figure


def draw_aggregation(style: FigureStyle, rows: Sequence[AggregationRow]) -> Figure:
    """Draw `bench aggregation`'s figure: per situation and strategy a bar of each rank's step."""
    situations = list(dict.fromkeys(row.situation for row in rows))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    ranks = sorted({row.rank for row in rows})
    figure = style.figure(width=8, height=1.2 + 2.6 * len(situations))
    panels = [row[0] for row in figure.subplots(len(situations), squeeze=False)]
    parts = {part: part for part in ("compute", "wait", "transfer")}
    for axes, situation in zip(panels, situations, strict=True):
        own = [row for row in rows if row.situation == situation]
        by_rank = [[row for row in own if row.rank == rank] for rank in ranks]
        draw_rank_bars(axes, by_rank, kinds, parts)
        axes.set_xticks(range(len(kinds)), kinds, rotation=20)
        style.finish(axes, title=situation, x="", y="ms per step", legend=False)
        axes.grid(visible=False, axis="x")
    title = f"a bar for each rank, {ranks[0]} … {ranks[-1]}"
    style.legend(figure, panels[0], columns=3, title=title)
    return figure
