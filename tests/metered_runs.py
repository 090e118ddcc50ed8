"""Runs of scripts as their ranks log them, made up without running anything."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from drumline.core.nodes import NodePlan, address_of
from drumline.core.rundir import RunDir

MS = 10**6
SECOND = 1000 * MS
BUCKET = 1_000_000
Event = dict[str, Any]
SCRIPT = ["train.py", "--epochs", "3"]


def make_metered_run(
    path,
    logs: Sequence[Sequence[Event]],
    *,
    done: bool = True,
    sent: int = 5000,
    rates: Sequence[int] = (),
    script: Sequence[str] = SCRIPT,
) -> RunDir:
    """Leave what ranks with these logs would; `rates`: of simulated nodes' links."""
    run = RunDir.create("x", root=path.parent, exact=path)
    plans = [NodePlan(node=k, address=address_of(k), rate=rate) for k, rate in enumerate(rates)]
    network = {"network": {"nodes": [plan.to_json() for plan in plans]}} if plans else {}
    manifest = {"script": list(script), "started": "2026-11-18T10:00:00+00:00", "hosts": ["h"]}
    run.write_json("manifest.json", {**manifest, **network})
    for rank, log in enumerate(logs):
        begins = {"event": "start", "rank": rank, "attempt": 0, "pid": 1, "host": "h", "time": 1.0}
        backend = {"event": "backend", "backend": "gloo", "wanted": "gloo", "why": "it asked"}
        ends = {"event": "end", "step": 0, "time": 2.0, "sent": sent, "peak_bytes": 1000}
        events = [begins, backend, *log, *([ends] if done else [])]
        run.rank_events(rank).write_text("".join(json.dumps(each) + "\n" for each in events))
    if done:
        run.write_json("summary.json", {"world_size": len(logs), "time_s": 2.5})
    return run


def ddp_logs(
    *,
    ranks: int = 2,
    steps: int = 8,
    compute_ms: Callable[[int, int], float] = lambda _rank, _step: 20.0,
    data_ms: Callable[[int, int], float] = lambda _rank, _step: 1.0,
    transfer_ms: float = 2.0,
    samples: int | None = None,
) -> list[list[Event]]:
    """Log what ranks under DDP do: data, forward, backward, one all-reduce that blocks, update.

    Times are of (rank, step). Steps follow each other without a pause.
    """
    logs: list[list[Event]] = [[] for _ in range(ranks)]
    now = SECOND
    for step in range(1, steps + 1):
        loaded = [now + round(MS * data_ms(rank, step)) for rank in range(ranks)]
        arrived = [loaded[rank] + round(MS * compute_ms(rank, step)) for rank in range(ranks)]
        reduced = max(arrived) + round(MS * transfer_ms)
        ended = reduced + MS
        for rank, log in enumerate(logs):
            half = (loaded[rank] + arrived[rank]) // 2
            work = [["forward", 0, 0, loaded[rank], half], ["backward", 0, 0, half, arrived[rank]]]
            log.append(
                {
                    "event": "step",
                    "step": step,
                    "t": now,
                    "data": loaded[rank] - now,
                    "update": ended - reduced,
                    "total": ended - now,
                    "blocked": [[arrived[rank], reduced]],
                    "spans": [["all_reduce", BUCKET, arrived[rank], reduced, [], step, "0"]],
                    "work": work,
                    **({} if samples is None else {"samples": samples}),
                }
            )
        now = ended
    return logs


def loop_logs(
    *, seconds: int = 4, ranks: int = 2, slow: int | None = None, numbered: bool = True
) -> list[list[Event]]:
    """Log a bare loop: an all-reduce every 100 ms, of 4 ms; the `slow` rank comes 30 ms late.

    A stretch ends every second, and at another time on each rank.
    """
    spans: list[list[list[Any]]] = [[] for _ in range(ranks)]
    for number in range(10 * seconds):
        begin = number * 100 * MS + 50 * MS
        late = [begin + 30 * MS * (rank == slow) for rank in range(ranks)]
        for rank in range(ranks):
            known = [number, "0"] if numbered else []
            ended = max(late) + 4 * MS
            spans[rank].append(["all_reduce", BUCKET, late[rank], ended, [], *known])
    return [_stretches(own, seconds, offset=rank * 170 * MS) for rank, own in enumerate(spans)]


def _stretches(spans: list[list[Any]], seconds: int, *, offset: int) -> list[Event]:
    edges = [0, *(k * SECOND + offset for k in range(1, seconds)), seconds * SECOND]
    logged = []
    for begin, end in itertools.pairwise(edges):
        own = [span for span in spans if begin < span[3] <= end]
        event = {"event": "collectives", "t": begin, "total": end - begin, "spans": own}
        logged.append({**event, "blocked": [span[2:4] for span in own]})
    return logged
