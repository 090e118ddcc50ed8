"""The rows of lab 1's tables: what its runs come to."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from drumline.core.rundir import Event
from drumline.labs import repeats
from drumline.labs.experiment import Results
from drumline.labs.optimizers import experiments as lab
from drumline.report.intervals import Interval, quartile_interval
from drumline.report.ledger.steps import NS, warm_steps
from drumline.report.page import table as form
from drumline.report.page.table import Table
from drumline.report.runs.record import RunRecord

WIDTHS = {name: 1 if name == "gd" else repeats.WIDTH for name in lab.OPTIMIZERS}
"""steps that a drawn loss is the mean of; GD's does not scatter"""
COPIES = {"gd": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""tensors as large as the weights that an optimizer keeps from step to step"""
GUESSING = math.log(10)
"""the loss of guessing among ten digits"""
_DIVERGED = 10 * GUESSING
"""a loss beyond this has diverged"""
_FLOAT = 4


def runs_of(results: Results, *, engine: str = "drumline") -> dict[str, list[RunRecord]]:
    """Return lab 1's finished runs of each optimizer."""
    names = {name: f"{name}{lab.ENGINES[engine]}" for name in lab.OPTIMIZERS}
    return results.runs(names, lab.plan(results.settings).repeats)


@dataclass(frozen=True, kw_only=True)
class EndRow:
    """Where an optimizer ended: means over seeds, of losses and times the geometric one."""

    optimizer: str
    lr: Annotated[float, form.plain]
    repeats: int
    steps: Annotated[int, form.count]
    samples: Annotated[int, form.count]
    accuracy: Annotated[Interval | None, form.points]
    test_loss: Annotated[Interval | None, form.plain]
    loss: Annotated[Interval | None, form.plain]
    train_s: Annotated[Interval | None, form.seconds]


def build_end_rows(runs: repeats.Runs) -> Iterator[EndRow]:
    """Give where the runs of each optimizer ended."""
    for optimizer, records in runs.items():
        last = records[0].curve[-1]
        smooth = [repeats.smoothed(record.curve, WIDTHS[optimizer]) for record in records]
        yield EndRow(
            optimizer=optimizer,
            lr=records[0].spec_values["optimizer"]["lr"],
            repeats=len(records),
            steps=last.step,
            samples=last.samples,
            accuracy=repeats.accuracy_of(records),
            test_loss=repeats.geometric_mean_of(one.summary.get("test_loss") for one in records),
            loss=repeats.geometric_mean_of(curve[-1].loss for curve in smooth if curve),
            train_s=repeats.geometric_mean_of(record.curve[-1].seconds for record in records),
        )


def _amount(value: float) -> str:
    return form.count(value) if float(value).is_integer() else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class EqualRow:
    """The loss of an optimizer where the shortest run ended, by steps, samples or seconds."""

    by: str
    at: Annotated[float, _amount]
    optimizer: str
    steps: Annotated[int, form.count]
    loss: Annotated[Interval, form.plain]


def build_equal_rows(curves: Table[repeats.CurveRow]) -> Iterator[EqualRow]:
    """Give the losses where the shortest run ended, by steps, samples and seconds."""
    for by in ("step", "samples", "seconds"):
        at = min(getattr(rows[-1], by) for rows in curves.groups("key").values())
        for optimizer, rows in curves.groups("key").items():
            *_, last = [None, *(row for row in rows if getattr(row, by) <= at)]
            if last is not None and last.loss is not None:
                step, loss = last.step, last.loss
                yield EqualRow(by=by, at=at, optimizer=optimizer, steps=step, loss=loss)


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """Ours and torch's, in pairs of one seed."""

    optimizer: str
    repeats: Annotated[int, form.plain]
    largest: Annotated[float, form.tiny]
    """difference of losses of any step"""
    same: Annotated[int, form.plain]
    """pairs that ended with the same weights to the last bit"""
    step_ratio: Annotated[Interval | None, form.times]
    update_ratio: Annotated[Interval | None, form.times]


def build_engine_rows(ours: repeats.Runs, theirs: repeats.Runs) -> Iterator[EngineRow]:
    """Compare our optimizers with torch's, where both have runs of the same seeds."""
    for optimizer, records in ours.items():
        pairs = repeats.pairs_of_seeds(records, theirs.get(optimizer, []))
        if pairs:
            yield EngineRow(
                optimizer=optimizer,
                repeats=len(pairs),
                largest=max(repeats.largest_difference(one, two) for one, two in pairs),
                same=sum(_same_weights(*pair) for pair in pairs),
                step_ratio=repeats.ratio_of(pairs, lambda record: record.median_step_s),
                update_ratio=repeats.ratio_of(pairs, _median_update),
            )


def _same_weights(one: RunRecord, two: RunRecord) -> bool:
    mine: str | None = one.summary.get("weights_sha256")
    return mine is not None and mine == two.summary.get("weights_sha256")


def _median_update(record: RunRecord) -> float | None:
    """Return the seconds that moving the weights takes in a warm step."""
    steps = [ranks[0] for ranks in warm_steps(record.logs)]
    found = [event["update"] for event in steps if "update" in event]  # older runs lack it
    return statistics.median(found) * NS if found else None


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A step of an optimizer, or of GD with all samples at once; medians, of memory the mean."""

    optimizer: str
    samples: Annotated[int | None, form.count]
    step_ms: Annotated[Interval | None, form.milliseconds]
    data_ms: Annotated[float | None, form.milliseconds]
    compute_ms: Annotated[float | None, form.milliseconds]
    communication_ms: Annotated[float | None, form.milliseconds]
    update_ms: Annotated[float | None, form.milliseconds]
    peak_bytes: Annotated[Interval | None, form.size]
    state_bytes: Annotated[int | None, form.size]

    def share(self, part_ms: float | None) -> float:
        """Return the share of a step that one of its parts takes."""
        return 0.0 if part_ms is None or self.step_ms is None else part_ms / self.step_ms.middle


def build_profile_row(case: str, records: Sequence[RunRecord]) -> ProfileRow:
    """Take the warm steps of all seeds apart."""
    steps = [ranks for record in records for ranks in warm_steps(record.logs)]
    totals = [1000 * took for record in records for took in record.step_s]
    parameters = records[0].summary.get("parameters")
    return ProfileRow(
        optimizer=case,
        samples=sum(event["samples"] for event in steps[0]) if steps else None,
        step_ms=quartile_interval(totals) if totals else None,
        **_parts([ranks[0] for ranks in steps]),
        peak_bytes=repeats.mean_of(float(max(one.peak_bytes)) for one in records if one.peak_bytes),
        state_bytes=None if parameters is None else COPIES.get(case, 0) * _FLOAT * parameters,
    )


def _parts(steps: Sequence[Event]) -> dict[str, float | None]:
    """Return the medians of the parts of a rank's steps, in milliseconds.

    Communication is what nothing hid; one rank alone has none.
    """
    if not steps or "update" not in steps[0]:  # older runs lack it
        return dict.fromkeys(("data_ms", "compute_ms", "communication_ms", "update_ms"))
    parts = {
        "data_ms": [event["data"] for event in steps],
        "communication_ms": [sum(end - start for start, end in one["blocked"]) for one in steps],
        "update_ms": [event["update"] for event in steps],
    }
    others = zip(*parts.values(), strict=True)
    computed = [event["total"] - sum(own) for event, own in zip(steps, others, strict=True)]
    parts["compute_ms"] = computed
    return {part: 1000 * NS * statistics.median(took) for part, took in parts.items()}


@dataclass(frozen=True, kw_only=True)
class RateRow:
    """Where a run with another learning rate stood, after as many epochs as the short runs have."""

    optimizer: str
    factor: float
    lr: Annotated[float, form.plain]
    steps: Annotated[int | None, form.count] = None
    loss: Annotated[float | None, form.plain] = None
    accuracy: Annotated[float | None, form.points] = None
    ended: str = "diverged"


def build_rate_rows(results: Results, of: lab.OptimizersPlan) -> Iterator[RateRow]:
    """Give where the runs of all learning rates stood; those that diverged have no numbers."""
    for optimizer in lab.OPTIMIZERS:
        for factor in of.factors:
            name = lab.rate_name(optimizer, factor)
            record = results.record(name)
            row = RateRow(
                optimizer=optimizer, factor=factor, lr=lab.learning_rate(optimizer, factor)
            )
            if record is not None and record.curve:
                yield _standing(row, record, of.length(optimizer, short=True))
            elif results.diverged(name):
                yield row


def _standing(row: RateRow, record: RunRecord, epochs: int) -> RateRow:
    scores = record.scores[:epochs]
    if not scores:
        return replace(row, ended="done")
    step, accuracy = scores[-1].step, scores[-1].accuracy
    smooth = repeats.smoothed(record.curve, WIDTHS[row.optimizer])
    loss = [point.loss for point in smooth if point.step <= step][-1]
    ended = "diverged" if loss > _DIVERGED else "done"
    return replace(row, steps=step, loss=loss, accuracy=accuracy, ended=ended)


@dataclass(frozen=True, kw_only=True)
class OrderRow:
    """The loss of a step, with the samples in one of the orders."""

    optimizer: str
    order: str
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class ScatterRow:
    """How far losses lie apart: means over the first steps of standard deviations over runs."""

    optimizer: str
    steps: Annotated[int, form.count]
    over_orders: Annotated[float | None, form.tiny]
    over_seeds: Annotated[float | None, form.tiny]
    rises: Annotated[float, form.percent]
    """share of the steps after which the loss was higher"""


def runs_by_order(results: Results) -> dict[str, dict[str, RunRecord]]:
    """Return lab 1's runs by optimizer, then by order, of optimizers that have several orders."""
    runs: dict[str, dict[str, RunRecord]] = {}
    for name in lab.ORDERED:
        found = {order: results.record(lab.order_name(name, order)) for order in lab.ORDERS}
        records = {order: record for order, record in found.items() if record is not None}
        if len(records) > 1:
            runs[name] = records
    return runs


def build_scatter_rows(
    by_order: Mapping[str, Mapping[str, RunRecord]], by_seed: repeats.Runs, steps: int
) -> Iterator[ScatterRow]:
    """Compare the scatter over orders of samples with that over seeds, in the first steps."""
    for optimizer, records in by_order.items():
        yield ScatterRow(
            optimizer=optimizer,
            steps=steps,
            over_orders=_deviation(list(records.values()), steps),
            over_seeds=_deviation(by_seed.get(optimizer, []), steps),
            rises=statistics.fmean(_rises(record, steps) for record in records.values()),
        )


def _deviation(records: Sequence[RunRecord], steps: int) -> float | None:
    """Return the mean over steps of the standard deviation over runs; the first step is left out.

    There all runs of one seed have the same weights.
    """
    if len(records) < 2:
        return None
    curves = [[point.loss for point in record.curve[1:steps]] for record in records]
    found = [statistics.stdev(losses) for losses in zip(*curves, strict=False)]
    return statistics.fmean(found) if found else None


def _rises(record: RunRecord, steps: int) -> float:
    pairs = list(itertools.pairwise(point.loss for point in record.curve[:steps]))
    return sum(after > before for before, after in pairs) / len(pairs) if pairs else 0.0
