"""The times of one run of `drumline bench scaling`, read from the directory that it left.

Where the lost time went is told in the ranks' time, which is what more ranks cost. n ranks have n
steps' time for every step; what the smallest count spent on the same work is not lost, the rest is:

    n ranks    │ compute              │ data │ wait │ transfer │ other │    × n
    smallest   │ compute         │ data │                                  × its ranks × the work
                                 └ lost, by what it was spent on ┘

*other* is what a rank was between two steps while another was in one, so that the parts add up to
the time of a step, and all that was lost is 1 − efficiency, but for medians and means.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from drumline.core.errors import UsageError
from drumline.core.events import Event
from drumline.core.rundir import RunDir
from drumline.report.ledger import compute_ledger, step_seconds, warm_steps
from drumline.spec.run_spec import RunSpec

_WHOLE = 0.95
"""of a batch: a step with less is the last of an epoch, which has what is left"""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a step is made of: seconds per step, or shares; means over ranks and steps."""

    compute: float
    data: float
    wait: float
    """exposed: nothing was computed meanwhile; so is the next"""
    transfer: float
    other: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.compute + self.data + self.wait + self.transfer + self.other


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """One run."""

    steps_s: list[float]
    """until the last rank was done, without the first step and without short ones"""
    parts: Parts
    backend: str
    on_cpu: bool
    path: str

    @property
    def median_s(self) -> float:
        """The run's time for a step."""
        return statistics.median(self.steps_s)


def read_times(run: RunDir, spec: RunSpec) -> RunTimes:
    """Read the times of a finished run.

    Raises:
        UsageError: the data have not enough samples for one step.
    """
    events = whole_steps(run.read_rank_events(spec.world_size), batch=spec.data.batch)
    steps_s = step_seconds(warm_steps(events))
    ledger = compute_ledger(events)
    per_step = 1 / (ledger.steps * len(ledger.ranks))
    summed = {
        "compute": sum(row.compute_s for row in ledger.ranks),
        "data": sum(row.data_s for row in ledger.ranks),
        "wait": sum(row.exposed_wait_s for row in ledger.ranks),
        "transfer": sum(row.exposed_transfer_s for row in ledger.ranks),
    }
    means = {name: seconds * per_step for name, seconds in summed.items()}
    between = statistics.fmean(steps_s) - sum(row.total_s for row in ledger.ranks) * per_step
    setup = next((event for event in events[0] if event["event"] == "setup"), {})
    return RunTimes(
        steps_s=steps_s,
        parts=Parts(**means, other=between),
        backend=(run.read_json("summary.json") or {})["backend"],
        on_cpu=str(setup.get("device", "cpu")).startswith("cpu"),
        path=str(run.path),
    )


def whole_steps(events: Sequence[Sequence[Event]], *, batch: int) -> list[list[Event]]:
    """Leave out the steps that have fewer samples than a batch: they say nothing of its time.

    Raises:
        UsageError: no step has as many.
    """
    samples: dict[int, int] = {}
    for log in events:
        for event in log:
            if event["event"] == "step":
                samples[event["step"]] = samples.get(event["step"], 0) + event["samples"]
    most = max(samples.values())
    if most < _WHOLE * batch:
        raise UsageError(
            f"a step has {most} samples at most, not {batch}, since the data have no more; "
            f"set a smaller batch, fewer ranks, or mode=strong"
        )
    return [
        [
            event
            for event in log
            if event["event"] != "step" or samples[event["step"]] >= _WHOLE * most
        ]
        for log in events
    ]


def mean_parts(runs: Iterable[RunTimes]) -> Parts:
    """Return what a step is made of, over all rounds."""
    names = [field.name for field in fields(Parts)]
    every = [times.parts for times in runs]
    return Parts(**{name: statistics.fmean(getattr(one, name) for one in every) for name in names})


def lost_shares(parts: Parts, base: Parts, *, times: float, work: float) -> Parts:
    """Return which share of the ranks' time is lost, and on what.

    Args:
        parts: of a step.
        base: the same of the smallest count.
        times: how many times as many ranks there are.
        work: how many times as much a step is.
    """
    names = [field.name for field in fields(Parts)]
    whole = times * parts.total
    return Parts(
        **{
            name: (times * getattr(parts, name) - work * getattr(base, name)) / whole
            for name in names
        }
    )
