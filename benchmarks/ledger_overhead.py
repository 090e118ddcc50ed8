"""Measure what the instrumentation of a step costs: the clock, the meter and the event log.

    python benchmarks/ledger_overhead.py [--rounds 120] [--json PATH]

Each of the three compares a step that is accounted for with one that is not; the ratio minus 1 is
the overhead. The step is that of one worker of the cnn job: 64 samples, one CPU thread.

    added up      the calls that the loop makes in a step (StepClock, Meter with two collectives,
                  EventWriter.write), timed by themselves in a tight loop of 1,000, on top of the
                  step; once as they are, once with every line handed to the kernel at once
    side by side  one process trains; every other step makes these calls
    DDP's hook    two ranks train; in every other step DDP's own all-reduce is replaced by
                  drumline's metered hook, which is how `strategy: ddp` learns the times

The third is the cost of one handoff to a Python thread per bucket, not of the clock.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from measure import Row, arguments, compare, report, turns
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from drumline.comm import Meter
from drumline.core.rundir import EventWriter
from drumline.data import build_dataset
from drumline.models import build_model
from drumline.optim import build_optimizer
from drumline.parallel.strategy import build_strategy
from drumline.spec.data import DataSpec
from drumline.spec.learning import LossSpec, OptimizerSpec
from drumline.spec.parts import ModelSpec
from drumline.spec.strategy import StrategySpec
from drumline.trainer.loss import build_loss
from drumline.trainer.runners.base import StepClock
from ranks import add_rank_option, leave, start_ranks, torchrun

BATCH = 64
BUCKETS = 2
INNER = 1000
WARM_UP = 5
HOOK = "DDP's hook, 2 ranks"
BARE, METERED = "bare step", "accounted step"

Step = Callable[[], None]


class Instruments:
    """What the training loop calls in a step to account for it, in the loop's order."""

    def __init__(self, path: Path) -> None:
        self.meter = Meter()
        self.clock = StepClock(self.meter)
        self.events = EventWriter(path)
        self.steps = 0

    def before(self) -> None:
        """Start the step; its data come at once."""
        self.clock.begin()
        self.clock.data_ready()

    def after(self) -> None:
        """End the step, with its collectives, and log it."""
        for _ in range(BUCKETS):
            self.meter.record("allreduce", 2**20, time.monotonic_ns())
        self.clock.blocked_since(time.monotonic_ns())
        self.steps += 1
        times = self.clock.end()
        self.events.write(
            "step", step=self.steps, epoch=0, loss=0.1234567, lr=0.01, samples=BATCH, **times
        )


class Trainer:
    """The cnn job on one worker's share of the batch: forward, backward, update."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        self.data = build_dataset(DataSpec(), seed=1, dtype=torch.float32).train
        model = build_model(ModelSpec(), classes=10, seed=1)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module = wrap(model)
        self.loss = build_loss(LossSpec())
        self.optimizer = build_optimizer(OptimizerSpec(momentum=0.5), model.parameters())
        self.indices = np.arange(BATCH)

    def step(self) -> None:
        """Take one step."""
        inputs, targets = self.data.batch(self.indices)
        self.optimizer.zero_grad()
        (self.loss.summed(self.module(inputs), targets) / BATCH).backward()
        self.optimizer.step()


def race(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Let the rivals take turns; returns ms."""
    for name in turns(list(steps), WARM_UP):
        steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for name in turns(list(steps), rounds):
        start = time.perf_counter()
        steps[name]()
        times[name].append((time.perf_counter() - start) * 1e3)
    return times


def call_cost_ms(instruments: Instruments, *, flush: bool) -> float:
    """Time the calls of a step by themselves."""
    start = time.perf_counter()
    for _ in range(INNER):
        instruments.before()
        instruments.after()
        if flush:
            instruments.events.flush()
    return (time.perf_counter() - start) * 1e3 / INNER


def measure_calls(rounds: int) -> list[Row]:
    """Measure the first two comparisons, in this process."""
    trainer = Trainer(lambda model: model)
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as folder:
        instruments = Instruments(Path(folder) / "events.jsonl")

        def accounted() -> None:
            instruments.before()
            trainer.step()
            instruments.after()

        times = race({BARE: trainer.step, METERED: accounted}, rounds)
        rows = []
        for case, flush in (("added up", False), ("added up, flushed", True)):
            costs = [call_cost_ms(instruments, flush=flush) for _ in range(min(rounds, 20))]
            bare = times[BARE][: len(costs)]
            added = {BARE: bare, METERED: [a + b for a, b in zip(bare, costs, strict=True)]}
            cost = statistics.median(costs)
            extra = {"calls µs": cost * 1e3, "% of step": cost / statistics.median(bare) * 100}
            rows.append(compare(added, METERED, BARE, case=case, unit="ms", extra=extra))
        instruments.events.close()
    return [*rows, compare(times, METERED, BARE, case="side by side", unit="ms")]


def be_rank(rounds: int, path: Path) -> None:
    """Be one of two ranks that alternate between DDP's own all-reduce and the metered hook."""
    dist.init_process_group("gloo")
    spec = StrategySpec(kind="ddp")
    plain = Trainer(
        lambda model: DistributedDataParallel(
            model, bucket_cap_mb=spec.bucket_bytes / 2**20, gradient_as_bucket_view=True
        )
    )
    hooked = Trainer(lambda model: build_strategy(spec, model, Meter()).module)
    times = race({BARE: plain.step, METERED: hooked.step}, rounds)
    if dist.get_rank() == 0:
        path.write_text(json.dumps({HOOK: times}))
    leave()


def measure_hook(rounds: int) -> Row:
    """Measure the third comparison, with two ranks."""
    times = start_ranks(torchrun(2), __file__, rounds)[HOOK]
    return compare(times, METERED, BARE, case=HOOK, unit="ms")


def main() -> None:
    parser = arguments(__doc__, rounds=120)
    add_rank_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.be_rank is not None:
        be_rank(args.rounds, args.be_rank)
        return
    rows = [*measure_calls(args.rounds), measure_hook(args.rounds)]
    note = (
        f"A step that is accounted for over one that is not; the ratio minus 1 is the overhead. "
        f"cnn, {BATCH} samples, one thread. Added up: the step plus the calls timed by themselves. "
        f"Side by side and DDP's hook: adjacent steps of one run, each pair a round."
    )
    report("What accounting costs", note, rows, args.json)


if __name__ == "__main__":
    main()
