"""What lab 4 runs: the cases of `drumline bench model-parallel`, each a training run of its own.

| name | what |
|---|---|
| alone, alone-again | one process, first and last: how much the machine itself changes meanwhile |
| data | two copies of the model, gradients averaged |
| rpc-xM | in parts by RPC, M microbatches; with one the parts compute in turn |
| pipeline-SCHEDULE-xM | in stages by a schedule, M microbatches |
| tensor | every layer cut inside: the horizontal split |

All have the same seed, the same batches, and one thread for each rank, so that what differs is who
computes what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from drumline.bench.model_parallel.spec import ModelParallelCase, ModelParallelSpec, plan_cases
from drumline.core.errors import UsageError
from drumline.labs.experiment import LabSettings, Options, Training, place_ranks
from drumline.spec.load import build_spec

AGAIN = "alone-again"
SWEPT = "1f1b"
"""the schedule that is tried with every number of microbatches"""
MAX_PARTS = 16
_FORMS = ("alone", "data", "rpc", "pipeline", "tensor")
_BATCH = 32
_STEPS, _FULL_STEPS = 16, 80
_MANY = 4
"""microbatches that every schedule is tried with"""
_ALL = (1, 2, 4, 8)
_LAYERS, _HEADS = 4, 4
_SUMS_ALIKE = 2
"""microbatches whose gradients have the same sum in any order"""


def plan_experiments(settings: LabSettings) -> Sequence[Training]:
    """List the training runs of lab 4, in order."""
    found = []
    for name, case in plan_named_cases(settings):
        # by RPC, backwards run on threads, and add gradients up as they come: two give one sum
        exact = case.form != "rpc" or (case.microbatches or 1) <= _SUMS_ALIKE
        found.append(Training(name=name, spec=case.spec, exact=exact))
    return found


def plan_named_cases(settings: LabSettings) -> list[tuple[str, ModelParallelCase]]:
    """Return lab 4's cases by the names of their runs; the first is repeated at the end.

    Raises:
        UsageError: there are more nodes than the model has parts for.
    """
    if settings.nodes > MAX_PARTS:
        raise UsageError(
            f"lab 4 puts a part of its model on each of {settings.nodes} nodes, but takes "
            f"{MAX_PARTS} at most; set nodes={MAX_PARTS} or fewer"
        )
    named = {case.slug: case for case in _cases(settings)}
    named[AGAIN] = named["alone"]
    return list(named.items())


def _cases(settings: LabSettings) -> Iterator[ModelParallelCase]:
    ranks = max(2, settings.nodes)
    common: Options = {
        # can be cut into two chunks for each rank, and has a head for each
        "model": {
            "name": "gpt-mini",
            "layers": max(_LAYERS, 2 * ranks),
            "heads": max(_HEADS, 1 << (ranks - 1).bit_length()),
        },
        "batch": _BATCH,
        "steps": _FULL_STEPS if settings.full else _STEPS,
        "threads": 1,
        **place_ranks(settings, ranks),
    }
    wishes: list[Options] = [{"forms": _FORMS, "microbatches": _ALL}]
    if not settings.full:
        swept = {"forms": ("rpc", "pipeline"), "schedules": (SWEPT,), "microbatches": _ALL}
        wishes = [
            {"forms": ("alone", "data")},
            swept,
            {"forms": ("pipeline",), "microbatches": (_MANY,)},
            {"forms": ("tensor",)},
        ]
    for wish in wishes:
        spec = build_spec(ModelParallelSpec, {**common, **wish})
        for case in plan_cases(spec).cases:
            seeded = case.spec.model_copy(update={"seed": settings.seed})
            yield dataclasses.replace(case, spec=seeded)
