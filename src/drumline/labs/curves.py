"""Curves of several runs of one thing, as sheets: means over seeds with 95 % intervals.

Losses are drawn on logarithmic axes and compared by factors, so theirs is the geometric mean. Of
seconds it is the median: one seed may have met a busy machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drumline.labs.columns import factor_cells, mean_cells
from drumline.report.interval import interval_names
from drumline.report.page.table import Table
from drumline.report.record import Point, RunRecord

Runs = Mapping[str, Sequence[RunRecord]]
"""runs by what they show; the runs of one differ in their seed alone"""


def curve_sheet(name: str, key: str, runs: Runs, *, width: int | Mapping[str, int]) -> Table:
    """Tabulate the training loss of each step.

    Args:
        name: of the sheet.
        key: the column that says what a row shows.
        runs: those to show.
        width: each loss is the mean of so many steps that end there, at the beginning of the last
            quarter of them; one number for all, or one for each.
    """
    columns = (key, "step", "samples", "seconds", *interval_names("loss"))
    table = Table(name=name, columns=columns)
    for what, records in runs.items():
        steps = width if isinstance(width, int) else width[what]
        curves = [smoothed(record.curve, steps) for record in records]
        for points in zip(*curves, strict=False):  # a run of fewer steps ends all
            _add_point(table, {key: what}, points)
    return table


def smoothed(curve: Sequence[Point], width: int) -> list[Point]:
    """Return a curve of means over the steps that end at each point.

    There are `width` of them, but never more than a quarter of the steps so far: where losses fall
    steeply, a mean over many would lag behind.
    """
    smooth = []
    for number, point in enumerate(curve, start=1):
        steps = max(1, min(width, number // 4))
        # each mean by itself: a running sum would forget all that follows a loss of 1e30
        mean = statistics.fmean(past.loss for past in curve[number - steps : number])
        smooth.append(replace(point, loss=mean))
    return smooth


def _add_point(table: Table, known: dict[str, str], points: Sequence[Point]) -> None:
    table.add(
        **known,
        step=points[0].step,
        samples=points[0].samples,
        seconds=statistics.median(point.seconds for point in points),
        **factor_cells("loss", [point.loss for point in points]),
    )


def score_sheet(name: str, key: str, runs: Runs) -> Table:
    """Tabulate the looks at the test set."""
    columns = (key, "step", "samples", "seconds", *interval_names("accuracy"))
    table = Table(name=name, columns=columns)
    for what, records in runs.items():
        for scores in zip(*(record.scores for record in records), strict=False):
            table.add(
                **{key: what},
                step=scores[0].step,
                samples=scores[0].samples,
                seconds=statistics.median(score.seconds for score in scores),
                **mean_cells("accuracy", [score.accuracy for score in scores], most=1.0),
            )
    return table


def largest_difference(first: RunRecord, second: RunRecord) -> float:
    """Return how far the losses of two runs ever lie apart, step by step.

    Raises:
        ValueError: they have no step in common.
    """
    pairs = zip(first.curve, second.curve, strict=False)
    return max(abs(a.loss - b.loss) for a, b in pairs)


def rows_of(table: Table, key: str, what: str) -> list[Mapping[str, Any]]:
    """Return the rows that show one thing, in order."""
    return [row for row in table.rows if row[key] == what]
