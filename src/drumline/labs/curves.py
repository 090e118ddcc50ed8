"""Curves of several runs of one thing, as sheets: the mean over seeds, and its 95 % interval."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from drumline.report.confidence import mean_interval
from drumline.report.page.sheet import Sheet
from drumline.report.record import Point, RunRecord

Runs = Mapping[str, Sequence[RunRecord]]
"""runs by what they show; the runs of one differ in their seed alone"""


def curve_sheet(name: str, key: str, runs: Runs, *, width: int) -> Sheet:
    """Tabulate the training loss of each step.

    Args:
        name: of the sheet.
        key: the column that says what a row shows.
        runs: those to show.
        width: each loss is the mean of so many steps that end there.
    """
    columns = (key, "step", "samples", "seconds", "loss", "loss_low", "loss_high")
    sheet = Sheet(name=name, columns=columns)
    for what, records in runs.items():
        curves = [record.smoothed(width) for record in records]
        for points in zip(*curves, strict=False):  # a run of fewer steps ends all
            _add_point(sheet, {key: what}, points)
    return sheet


def _add_point(sheet: Sheet, known: dict[str, str], points: Sequence[Point]) -> None:
    loss = mean_interval([point.loss for point in points])
    sheet.add(
        **known,
        step=points[0].step,
        samples=points[0].samples,
        seconds=statistics.fmean(point.seconds for point in points),
        loss=loss.mean,
        loss_low=loss.low,
        loss_high=loss.high,
    )


def score_sheet(name: str, key: str, runs: Runs) -> Sheet:
    """Tabulate the looks at the test set."""
    columns = (key, "step", "samples", "seconds", "accuracy", "accuracy_low", "accuracy_high")
    sheet = Sheet(name=name, columns=columns)
    for what, records in runs.items():
        for scores in zip(*(record.scores for record in records), strict=False):
            accuracy = mean_interval([score.accuracy for score in scores])
            sheet.add(
                **{key: what},
                step=scores[0].step,
                samples=scores[0].samples,
                seconds=statistics.fmean(score.seconds for score in scores),
                accuracy=accuracy.mean,
                accuracy_low=accuracy.low,
                accuracy_high=accuracy.high,
            )
    return sheet


def largest_difference(first: RunRecord, second: RunRecord) -> float:
    """Return how far the losses of two runs ever lie apart, step by step.

    Raises:
        ValueError: they have no step in common.
    """
    pairs = zip(first.curve, second.curve, strict=False)
    return max(abs(a.loss - b.loss) for a, b in pairs)


def rows_of(sheet: Sheet, key: str, what: str) -> list[Mapping[str, object]]:
    """Return the rows that show one thing, in order."""
    return [row for row in sheet.rows if row[key] == what]
