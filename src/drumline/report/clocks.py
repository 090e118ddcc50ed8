"""The times of all ranks on one clock: rank 0's.

Ranks on one machine share its monotonic clock. On several machines each rank has noted how far its
clock is ahead of rank 0's (`drumline.comm.hosts`); that is taken off all its times here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from drumline.core.events import Event


def on_one_clock(logs: Sequence[Sequence[Event]]) -> Sequence[Sequence[Event]]:
    """Return the event logs of all ranks with their steps' times on rank 0's clock."""
    if not any(event.get("ahead_ns") for log in logs for event in log):
        return logs
    return [list(_shifted(log)) for log in logs]


def _shifted(log: Sequence[Event]) -> Iterator[Event]:
    ahead = 0
    for event in log:
        if event["event"] == "clock":  # once after each start
            ahead = event["ahead_ns"]
        yield _shift(event, ahead) if event["event"] == "step" and ahead else event


def _shift(step: Event, ahead: int) -> Event:
    moved: dict[str, Any] = {
        "blocked": [[since - ahead, until - ahead] for since, until in step["blocked"]],
        "spans": [
            [op, nbytes, since - ahead, until - ahead, *rest]
            for op, nbytes, since, until, *rest in step["spans"]
        ],
    }
    if "t" in step:
        moved["t"] = step["t"] - ahead
    if "work" in step:
        moved["work"] = [
            [kind, microbatch, chunk, since - ahead, until - ahead]
            for kind, microbatch, chunk, since, until in step["work"]
        ]
    return {**step, **moved}
