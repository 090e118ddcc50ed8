"""How the ranks of a probe come together, and where they leave what they saw."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.comm import LOOPBACK, StoreBarrier, build_store, join_group
from drumline.core.errors import RunDirError
from drumline.core.json_lines import Message
from drumline.core.rundir import PROGRESS, RunDir

TIMEOUT_S = 60.0
_NOTE_EVERY_S = 0.5
FEWEST, MOST = 5, 25
"""rounds of a measurement, where the request does not say how many"""


@dataclass
class Probe:
    """One rank of a probe."""

    run: RunDir
    rank: int
    world_size: int
    barrier: StoreBarrier
    """at the store alone, whatever state the connections are in"""
    request: Message
    """what the command wants to know"""
    _noted_s: float = 0.0
    """when progress was last noted"""

    def answer(self, document: dict[str, object]) -> None:
        """Leave what this rank saw, and which rank it is."""
        self.run.write_json(f"answer-{self.rank}.json", {"rank": self.rank, **document})

    def note_progress(self, share: float, now: str) -> None:
        """Leave a note of how far the ranks have come; rank 0 does, at most twice a second."""
        if self.rank == 0 and time.monotonic() - self._noted_s > _NOTE_EVERY_S:
            self._noted_s = time.monotonic()
            self.run.write_json(PROGRESS, {"share": share, "now": now})

    def leave(self) -> None:
        """Leave the group when all are done."""
        dist.barrier()
        dist.destroy_process_group()


def join_probe() -> Probe:
    """Join the other ranks of the probe whose run directory the command line names."""
    run = RunDir(Path(sys.argv[1]))
    request = run.read_json("probe.json")
    if request is None:
        raise RunDirError(f"{run.path} has no probe.json, which says what to do")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    init = "env" if "TORCHELASTIC_USE_AGENT_STORE" in os.environ else "tcp"  # mpirun has no store
    store = build_store(
        init, rank=rank, rendezvous=run.rendezvous, tag="probe", timeout_s=TIMEOUT_S
    )
    join_group(
        store,
        rank=rank,
        world_size=world_size,
        backend="gloo",
        timeout_s=float(request.get("timeout_s", TIMEOUT_S)),
        leader=os.environ.get("MASTER_ADDR", LOOPBACK),
    )
    barrier = StoreBarrier(store, rank=rank, world_size=world_size)
    return Probe(run, rank, world_size, barrier, request)


def affordable_rounds(budget_s: float, round_s: float) -> int:
    """Return how many rounds of a probe fit into its time budget, within bounds."""
    return max(FEWEST, min(MOST, int(budget_s / max(round_s, 1e-9))))
