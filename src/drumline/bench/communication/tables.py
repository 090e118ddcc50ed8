"""Tables of collectives and aggregation, for a terminal of 80 columns; narrower ones get fewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.communication.aggregation import AggregationRow
from drumline.bench.communication.collectives import CollectiveFit, CollectiveRow
from drumline.bench.fitting_table import KEPT, FittingColumn, FittingTable
from drumline.core.formatting import format_size

_MOST_RANKS = 4


def _format_time(seconds: float) -> str:
    """Write a benched time of microseconds to seconds with three digits, in ms."""
    return f"{seconds * 1e3:.3g}" if seconds < 0.9995 else f"{seconds * 1e3:.0f}"


def collectives_table(rows: Sequence[CollectiveRow]) -> RenderableType:
    """Show `bench collectives`' rows by size and rival; times are the slowest rank's."""
    shaped = any(row.link_share is not None for row in rows)
    counts = len({row.ranks for row in rows}) > 1

    def column(
        name: str, write: Callable[[CollectiveRow], str], leaves: int = KEPT
    ) -> FittingColumn:
        return FittingColumn(name=name, cells=[write(row) for row in rows], leaves=leaves)

    columns = [
        FittingColumn(name="size", cells=_sizes(rows)),
        FittingColumn(name="algorithm", cells=[row.algorithm for row in rows], justify="left"),
        FittingColumn(name="on", cells=[row.backend for row in rows], justify="left"),
        *([column("ranks", lambda row: str(row.ranks))] if counts else []),
        column("ms", lambda row: _format_time(row.median_s)),
        column("quartiles", _quartiles, leaves=5),
        column("alg", lambda row: _bandwidth(row.algorithm_bandwidth), leaves=2),
        column("bus", lambda row: _bandwidth(row.bus_bandwidth), leaves=4),
        column("wire", _wire, leaves=1),
        *([column("link", lambda row: _share(row.link_share), leaves=6)] if shaped else []),
        column("pred.", lambda row: _signed(row.prediction_error), leaves=3),
    ]
    gap = 1 if shaped or counts else 2
    table = FittingTable(columns=columns, gap=gap, elsewhere="--json, --csv")
    notes = [_legend(rows[0], shaped), *_rounded(rows)]
    return Group(Text(collectives_title(rows), style="bold"), table, Text("\n".join(notes)))


def fits_table(fits: Sequence[CollectiveFit]) -> RenderableType:
    """Show `bench collectives`' fits: what a message costs by each rival, what a byte adds."""
    betas = [fit.beta_s_per_byte for fit in fits]
    errors = [(fit.alpha_error_s, fit.beta_error_s_per_byte) for fit in fits]
    alpha_errors = ["?" if error is None else f"{error * 1e6:.0f}" for error, _ in errors]
    beta_errors = ["?" if error is None else f"{error * 1e9:.2g}" for _, error in errors]
    columns = [
        FittingColumn(name="algorithm", cells=[fit.algorithm for fit in fits], justify="left"),
        FittingColumn(name="on", cells=[fit.backend for fit in fits], justify="left"),
        FittingColumn(name="ranks", cells=[str(fit.ranks) for fit in fits], leaves=3),
        FittingColumn(name="alpha µs", cells=[f"{fit.alpha_s * 1e6:.0f}" for fit in fits]),
        FittingColumn(name="±", cells=alpha_errors, leaves=2, told="the errors (±)"),
        FittingColumn(name="beta ns/B", cells=[f"{beta * 1e9:.3g}" for beta in betas]),
        FittingColumn(name="±", cells=beta_errors, leaves=2, told="the errors (±)"),
        FittingColumn(
            name="that is MB/s",
            cells=[f"{1e-6 / beta:,.0f}" if beta else "" for beta in betas],
            leaves=1,
            told="MB/s",
        ),
    ]
    table = FittingTable(columns=columns)
    note = (
        "fitted to all sizes: time = alpha · rounds + beta · bytes on the critical path\n"
        "(one round where only the backend knows the messages, as by native)"
    )
    return Group(Text("what a message costs", style="bold"), table, Text(note))


def aggregation_table(rows: Sequence[AggregationRow]) -> RenderableType:
    """Show `bench aggregation`'s steps, and what each rank waits and transfers."""
    ranks = sorted({row.rank for row in rows})
    shown = ranks if len(ranks) <= _MOST_RANKS else []
    parts: list[RenderableType] = []
    for situation in dict.fromkeys(row.situation for row in rows):
        own = [row for row in rows if row.situation == situation]
        names = [f"rank {rank}" for rank in shown] or ["least", "most"]
        cells: list[list[str]] = []
        for kind in dict.fromkeys(row.kind for row in own):
            of_kind = [row for row in own if row.kind == kind]
            even = next((row.step_ms for row in rows if _is_even(row, kind)), None)
            step = of_kind[0].step_ms
            lost = [row.wait_ms + row.transfer_ms for row in of_kind]
            ends = shown or [lost.index(min(lost)), lost.index(max(lost))]
            own_parts = [_split(of_kind[rank]) for rank in ends]
            cells.append([kind, f"{step:.1f}", f"{step / even:.2f}" if even else "", *own_parts])
        heads = ["strategy", "step", "× even", *names]
        columns = [
            FittingColumn(
                name=name,
                cells=column,
                justify="left" if number == 0 else "right",
                leaves=len(heads) - number if number > 2 else KEPT,  # the last rank first
            )
            for number, (name, column) in enumerate(
                zip(heads, zip(*cells, strict=True), strict=True)
            )
        ]
        table = FittingTable(columns=columns, elsewhere="--json, --csv")
        parts += [Text(situation, style="bold"), table, Text()]
    note = (
        "ms per step: wait + transfer of each rank. Wait: until the last rank arrives\n"
        "at a bucket; transfer: after that. step: the slowest rank's median, with compute."
    )
    return Group(*parts, Text(note))


def _is_even(row: AggregationRow, kind: str) -> bool:
    return row.situation == "even" and row.kind == kind


def _split(row: AggregationRow) -> str:
    return f"{row.wait_ms:.1f}+{row.transfer_ms:.1f}"


def _sizes(rows: Sequence[CollectiveRow]) -> list[str]:
    """The size that was asked for, in the first row of each group."""
    groups = [(row.ranks, row.asked_size) for row in rows]
    return [
        "" if number and groups[number - 1] == group else format_size(group[1])
        for number, group in enumerate(groups)
    ]


def _rounded(rows: Sequence[CollectiveRow]) -> list[str]:
    """Say what was measured where it is not what was asked for, by number of ranks."""
    lines: dict[int, dict[int, str]] = {}
    for row in rows:
        asked, size = row.asked_size, row.size
        if asked != size:
            rounded = f"{format_size(size)} for {format_size(asked)}"
            lines.setdefault(row.ranks, {})[asked] = rounded
    return [
        f"measured, so that {ranks} ranks have equal parts: {', '.join(sizes.values())}."
        for ranks, sizes in lines.items()
    ]


def _quartiles(row: CollectiveRow) -> str:
    return f"{_format_time(row.low_s)}–{_format_time(row.high_s)}"


def _wire(row: CollectiveRow) -> str:
    return "" if row.wire_bytes is None else _short(max(row.wire_bytes))


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.0%}"


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


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _short(count: int) -> str:
    """Write a count of bytes in five characters: `812`, `98.3k`, `50.3M`."""
    for unit, scale in (("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g}{unit}"
    return str(count)
