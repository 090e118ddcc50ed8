"""`drumline bench scaling` in a terminal: tables, and what the numbers say in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.fitting_table import NOTHING, FittingColumn, FittingTable, format_known
from drumline.bench.model_parallel.display import milliseconds
from drumline.bench.scaling.rows import ScalingFit, ScalingRow
from drumline.bench.scaling.spec import ScalingSpec
from drumline.core.formatting import counted, listed
from drumline.report.intervals import Interval, Order, compare

_TITLES = {
    "strong": "strong scaling: all ranks together have the same batch",
    "weak": "weak scaling: each rank has the same batch",
}

_FAR = 10
"""an interval that reaches further says only that nothing is known"""


def scaling_table(rows: Sequence[ScalingRow], *, smallest: str) -> RenderableType:
    """Show `bench scaling`'s rows by mode, and its columns' meaning; `smallest`: the base."""
    parts: list[RenderableType] = []
    for mode in dict.fromkeys(row.mode for row in rows):
        own = [row for row in rows if row.mode == mode]
        parts += [Text(_TITLES[mode], style="bold"), _table(once_each(own)), Text("")]
    return Group(*parts, Text(_legend(smallest)))


def once_each(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """Return `bench scaling`'s rows of one mode, those that strategies share only once."""
    return list({row.case: row for row in rows}.values())


def _table(rows: Sequence[ScalingRow]) -> FittingTable[ScalingRow]:
    def strategy(row: ScalingRow) -> str:
        return row.case.removeprefix(row.mode).split("×")[0].strip()

    columns: list[FittingColumn[ScalingRow]] = [
        FittingColumn("strategy", strategy, justify="left"),
        FittingColumn("nodes", lambda row: str(row.nodes), leaves=4),
        FittingColumn("ranks", lambda row: str(row.ranks)),
        FittingColumn("batch", lambda row: str(row.batch), leaves=1),
        FittingColumn("ms", lambda row: milliseconds(row.median_s)),
        FittingColumn("±", lambda row: _wide(row.median_s, row.high_s), leaves=6),
        FittingColumn("speed-up", lambda row: format_known("{:.2f}×", row.speedup)),
        FittingColumn("±", lambda row: _wide(row.speedup, row.speedup_high), leaves=7),
        FittingColumn("eff.", lambda row: _share(row.efficiency)),
        FittingColumn("lost", lambda row: _share(row.lost), leaves=5),
        FittingColumn("compute", lambda row: _share(row.lost_compute), leaves=5),
        FittingColumn("wait", lambda row: _share(row.lost_wait), leaves=5),
        FittingColumn("transfer", lambda row: _share(row.lost_transfer), leaves=5),
        FittingColumn("data", lambda row: _share(row.lost_data), leaves=3),
    ]
    if len({row.nodes for row in rows}) == 1:
        columns = [column for column in columns if column.name != "nodes"]
    return FittingTable(rows=rows, columns=columns, gap=1, elsewhere="--json, --csv")


def _legend(smallest: str) -> str:
    return "\n".join(
        (
            "ms: a step of all ranks, median over rounds. eff.: speed-up per rank.",
            f"speed-up: over {smallest} in the same round, by samples per second.",
            "±: how far the 95 % interval reaches, by Student's t over rounds.",
            f"lost: share of the ranks' time beyond that of {smallest} for the same work:",
            "in compute that takes longer, waiting for ranks, transfer, fetching data.",
        )
    )


def _wide(middle: float | None, high: float | None) -> str:
    """Write how far an interval reaches; down it is as far, by the logarithm."""
    if middle is None or high is None or high == middle:
        return NOTHING
    return f"{high / middle - 1:.0%}" if high < _FAR * middle else f">{_FAR}×"


def _share(share: float | None) -> str:
    return format_known("{:.0%}", share).replace("-0%", "0%").replace("-", "−")


_LOSSES = {
    "lost_compute": "longer compute",
    "lost_wait": "waiting for other ranks",
    "lost_transfer": "transfer",
    "lost_data": "fetching data",
    "lost_other": "uneven ends of steps",
}
_SEEN = 0.005
"""shares that are less are not told"""
_OFF = 0.1
"""a fit that is off by more is no description of what was measured"""
_BUSY = 0.5
"""of the cores: with more to do than that, a machine has no room for what is measured"""
_SINGLE = "a share from one count besides the smallest does not tell whether the law holds"


def describe_notes(
    spec: ScalingSpec, rows: Sequence[ScalingRow], *, cores: int, load: float
) -> list[str]:
    """Say how to read `bench scaling`'s numbers; `load`: of the machine, before the first run."""
    notes = [*_what_base(spec), *_where(spec, rows, cores), *_how_often(spec, rows)]
    if load > _BUSY * cores:
        notes.append(
            f"the machine was busy before the first run (load {load:.1f} on "
            f"{counted(cores, 'core')}): what others did is in these numbers"
        )
    return notes


def _what_base(spec: ScalingSpec) -> Iterator[str]:
    if len(spec.counts) == 1:
        yield (
            f"one count only: nothing to hold it against, and no law to fit; name several, "
            f"e.g. {spec.varies}=1,2,4"
        )
    elif spec.base.ranks > 1:
        smallest = getattr(spec, spec.varies)[0]
        on = f" of {counted(spec.base.workers, 'rank')}" if spec.varies == "nodes" else ""
        missing = "" if smallest == 1 else f"no 1 among the {spec.varies}: "
        yield f"{missing}all is held against {counted(smallest, spec.varies[:-1])}{on}"


def _where(spec: ScalingSpec, rows: Sequence[ScalingRow], cores: int) -> Iterator[str]:
    threads = counted(spec.threads, "thread")
    yield (
        f"each rank computes with {threads}, at every count: else one with all {cores} cores would "
        f"be held against several that share them"
        if cores > 1
        else f"each rank computes with {threads}"
    )
    crowded = sorted({row.ranks for row in rows if row.crowded})
    if crowded:
        of = f" of {threads} each" if spec.threads > 1 else ""
        several = counted(crowded[0], "rank") if len(crowded) == 1 else f"{listed(crowded)} ranks"
        fitted = any(row.times > 1 and not row.crowded for row in rows)
        left_out = "; no law is fitted to them" if fitted else ""
        yield (
            f"{several}{of} on {counted(cores, 'core')}: they take turns, so that more ranks "
            f"cannot be faster; what they lose by it is told as compute and wait{left_out}"
        )
    for node in sorted(spec.slow_nodes):
        counts = [count for count in spec.nodes if count > max(1, node)]
        if counts != list(spec.nodes):
            yield f"node {node} is slow where it is one of several: with {listed(counts)} nodes"


def _how_often(spec: ScalingSpec, rows: Sequence[ScalingRow]) -> Iterator[str]:
    if spec.repeats == 1:
        yield "one round: nothing tells how sure the numbers are; set repeats=3 or more"
    missing = {row.case: row.rounds for row in rows if row.rounds < spec.repeats}
    for case, rounds in missing.items():
        yield f"{case} has {rounds} of {spec.repeats} rounds; the others failed"


def describe_losses(rows: Sequence[ScalingRow]) -> list[str]:
    """Say of each series of `bench scaling` where its time went at the largest count."""
    last = {(row.mode, row.kind): (row, row.lost) for row in rows if row.lost is not None}
    return [_loss(row, share) for row, share in last.values() if row.times > 1]


def _loss(row: ScalingRow, share: float) -> str:
    lost = f"{row.case}: {share:.0%} of the ranks' time is lost"
    if share <= 0:
        return f"{row.case}: no time is lost; a step takes {-share:.0%} less than its share"
    parts = {name: getattr(row, key) or 0.0 for key, name in _LOSSES.items()}
    more = {name: share for name, share in parts.items() if share >= _SEEN}
    less = {
        name.removeprefix("longer "): -share for name, share in parts.items() if share <= -_SEEN
    }
    told = f"{lost}: {_ranked(more)}" if more else lost
    return f"{told}; gained: {_ranked(less)}" if less else told


def _ranked(shares: Mapping[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in ranked)


def describe_fits(fits: Sequence[ScalingFit]) -> list[str]:
    """Say what share of work each series of `bench scaling` leaves serial, and how well it fits."""
    single = any(fit.points == 1 for fit in fits)
    return [*map(_describe_fit, fits), *([_SINGLE] if single else [])]


def _describe_fit(fit: ScalingFit) -> str:
    share, sure = percent(fit.share), ""
    serial = Interval(middle=fit.share, low=fit.share_low, high=fit.share_high)
    if fit.share_low is not None and fit.share_high is not None:
        sure = f" ({percent(fit.share_low)} to {percent(fit.share_high)})"
    told = f"{fit.law}, {fit.mode} {fit.kind}: serial share {share}{sure}"
    if fit.share < 0:
        cause = "larger caches" if compare(serial, 0) is Order.LESS else "caches, or noise"
        told += f", less than nothing: faster than the law allows, by {cause}"
    elif fit.share > 1:
        cause = "" if compare(serial, 1) is Order.MORE else "; or it is noise"
        told += f", more than everything: more ranks are slower, which no law knows of{cause}"
    elif fit.law == "Amdahl" and (fit.share if fit.share_low is None else fit.share_low) > _SEEN:
        told += f", so no number of ranks is faster than {1 / fit.share:.3g}×"
    if fit.crowded:
        told += "; ranks that take turns on cores count as serial here"
    elif fit.points > 1 and fit.error > _OFF:
        told += f"; it is off by {fit.error:.0%}, so the law does not describe this well"
    return told


def percent(share: float) -> str:
    """Write a share in `bench scaling`'s tables, with a true minus: `7.2 %`, `−4 %`."""
    points = 100 * share
    text = f"{points:.1f}" if abs(points) < 9.95 else f"{points:.0f}"
    return f"{text} %".replace("-", "−")
