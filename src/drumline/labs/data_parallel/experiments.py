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

from dataclasses import dataclass
from typing import Any

from drumline.core.errors import UsageError
from drumline.labs.experiment import SAMPLES, Experiment, LabSettings, Training, choose_data
from drumline.spec.load import validate_spec

KINDS = ("shuffle", "random", "sampling", "by_label", "dirichlet")
"""the first is what the others are compared with"""
SKEWED = "by_label"
CORES = "cores"
"""one process with all cores of the machine"""
ALPHA = 0.5
BATCH = 128
LR = 0.05
ADAM_LR = 0.002
_LABELS = 10
_MOST = 16
_OF_FOUR = ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9))
_NEVER = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large the lab is."""

    ranks: int
    """of the runs that differ in how data are dealt out"""
    workers: tuple[int, ...]
    """the numbers of workers compared, from 1 up"""
    repeats: int
    """seeds"""
    epochs: int
    batches: tuple[int, ...]

    @property
    def local_batch(self) -> int:
        """Samples per step of one rank."""
        return BATCH // self.ranks


def plan(settings: LabSettings) -> Plan:
    """Say how large the lab is to be.

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
    if settings.full:
        return Plan(
            ranks=ranks,
            workers=tuple(sorted(counts | ({3} if ranks > 3 else set()))),
            repeats=5,
            epochs=6,
            batches=(32, 64, 128, 256, 512, 1024),
        )
    return Plan(
        ranks=ranks, workers=tuple(sorted(counts)), repeats=3, epochs=4, batches=(32, 128, 512)
    )


def label_groups(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the labels that each rank owns: 012 / 345 / 67 / 89 for four."""
    if ranks == len(_OF_FOUR):
        return _OF_FOUR
    if ranks >= _LABELS:  # labels are shared by the ranks that own them
        return tuple((rank % _LABELS,) for rank in range(ranks))
    bounds = [round(rank * _LABELS / ranks) for rank in range(ranks + 1)]
    return tuple(tuple(range(bounds[r], bounds[r + 1])) for r in range(ranks))


def seed_names(name: str, of: Plan) -> list[str]:
    """Name an experiment's repeats."""
    return [f"{name}-{number}" for number in range(1, of.repeats + 1)]


def workers_name(workers: int, of: Plan) -> str:
    """Name the runs on so many workers; on all of them they are those that shuffle."""
    return "shuffle" if workers == of.ranks else f"workers{workers}"


def batch_name(batch: int, rule: str) -> str:
    """Name the run with another global batch, at the `same` learning rate or a `scaled` one."""
    return "shuffle-1" if batch == BATCH else f"batch{batch}-{rule}"


def averaging_name(kind: str, optimizer: str, of: str) -> str:
    """Name the run that averages so."""
    return f"{kind}-1" if (optimizer, of) == ("sgd", "gradients") else f"{optimizer}-{of}-{kind}"


def alone_name(part: int | None) -> str:
    """Name the run on one rank's labels, or (None) on as large a part with all labels."""
    return "alone-mixed" if part is None else f"alone-labels{part}"


def experiments(settings: LabSettings) -> list[Experiment]:
    """Name all runs, in order; what is compared lies close together, as the machine may change."""
    of = plan(settings)
    found: list[Experiment] = []
    for number in range(of.repeats):
        seed = settings.seed + number
        found += [
            _train(settings, f"{kind}-{number + 1}", of.ranks, seed=seed, data=_dealt(kind, of))
            for kind in KINDS
        ]
        found += [
            _train(settings, f"workers{count}-{number + 1}", count, seed=seed)
            for count in of.workers
            if count != of.ranks
        ]
        found.append(_train(settings, f"cores-{number + 1}", 1, seed=seed, threads=None))
    found += _batches(settings, of)
    found += _averaging(settings, of)
    found += _alone(settings, of)
    return found


def _batches(settings: LabSettings, of: Plan) -> list[Experiment]:
    found: list[Experiment] = []
    for batch in of.batches:
        if batch == BATCH:
            continue
        for rule, lr in (("same", LR), ("scaled", LR * batch / BATCH)):
            found.append(
                _train(
                    settings,
                    batch_name(batch, rule),
                    of.ranks,
                    data={"batch": batch},
                    optimizer={"lr": lr},
                )
            )
    return found


def _averaging(settings: LabSettings, of: Plan) -> list[Experiment]:
    adam = {"name": "adam", "lr": ADAM_LR, "momentum": 0.0}
    found: list[Experiment] = [
        _train(
            settings,
            averaging_name(SKEWED, "sgd", "parameters"),
            of.ranks,
            data=_dealt(SKEWED, of),
            strategy={"of": "parameters"},
        )
    ]
    for averaged in ("gradients", "parameters"):
        found += [
            _train(
                settings,
                averaging_name(kind, "adam", averaged),
                of.ranks,
                data=_dealt(kind, of),
                optimizer=adam,
                strategy={"of": averaged},
            )
            for kind in (KINDS[0], SKEWED)
        ]
    return found


def _alone(settings: LabSettings, of: Plan) -> list[Experiment]:
    share = SAMPLES[choose_data(settings)] // of.ranks
    small = {"batch": of.local_batch}
    found: list[Experiment] = [
        _train(settings, alone_name(None), 1, data={**small, "samples": share})
    ]
    for part, labels in enumerate(label_groups(of.ranks)[:_LABELS]):
        partition = {"kind": "by_label", "labels": [list(labels)]}
        found.append(_train(settings, alone_name(part), 1, data={**small, "partition": partition}))
    return found


def _dealt(kind: str, of: Plan) -> dict[str, Any]:
    partition: dict[str, Any] = {"kind": kind}
    if kind == "by_label":
        partition["labels"] = [list(labels) for labels in label_groups(of.ranks)]
    if kind == "dirichlet":
        partition["alpha"] = ALPHA
    return {"partition": partition}


def _train(
    settings: LabSettings,
    name: str,
    ranks: int,
    *,
    seed: int | None = None,
    data: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    strategy: dict[str, Any] | None = None,
    threads: int | None = 1,
) -> Training:
    words: dict[str, Any] = {
        "name": name,
        "model": "lenet",
        "data": {"name": choose_data(settings), "batch": BATCH, **(data or {})},
        "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.9, **(optimizer or {})},
        "strategy": {"kind": "allreduce", **(strategy or {})},
        "epochs": plan(settings).epochs,
        "seed": settings.seed if seed is None else seed,
        "threads": threads,
        "device": "cpu",
        "checkpoint": {"every_steps": _NEVER, "keep": 1},  # at the end only: steps are timed
        "workers": ranks,
    }
    if settings.nodes > 1 and ranks > 1:
        words |= {"workers": 1, "nodes": ranks, "link": settings.link.model_dump()}
    return Training(name=name, spec=validate_spec(words))
