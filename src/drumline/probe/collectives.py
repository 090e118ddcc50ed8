"""Time a collective by many rivals: `python -m drumline.probe.collectives RUNDIR` on every rank.

1. each rival once for each size, with values that tell a wrong sum; connections are made on the way
2. each once more, to see how long a round takes: how many rounds there is time for
3. the rounds: all sizes and all rivals take turns, another rival first each time, so that a busy
   moment of the machine hits all of them. Around each turn:

       barrier ── count bytes ── barrier ── collective, timed ── barrier ── count bytes ── …

   The first barrier makes sure that all bytes of the turn before have left; the second that all
   ranks begin together. What the barriers themselves send is measured, too, and taken off.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from drumline.comm import Channel
from drumline.comm.halving import dissemination_barrier
from drumline.comm.meter import count_sent_bytes, rank_interface
from drumline.comm.mpi.group import register_mpi
from drumline.core.errors import CommError, UsageError
from drumline.parallel.aggregate import BY_PRIMITIVES
from drumline.probe.exercise import CPU, Exercise, weights
from drumline.probe.ranks import Probe, affordable_rounds, join_probe
from drumline.schedules.collectives import (
    COMPOSED,
    FLOAT32_BYTES,
    NATIVE,
    CollectiveCall,
    whole_elements,
)

_IDLE_TURNS = 5


def main() -> None:
    """Run one rank of the probe that times the collective in `probe.json` by all its rivals."""
    probe = join_probe()
    request = probe.request
    rivals = _build_rivals(request["rivals"], request["workers"], request["timeout_s"])
    contest = Contest(probe, request["collective"], rivals, request["sizes"])
    contest.check()  # 1
    fixed = [request["rounds"]] * len(request["sizes"])
    counts = fixed if request["rounds"] else contest.choose_rounds(request["budget_s"])  # 2
    turns = contest.run(counts)  # 3
    probe.answer({"interface": rank_interface(), "turns": turns})
    probe.leave()


@dataclass(frozen=True)
class Rival:
    """One way to carry out a collective: an algorithm of ours, or the backend's own, on a group."""

    algorithm: str
    backend: str
    group: ProcessGroup | None
    channel: Channel | None
    """for plain messages; None where the backend has its own collectives alone"""
    device: torch.device = CPU
    """where its tensors are"""

    @property
    def name(self) -> str:
        """How a person calls it."""
        return f"{self.algorithm} on {self.backend}"

    def run(self, exercise: Exercise) -> None:
        """Carry out the collective; every rank calls this."""
        if self.algorithm == NATIVE:
            exercise.run_native(self.group)
        elif self.algorithm in COMPOSED:
            BY_PRIMITIVES[self.algorithm](exercise.buffers["tensor"], self.group)
        else:
            assert self.channel is not None
            exercise.run(self.channel, by=self.algorithm)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the call has only queued it

    def check(self, exercise: Exercise) -> None:
        """Carry it out once, and raise CommError where the result is wrong; every rank does."""
        self.run(exercise)
        for name, wanted in _expected(exercise.call, exercise.rank).items():
            got = exercise.buffers[name]
            for (first, end), value in wanted.items():
                wrong = (got[first:end] != value).nonzero()
                if len(wrong):
                    at = first + int(wrong[0])
                    raise CommError(
                        f"{exercise.call.collective} by {self.name} gives a wrong result: element "
                        f"{at} of {exercise.call.elements} is {got[at].item():g} on rank "
                        f"{exercise.rank}, but must be {value:g}; nothing was measured",
                        rank=exercise.rank,
                    )


def _expected(call: CollectiveCall, rank: int) -> dict[str, dict[tuple[int, int], float]]:
    """Return what a rank's buffers must hold: by name, the value of each stretch of elements."""
    part, every = call.part, float(2**call.ranks - 1)
    parts = {(k * part, (k + 1) * part): 2.0**k for k in range(call.ranks)}
    at_root = rank == call.root
    expected = {
        "all_reduce": {"tensor": {(0, call.elements): every}},
        "reduce": {"tensor": {(0, call.elements): every}} if at_root else {},
        "broadcast": {"tensor": {(0, call.elements): 2.0**call.root}},
        "scatter": {"out": {(0, part): 2.0**call.root}},
        "gather": {"target": parts} if at_root else {},
        "all_gather": {"pieces": parts},
        "reduce_scatter": {"pieces": {(rank * part, (rank + 1) * part): every}},
        "all_to_all": {"target": parts},
    }
    return expected.get(call.collective, {})


def _build_rivals(pairs: Sequence[tuple[str, str]], workers: int, timeout_s: float) -> list[Rival]:
    """Make a group for each backend, and a rival of each algorithm on it; every rank calls this."""
    rivals = []
    for backend in dict.fromkeys(backend for _, backend in pairs):
        device = _take_gpu(workers) if backend == "nccl" else CPU
        group = None
        if backend != "gloo":  # which all ranks have met by
            name = register_mpi() if backend == "mpi" else backend
            group = dist.new_group(backend=name, timeout=timedelta(seconds=timeout_s))
        channel = None if backend == "nccl" else Channel(group, ranks_per_node=workers)
        own = [algorithm for algorithm, on in pairs if on == backend]
        rivals += [Rival(algorithm, backend, group, channel, device) for algorithm in own]
    return rivals


def _take_gpu(workers: int) -> torch.device:
    """Choose this rank's GPU, or raise UsageError where not every rank has one of its own."""
    gpus = torch.cuda.device_count()
    if gpus < workers:
        raise UsageError(
            f"backends=nccl wants a GPU for each rank, but for {workers} ranks this machine has "
            f"{gpus or 'none'}; leave nccl out{f', or set workers={gpus}' if gpus > 1 else ''}"
        )
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


@dataclass
class Contest:
    """One rank's part of the measurement."""

    probe: Probe
    collective: str
    rivals: list[Rival]
    sizes: list[int]
    channel: Channel = field(default_factory=Channel)

    def check(self) -> None:
        """See that each rival gives the right result at each size."""
        for size in self.sizes:
            for rival in self.rivals:
                self.probe.note_progress(0, f"checking {rival.name}")
                rival.check(self._exercise(size, rival.device))
            self._barrier()

    def choose_rounds(self, budget_s: float) -> list[int]:
        """Return how many rounds of each size there is time for; rank 0 decides for all."""
        took = torch.zeros(len(self.sizes), dtype=torch.float64)
        for k, size in enumerate(self.sizes):
            exercises = self._silent(size)
            self._barrier()
            began = time.monotonic_ns()
            for rival in self.rivals:
                self.probe.note_progress(0, "seeing how long a round takes")
                rival.run(exercises[rival.device])
            took[k] = (time.monotonic_ns() - began) / 1e9
        dist.broadcast(took, src=0)
        share = budget_s / len(self.sizes)
        return [affordable_rounds(share, each) for each in took.tolist()]

    def run(self, counts: Sequence[int]) -> list[dict[str, str | int | None]]:
        """Take the turns; returns when each began, how long it took, what it put on the wire."""
        order = list(_take_turns(counts, len(self.rivals)))
        exercises = [self._silent(size) for size in self.sizes]
        silence = [self._timed(lambda: None)[2] or 0 for _ in range(_IDLE_TURNS)]
        idle = int(statistics.median(silence))  # what the two barriers around a turn send
        turns = []
        for number, (k, r) in enumerate(order):
            rival = self.rivals[r]
            self.probe.note_progress(number / len(order), rival.name)
            began, took, sent = self._timed(partial(rival.run, exercises[k][rival.device]))
            wire = None if sent is None else max(0, sent - idle)
            who = {"algorithm": rival.algorithm, "backend": rival.backend}
            turns.append({**who, "size": self.sizes[k], "began": began, "ns": took, "wire": wire})
        self.probe.note_progress(1, "done")
        return turns

    def _exercise(self, size: int, device: torch.device) -> Exercise:
        rank, ranks = self.probe.rank, self.probe.world_size
        return build_exercise(self.collective, size, rank=rank, ranks=ranks, device=device)

    def _silent(self, size: int) -> dict[torch.device, Exercise]:
        """Exercises with zeros, whose sums stay what they are however often they are made."""
        devices = {rival.device for rival in self.rivals}
        exercises = {device: self._exercise(size, device) for device in devices}
        for exercise in exercises.values():
            for buffer in exercise.buffers.values():
                buffer.zero_()
        return exercises

    def _barrier(self) -> None:
        dissemination_barrier(self.channel)

    def _timed(self, work: Callable[[], None]) -> tuple[int, int, int | None]:
        """Do something once all ranks are there: when it began, its ns, bytes on the wire."""
        before = self._count()
        self._barrier()
        began = time.monotonic_ns()
        work()
        took = time.monotonic_ns() - began
        after = self._count()
        return began, took, None if before is None or after is None else after - before

    def _count(self) -> int | None:
        """Read the counter once all ranks have what was sent to them."""
        self._barrier()
        return count_sent_bytes()


def build_exercise(
    collective: str, size: int, *, rank: int, ranks: int, device: torch.device = CPU
) -> Exercise:
    """Build a rank's part of a probe's collective of so many bytes, rounded up to fit all ranks."""
    call = CollectiveCall(
        collective=collective,
        algorithm=NATIVE,  # each rival has its own
        ranks=ranks,
        elements=whole_elements(collective, ranks, size, FLOAT32_BYTES),
    )
    return Exercise(call, rank, weights, device)


def _take_turns(counts: Sequence[int], rivals: int) -> Iterator[tuple[int, int]]:
    """Name whose turn it is, as (size, rival); sizes with fewer rounds are spread over all rounds.

    In each round of a size all rivals have a turn, another one first each time.
    """
    most = max(counts, default=0)
    for number in range(most):
        for k, count in enumerate(counts):
            done = number * count // most
            if (number + 1) * count // most > done:
                yield from ((k, (done + r) % rivals) for r in range(rivals))


if __name__ == "__main__":
    main()
