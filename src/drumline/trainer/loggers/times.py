"""The ledger's numbers for loggers: where the time of the last steps went, from all ranks' events.

Whom a rank waited for, and how long, only the logs of all ranks together tell, so the leader reads
their last lines after an epoch. Where ranks of other nodes write to disks of their own, only its
own step is told.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from drumline.core.rundir import Event, RunDir
from drumline.report import compute_ledger

_TAIL = 1 << 18  # bytes of a rank's events: some hundred steps


def read_times(run: RunDir, world_size: int) -> dict[str, float]:
    """Return milliseconds per step, means over ranks: `time/data_ms`, compute, wait, transfer."""
    logs = [_read_tail(run.rank_events(rank)) for rank in range(world_size)]
    if not all(logs):
        return {}
    ledger = compute_ledger(logs)
    if not ledger.steps:
        return {}
    scale = 1e3 / ledger.steps / len(ledger.ranks)
    parts = [row.parts for row in ledger.ranks]
    times = {f"time/{name}_ms": scale * sum(part[name] for part in parts) for name in parts[0]}
    return {"time/step_ms": scale * sum(row.total_s for row in ledger.ranks), **times}


def _read_tail(path: Path) -> list[Event]:
    """Return a rank's last events, without the first of them, which may be torn."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return []
    events = []
    for line in lines[size > _TAIL :]:
        with suppress(ValueError):
            events.append(json.loads(line))
    return events
