"""A run as a trace: what every rank did when, in the JSON that Perfetto and Chrome open.

Two lines for each rank, all on one clock:

    rank 0   compute     │forward 0│forward 1│ waiting │backward 0│ …      the staircase
             messages          │send│            │receive│
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from drumline.core.events import Event

_COMPUTE, _MESSAGES = 0, 1
_NS_PER_US = 1000


def build_trace(
    events: Sequence[Sequence[Event]], *, first: int = 1, last: int | None = None
) -> dict[str, Any]:
    """Put the steps of all ranks on one clock, which begins with the first of them.

    Args:
        events: the event logs, in rank order.
        first: the first step to show.
        last: the last one; None: all.
    """
    chosen = [
        [
            event
            for event in log
            if event["event"] == "step" and first <= event["step"] <= (last or event["step"])
        ]
        for log in events
    ]
    zero = min((step["t"] for log in chosen for step in log), default=0)
    shown: list[dict[str, Any]] = []
    for rank, log in enumerate(chosen):
        shown += _names(rank)
        for step in log:
            shown += (
                {"ph": "X", "pid": rank, **each, "ts": (each["ts"] - zero) / _NS_PER_US}
                for each in _step(step)
            )
    return {"displayTimeUnit": "ms", "traceEvents": shown}


def _names(rank: int) -> Iterator[dict[str, Any]]:
    for line, name in ((_COMPUTE, "compute"), (_MESSAGES, "messages")):
        yield _name("thread_name", rank, name, tid=line)
    yield _name("process_name", rank, f"rank {rank}")
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}


def _name(what: str, rank: int, name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "args": {"name": name}, **more}


def _step(step: Event) -> Iterator[dict[str, Any]]:
    """Tell the pieces of one step, in ns."""
    began = step["t"]
    args = {"step": step["step"], "loss": step["loss"]}
    yield _piece(f"step {step['step']}", began, began + step["total"], _COMPUTE, args)
    yield _piece("data", began, began + step["data"], _COMPUTE)
    for kind, microbatch, chunk, since, until in step.get("work", ()):
        where = f", chunk {chunk}" if chunk else ""
        args = {"microbatch": microbatch, "chunk": chunk}
        yield _piece(f"{kind} {microbatch}{where}", since, until, _COMPUTE, args)
    for since, until in step["blocked"]:
        yield _piece("waiting", since, until, _COMPUTE)
    for op, nbytes, since, until, *ranks in step["spans"]:
        args = {"bytes": nbytes, **({"ranks": ranks[0]} if ranks and ranks[0] else {})}
        yield _piece(op, since, until, _MESSAGES, args)


def _piece(
    name: str, since: int, until: int, line: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "ts": since,
        "dur": max(0, until - since) / _NS_PER_US,
        "tid": line,
        "args": args or {},
    }
