"""What a bench of scaling says in sentences, made from its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumline.core.formatting import counted, listed
from drumline.core.scaling_bench import ScalingSpec
from drumline.report.interval import Interval, read_interval
from drumline.report.order import Order, compare

Values = Mapping[str, Any]
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


def tell_notes(spec: ScalingSpec, rows: Sequence[Values], *, cores: int, load: float) -> list[str]:
    """Say what must be known to read the numbers; `load`: of the machine, before the first run."""
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


def _where(spec: ScalingSpec, rows: Sequence[Values], cores: int) -> Iterator[str]:
    threads = counted(spec.threads, "thread")
    yield (
        f"each rank computes with {threads}, at every count: else one with all {cores} cores would "
        f"be held against several that share them"
        if cores > 1
        else f"each rank computes with {threads}"
    )
    crowded = sorted({row["ranks"] for row in rows if row["crowded"]})
    if crowded:
        of = f" of {threads} each" if spec.threads > 1 else ""
        several = counted(crowded[0], "rank") if len(crowded) == 1 else f"{listed(crowded)} ranks"
        fitted = any(row["times"] > 1 and not row["crowded"] for row in rows)
        left_out = "; no law is fitted to them" if fitted else ""
        yield (
            f"{several}{of} on {counted(cores, 'core')}: they take turns, so that more ranks "
            f"cannot be faster; what they lose by it is told as compute and wait{left_out}"
        )
    for node in sorted(spec.slow_nodes):
        counts = [count for count in spec.nodes if count > max(1, node)]
        if counts != list(spec.nodes):
            yield f"node {node} is slow where it is one of several: with {listed(counts)} nodes"


def _how_often(spec: ScalingSpec, rows: Sequence[Values]) -> Iterator[str]:
    if spec.repeats == 1:
        yield "one round: nothing tells how sure the numbers are; set repeats=3 or more"
    missing = {row["case"]: row["rounds"] for row in rows if row["rounds"] < spec.repeats}
    for case, rounds in missing.items():
        yield f"{case} has {rounds} of {spec.repeats} rounds; the others failed"


def tell_losses(rows: Sequence[Values]) -> list[str]:
    """Say of each series where its time went at the largest count."""
    last = {(row["mode"], row["kind"]): row for row in rows if row["lost"] is not None}
    return [_loss(row) for row in last.values() if row["times"] > 1]


def _loss(row: Values) -> str:
    lost = f"{row['case']}: {row['lost']:.0%} of the ranks' time is lost"
    if row["lost"] <= 0:
        return (
            f"{row['case']}: no time is lost; a step takes {-row['lost']:.0%} less than its share"
        )
    parts = {name: row[key] for key, name in _LOSSES.items()}
    more = {name: share for name, share in parts.items() if share >= _SEEN}
    less = {
        name.removeprefix("longer "): -share for name, share in parts.items() if share <= -_SEEN
    }
    told = f"{lost}: {_ranked(more)}" if more else lost
    return f"{told}; gained: {_ranked(less)}" if less else told


def _ranked(shares: Mapping[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{share:.0%} {name}" for name, share in ranked)


def tell_fits(fits: Sequence[Values]) -> list[str]:
    """Say what share of the work each series leaves serial, and how well that describes it."""
    single = any(fit["points"] == 1 for fit in fits)
    return [*map(_fit, fits), *([_SINGLE] if single else [])]


def _fit(fit: Values) -> str:
    share, sure = percent(fit["share"]), ""
    serial = read_interval(fit, "share")
    if fit["share_low"] is not None:
        sure = f" ({percent(fit['share_low'])} to {percent(fit['share_high'])})"
    told = f"{fit['law']}, {fit['mode']} {fit['kind']}: serial share {share}{sure}"
    if fit["share"] < 0:
        cause = "larger caches" if compare(serial, 0) is Order.LESS else "caches, or noise"
        told += f", less than nothing: faster than the law allows, by {cause}"
    elif fit["share"] > 1:
        cause = "" if compare(serial, 1) is Order.MORE else "; or it is noise"
        told += f", more than everything: more ranks are slower, which no law knows of{cause}"
    elif fit["law"] == "Amdahl" and _least(serial) > _SEEN:
        told += f", so no number of ranks is faster than {1 / fit['share']:.3g}×"
    if fit["crowded"]:
        told += "; ranks that take turns on cores count as serial here"
    elif fit["points"] > 1 and fit["error"] > _OFF:
        told += f"; it is off by {fit['error']:.0%}, so the law does not describe this well"
    return told


def _least(interval: Interval) -> float:
    return interval.middle if interval.low is None else interval.low


def percent(share: float) -> str:
    """Write a share with a true minus: `7.2 %`, `−4 %`."""
    points = 100 * share
    text = f"{points:.1f}" if abs(points) < 9.95 else f"{points:.0f}"
    return f"{text} %".replace("-", "−")
