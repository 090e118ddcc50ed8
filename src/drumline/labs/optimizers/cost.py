"""What optimizers cost: ours beside torch's, the parts of a step, and memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from drumline.core.events import Event
from drumline.labs.chapter import Chapter
from drumline.labs.experiment import Results
from drumline.labs.optimizers.convergence import WIDTHS, runs_of
from drumline.labs.optimizers.experiments import CHUNK, WHOLE
from drumline.labs.optimizers.plots import draw_engines, draw_profile
from drumline.labs.repeats import (
    CurveRow,
    Runs,
    curve_rows,
    largest_difference,
    mean_of,
    pairs_of_seeds,
    ratio_of,
)
from drumline.report.intervals import Interval, compare, quartile_interval
from drumline.report.ledger.accounts import NS, warm_steps
from drumline.report.page.table import count, milliseconds, percent, plain, size, times, tiny
from drumline.report.runs.record import RunRecord

COPIES = {"gd": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""tensors as large as the weights that an optimizer keeps from step to step"""
_FLOAT = 4
_ROUNDING = 1e-3
"""losses nearer than this, over a whole run, differ by rounding"""


@dataclass(frozen=True, kw_only=True)
class EngineRow:
    """Ours and torch's, in pairs of one seed."""

    optimizer: str
    repeats: Annotated[int, plain]
    largest: Annotated[float, tiny]
    """difference of losses of any step"""
    same: Annotated[int, plain]
    """pairs that ended with the same weights to the last bit"""
    step_ratio: Annotated[Interval | None, times]
    update_ratio: Annotated[Interval | None, times]


def write_engines(chapter: Chapter, results: Results) -> None:
    """Write whether ours and torch's give the same curve, and what a step of each costs."""
    ours, theirs = runs_of(results), runs_of(results, engine="torch")
    rows = list(_engines(ours, theirs))
    if not rows:
        return
    engines = chapter.tabulate("engines", EngineRow, rows)
    torch_curves, our_curves = (
        chapter.tabulate(
            name,
            CurveRow,
            curve_rows({row.optimizer: runs[row.optimizer] for row in rows}, width=WIDTHS),
            key="optimizer",
        )
        for name, runs in (("torch_curves", theirs), ("our_curves", ours))
    )
    chapter.picture("engines", draw_engines, our_curves, torch_curves, engines)
    chapter.show(engines, "optimizer", "largest", "same", "repeats", "step_ratio", "update_ratio")
    for row in rows:
        exact = row.largest == 0 and row.same == row.repeats
        same = chapter.write("exact" if exact else "apart", row=row)
        if row.step_ratio is None:
            chapter.say("same", row=row, same=same)
        else:
            verdict = chapter.write(f"pace.{compare(row.step_ratio, 1)}")
            chapter.say("step", row=row, same=same, verdict=verdict)


def _engines(ours: Runs, theirs: Runs) -> Iterator[EngineRow]:
    for optimizer, records in ours.items():
        pairs = pairs_of_seeds(records, theirs.get(optimizer, []))
        if pairs:
            yield EngineRow(
                optimizer=optimizer,
                repeats=len(pairs),
                largest=max(largest_difference(one, two) for one, two in pairs),
                same=sum(_weights(one) == _weights(two) is not None for one, two in pairs),
                step_ratio=ratio_of(pairs, lambda record: record.median_step_s),
                update_ratio=ratio_of(pairs, _median_update),
            )


def _weights(record: RunRecord) -> str | None:
    return record.summary.get("weights_sha256")


def _median_update(record: RunRecord) -> float | None:
    """Return the seconds that moving the weights takes in a warm step."""
    steps = [ranks[0] for ranks in warm_steps(record.events)]
    found = [event["update"] for event in steps if "update" in event]  # older runs lack it
    return statistics.median(found) * NS if found else None


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A step of an optimizer, or of GD with all samples at once; medians, of memory the mean."""

    optimizer: str
    samples: Annotated[int | None, count]
    step_ms: Annotated[Interval | None, milliseconds]
    data_ms: Annotated[float | None, milliseconds]
    compute_ms: Annotated[float | None, milliseconds]
    communication_ms: Annotated[float | None, milliseconds]
    update_ms: Annotated[float | None, milliseconds]
    peak_bytes: Annotated[Interval | None, size]
    state_bytes: Annotated[int | None, size]

    def share(self, part_ms: float | None) -> float:
        """Return the share of a step that one of its parts takes."""
        return 0.0 if part_ms is None or self.step_ms is None else part_ms / self.step_ms.middle


def write_profile(chapter: Chapter, results: Results) -> None:
    """Write where the time of a step goes, and what memory it takes."""
    runs = runs_of(results)
    if not runs:
        return
    whole = results.record(WHOLE)
    cases = {**runs, **({WHOLE: [whole]} if whole is not None and whole.curve else {})}
    profile = chapter.tabulate(
        "profile", ProfileRow, (_profile(case, records) for case, records in cases.items())
    )
    chapter.picture("profile", draw_profile, profile, chunk=CHUNK)
    chapter.show(
        profile, "optimizer", "samples", "step_ms", "update_ms", "peak_bytes", "state_bytes"
    )
    rows = [row for row in profile.records if row.optimizer != WHOLE]
    _say_update(chapter, rows)
    _say_communication(chapter, rows)
    for row in rows:
        if row.state_bytes:
            copies = COPIES[row.optimizer]
            if copies == 1:
                chapter.say("state.one", row=row)
            else:
                chapter.say("state.more", row=row, copies=copies)
    gd, at_once = (profile.where(optimizer=name) for name in ("gd", WHOLE))
    if gd and at_once:
        _say_whole(chapter, gd[0], at_once[0], pairs_of_seeds(runs["gd"], cases[WHOLE]))


def _profile(case: str, records: Sequence[RunRecord]) -> ProfileRow:
    steps = [ranks for record in records for ranks in warm_steps(record.events)]
    totals = [1000 * took for record in records for took in record.step_s]
    parameters = records[0].summary.get("parameters")
    return ProfileRow(
        optimizer=case,
        samples=sum(event["samples"] for event in steps[0]) if steps else None,
        step_ms=quartile_interval(totals) if totals else None,
        **_parts([ranks[0] for ranks in steps]),
        peak_bytes=mean_of(float(max(one.peak_bytes)) for one in records if one.peak_bytes),
        state_bytes=None if parameters is None else COPIES.get(case, 0) * _FLOAT * parameters,
    )


def _parts(steps: Sequence[Event]) -> dict[str, float | None]:
    """Return the medians of the parts of a rank's steps, in milliseconds.

    Communication is what nothing hid; one rank alone has none.
    """
    if not steps or "update" not in steps[0]:  # older runs lack it
        return dict.fromkeys(("data_ms", "compute_ms", "communication_ms", "update_ms"))
    values = {
        "data": [event["data"] for event in steps],
        "communication": [
            sum(until - since for since, until in event["blocked"]) for event in steps
        ],
        "update": [event["update"] for event in steps],
    }
    values["compute"] = [
        event["total"] - sum(parts) for event, *parts in zip(steps, *values.values(), strict=True)
    ]
    return {f"{part}_ms": 1000 * NS * statistics.median(found) for part, found in values.items()}


def _say_update(chapter: Chapter, rows: Sequence[ProfileRow]) -> None:
    """Compare the updates, the one part of a step in which optimizers differ."""
    known = [(row, row.update_ms) for row in rows if row.update_ms is not None]
    if len(known) < 2:
        return
    dear, dear_ms = max(known, key=lambda pair: pair[1])
    cheap, cheap_ms = min(known, key=lambda pair: pair[1])
    chapter.say(
        "update",
        dear=dear,
        cheap=cheap,
        ratio=chapter.found(
            f"update of {dear.optimizer} over {cheap.optimizer}",
            dear_ms / cheap_ms,
            times,
            of="profile: update_ms",
        ),
        share=chapter.found(
            f"share of the update in a step of {dear.optimizer}",
            dear.share(dear_ms),
            percent,
            of="profile: update_ms, step_ms",
        ),
    )


def _say_communication(chapter: Chapter, rows: Sequence[ProfileRow]) -> None:
    """Tell what the ranks of several nodes pay for averaging their gradients."""
    told = [row for row in rows if row.communication_ms]
    if not told:
        return
    ends = {
        "least": min(told, key=lambda row: row.share(row.communication_ms)),
        "most": max(told, key=lambda row: row.share(row.communication_ms)),
    }
    shares = {
        f"{end}_share": chapter.found(
            f"share of communication in a step of {row.optimizer}",
            row.share(row.communication_ms),
            percent,
            of="profile: communication_ms, step_ms",
        )
        for end, row in ends.items()
    }
    chapter.say("communication", **ends, **shares)


def _say_whole(
    chapter: Chapter,
    chunks: ProfileRow,
    whole: ProfileRow,
    pairs: Sequence[tuple[RunRecord, RunRecord]],
) -> None:
    """Tell what computing the full batch at once costs, and whether it changes anything."""
    if not pairs or chunks.peak_bytes is None or whole.peak_bytes is None:
        return
    chunked, at_once = pairs[0]
    gap = largest_difference(chunked, at_once)
    chapter.say(
        "whole.rounding" if gap < _ROUNDING else "whole.more",
        whole=whole,
        chunks=chunks,
        ratio=chapter.found(
            "memory of GD at once over chunks",
            whole.peak_bytes.middle / chunks.peak_bytes.middle,
            times,
            of="profile: peak_bytes",
        ),
        gap=chapter.found(
            "largest difference of losses, GD at once against chunks",
            gap,
            tiny,
            of=f"runs {chunked.name} and {WHOLE}",
        ),
    )
