"""Average a model's gradients by many strategies: `python -m drumline.probe.aggregation RUNDIR`.

Every rank builds the model and its buckets as training does. A step of a strategy:

    barrier ── forward, backward ── bucket 0 ── bucket 1 ── … ── done
               compute              arrived, ended of each, as the meter of training notes them

Buckets are averaged after backward, one by one, so that what each strategy costs is not hidden
behind compute. All strategies take turns in each round, another one first each time; the first
round warms up. Each strategy's average is compared with the backend's own once.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.comm import Channel, Meter
from drumline.comm.halving import dissemination_barrier
from drumline.core.errors import CommError
from drumline.core.rundir import Event
from drumline.models import build_model
from drumline.parallel import Aggregator
from drumline.parallel.bucket import build_buckets
from drumline.probe.ranks import Probe, affordable_rounds, join_probe
from drumline.spec.parts import ModelSpec

_CLASSES, _SIDE, _CONTEXT = 10, 28, 32
_SEED = 1234


def main() -> None:
    """Run one rank of the probe that averages gradients by the strategies in `probe.json`."""
    probe = join_probe()
    work = Work(probe)
    work.check()
    rounds = probe.request["rounds"] or work.choose_rounds(probe.request["budget_s"])
    steps = work.run(1 + rounds)
    probe.answer({"buckets": [bucket.flat.nbytes for bucket in work.buckets], "steps": steps})
    probe.leave()


class Work:
    """One rank's model, data and buckets."""

    def __init__(self, probe: Probe) -> None:
        request = probe.request
        self._probe = probe
        self._channel = Channel()
        self.meter = Meter()
        self.model = build_model(ModelSpec(**request["model"]), classes=_CLASSES, seed=_SEED)
        self._trained = [each for each in self.model.parameters() if each.requires_grad]
        self.buckets = build_buckets(self._trained, request["bucket_bytes"])
        self._inputs, self._labels = _make_samples(
            request["batch"], text=request["text"], rank=probe.rank
        )
        self.aggregators = {
            kind: Aggregator(kind=kind, meter=self.meter) for kind in request["kinds"]
        }

    def check(self) -> None:
        """Raise CommError unless each strategy leaves the average that the backend's own gives."""
        for kind, aggregator in self.aggregators.items():
            self._probe.note_progress(0, f"checking {kind}")
            self._compute()
            for number, bucket in enumerate(self.buckets):
                wanted = bucket.flat.clone()
                dist.all_reduce(wanted)
                wanted.div_(self._probe.world_size)
                aggregator(bucket.flat)
                if not torch.allclose(bucket.flat, wanted, rtol=1e-4, atol=1e-6):
                    raise CommError(
                        f"{kind} gives another average than all_reduce for bucket {number} on rank "
                        f"{self._probe.rank}; nothing was measured",
                        rank=self._probe.rank,
                    )
            self._settle()
        self.meter.drain()

    def choose_rounds(self, budget_s: float) -> int:
        """Return how many rounds there is time for; rank 0 decides for all."""
        dissemination_barrier(self._channel)
        began = time.monotonic_ns()
        for kind in self.aggregators:
            self._step(kind)
        took = torch.tensor((time.monotonic_ns() - began) / 1e9)
        dist.broadcast(took, src=0)
        return affordable_rounds(budget_s, took.item())

    def run(self, rounds: int) -> dict[str, list[Event]]:
        """Take the steps; returns those of each strategy as training logs them."""
        kinds = list(self.aggregators)
        steps: dict[str, list[Event]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            first = number % len(kinds)
            for kind in (*kinds[first:], *kinds[:first]):
                self._probe.note_progress(number / rounds, kind)
                steps[kind].append({"event": "step", "step": number, **self._step(kind)})
        return steps

    def _step(self, kind: str) -> Event:
        dissemination_barrier(self._channel)
        began = time.monotonic_ns()
        self._compute()
        blocked = time.monotonic_ns()
        for bucket in self.buckets:
            self.aggregators[kind](bucket.flat)
        ended = time.monotonic_ns()
        self._settle()
        spans = [list(span) for span in self.meter.drain().spans]
        return {"total": ended - began, "data": 0, "spans": spans, "blocked": [[blocked, ended]]}

    def _compute(self) -> None:
        """Forward and backward; the gradients end up in the buckets."""
        for parameter in self._trained:
            parameter.grad = None
        scores = self.model(self._inputs)
        loss = nn.functional.cross_entropy(scores.flatten(0, -2), self._labels.flatten())
        loss.backward()
        for bucket in self.buckets:
            bucket.put_missing()

    def _settle(self) -> None:
        for bucket in self.buckets:
            bucket.settle()


def _make_samples(batch: int, *, text: bool, rank: int) -> tuple[Tensor, Tensor]:
    """Make this rank's batch: noise, other noise on each rank."""
    source = torch.Generator().manual_seed(_SEED + rank)
    if text:
        tokens = torch.randint(0, _CLASSES, (batch, _CONTEXT), generator=source)
        return tokens, tokens
    images = torch.randn(batch, 1, _SIDE, _SIDE, generator=source)
    return images, torch.randint(0, _CLASSES, (batch,), generator=source)


if __name__ == "__main__":
    main()
