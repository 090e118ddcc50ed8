"""What lab 3 runs.

    <kind>-<n>             each way of dealing out the data, on all ranks, for each seed
    workers<w>-<n>         the same training on fewer workers; cores-<n>: one process, all cores
    batch<b>-<rule>        another global batch, at the same learning rate or one that grows with it
    <optimizer>-<of>-…     what is averaged: gradients, or parameters after each rank's own step
    alone-<part>           one rank's part, without the others

One worker has one thread, so that workers are compared with workers; `cores` is what one process
can do with the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from drumline.core.errors import UsageError
from drumline.labs.experiment import LabSettings, Options, Training, build_training, train_samples

KINDS = ("shuffle", "random", "sampling", "by_label", "dirichlet")
"""the first is what the others are compared with"""
CORES = "cores"
"""one process with all cores of the machine"""
ALPHA = 0.5
BATCH = 128
LR = 0.05
ADAM_LR = 0.002
_LABELS = 10
_MOST = 16
_OF_FOUR = ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9))
AVERAGING = (
    ("shuffle", "sgd", "gradients"),
    ("by_label", "sgd", "gradients"),
    ("by_label", "sgd", "parameters"),
    ("shuffle", "adam", "gradients"),
    ("by_label", "adam", "gradients"),
    ("shuffle", "adam", "parameters"),
    ("by_label", "adam", "parameters"),
)
"""partition, optimizer, what is averaged; the first two are runs that differ in the partition"""
_SHARED: Options = {
    "model": "lenet",
    "data": {"batch": BATCH},
    "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.9},
    "strategy": {"kind": "allreduce"},
    "threads": 1,
    "device": "cpu",
    "checkpoint": {"every_steps": 1_000_000, "keep": 1},  # at the end only: steps are timed
}


@dataclass(frozen=True, kw_only=True)
class DataParallelPlan:
    """How large the lab is; in its long form unless told otherwise."""

    ranks: int
    """of the runs that differ in how data are dealt out"""
    workers: tuple[int, ...]
    """the numbers of workers compared, from 1 up"""
    repeats: int = 5
    """seeds"""
    epochs: int = 6
    batches: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)


def plan(settings: LabSettings) -> DataParallelPlan:
    """Say how large lab 3 is with these settings: ranks, workers, repeats, epochs, batches.

    Raises:
        UsageError: more nodes than it has room for.
    """
    ranks = settings.nodes if settings.nodes > 1 else 4
    if ranks > _MOST:
        raise UsageError(
            f"lab 3 shows each rank's part of the data, of {_MOST} at most; set nodes={_MOST} or "
            f"fewer, not {ranks}"
        )
    counts = {2**k for k in range(8) if 2**k < ranks} | {ranks}
    if settings.full and ranks > 3:
        counts.add(3)
    whole = DataParallelPlan(ranks=ranks, workers=tuple(sorted(counts)))
    return whole if settings.full else replace(whole, repeats=3, epochs=4, batches=(32, 128, 512))


def label_groups(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the labels that each rank of lab 3 owns: 012 / 345 / 67 / 89 for four."""
    if ranks == len(_OF_FOUR):
        return _OF_FOUR
    if ranks >= _LABELS:  # labels are shared by the ranks that own them
        return tuple((rank % _LABELS,) for rank in range(ranks))
    bounds = [round(rank * _LABELS / ranks) for rank in range(ranks + 1)]
    return tuple(tuple(range(bounds[r], bounds[r + 1])) for r in range(ranks))


def batch_name(batch: int, rule: str) -> str:
    """Name lab 3's run of another global batch, at the `same` learning rate or a `scaled` one."""
    return "shuffle-1" if batch == BATCH else f"batch{batch}-{rule}"


def averaging_name(kind: str, optimizer: str, of: str) -> str:
    """Name lab 3's run by its partition, its optimizer, and what is averaged."""
    return f"{kind}-1" if (optimizer, of) == ("sgd", "gradients") else f"{optimizer}-{of}-{kind}"


def alone_name(part: int | None) -> str:
    """Name lab 3's run on one rank's labels, or (None) on as large a part with all labels."""
    return "alone-mixed" if part is None else f"alone-labels{part}"


def plan_experiments(settings: LabSettings) -> list[Training]:
    """List the runs of lab 3; what is compared lies close together: the machine may change."""
    of = plan(settings)
    found: list[Training] = []
    for number in range(of.repeats):
        seeded: Options = {"seed": settings.seed + number}
        for kind in KINDS:
            options = {**seeded, **_dealt(kind, of)}
            found.append(_train(settings, f"{kind}-{number + 1}", of.ranks, options))
        for count in of.workers:
            if count != of.ranks:
                found.append(_train(settings, f"workers{count}-{number + 1}", count, seeded))
        found.append(_train(settings, f"cores-{number + 1}", 1, {**seeded, "threads": None}))
    return [*found, *_batches(settings, of), *_averaging(settings, of), *_alone(settings, of)]


def _batches(settings: LabSettings, of: DataParallelPlan) -> Iterator[Training]:
    for batch in of.batches:
        for rule, lr in (("same", LR), ("scaled", LR * batch / BATCH)):
            if batch != BATCH:
                changed: Options = {"data": {"batch": batch}, "optimizer": {"lr": lr}}
                yield _train(settings, batch_name(batch, rule), of.ranks, changed)


def _averaging(settings: LabSettings, of: DataParallelPlan) -> Iterator[Training]:
    adam = {"name": "adam", "lr": ADAM_LR, "momentum": 0.0}
    for kind, optimizer, averaged in AVERAGING:
        if (optimizer, averaged) != ("sgd", "gradients"):
            rule: Options = {"optimizer": adam} if optimizer == "adam" else {}
            options = {**rule, **_dealt(kind, of), "strategy": {"of": averaged}}
            yield _train(settings, averaging_name(kind, optimizer, averaged), of.ranks, options)


def _alone(settings: LabSettings, of: DataParallelPlan) -> Iterator[Training]:
    batch, share = BATCH // of.ranks, train_samples(settings) // of.ranks
    yield _train(settings, alone_name(None), 1, {"data": {"batch": batch, "samples": share}})
    for part, labels in enumerate(label_groups(of.ranks)[:_LABELS]):
        partition = {"kind": "by_label", "labels": [list(labels)]}
        data = {"batch": batch, "partition": partition}
        yield _train(settings, alone_name(part), 1, {"data": data})


def _dealt(kind: str, of: DataParallelPlan) -> Options:
    partition: dict[str, object] = {"kind": kind}
    if kind == "by_label":
        partition["labels"] = [list(labels) for labels in label_groups(of.ranks)]
    if kind == "dirichlet":
        partition["alpha"] = ALPHA
    return {"data": {"partition": partition}}


def _train(settings: LabSettings, name: str, ranks: int, options: Options) -> Training:
    shared = {**_SHARED, "epochs": plan(settings).epochs}
    return build_training(settings, name, shared, options, ranks=ranks)
