"""`resume=RUN`: a run that stopped goes on in its own directory, with its own spec.

What may change is how long it trains and how it is run, down to how its model is split over ranks;
what it computes may not, or the weights would not be those of a run that never stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from drumline.core.errors import RunDirError, UsageError
from drumline.core.formatting import counted
from drumline.core.rundir import RunDir
from drumline.launch.preflight import refuse_bad_init_file, refuse_without_gpu
from drumline.launch.runs import reopened_run
from drumline.spec.load import load_spec, read_run_spec
from drumline.spec.run_spec import RunSpec

_FIXED = (
    "model",
    "data",
    "optimizer",
    "schedule",
    "accumulate",
    "clip_norm",
    "seed",
    "dtype",
    "precision",
)
_FIXED_IN_STRATEGY = ("average", "of", "compress")
"""where there are copies of the model"""


@contextlib.contextmanager
def resumed_run(
    name: str, overrides: list[str], *, root: Path, ranks: int | None = None
) -> Iterator[tuple[RunDir, RunSpec]]:
    """Find a run and hold it while it goes on, with the overrides that a resumed run may have.

    `ranks`: how many there are, where somebody else starts them.

    Raises:
        RunDirError: there is nothing to continue from.
        UsageError: there is no such run, or an override would change what it computes.
    """
    run = RunDir.open(name, root=root)
    if not run.spec_file.exists():
        raise UsageError(f"{run.path.name} ran a script; start it again with: drumline run …")
    before = read_run_spec(run)
    copies = before.axes.data
    fixed = _FIXED_IN_STRATEGY if copies > 1 else ()
    spec = load_spec(run.spec_file, overrides, ranks=ranks, lasting=fixed)
    wanted = spec.axes.data
    if copies != wanted:
        what = counted(copies, "copy of the model", "copies of the model")
        if before.world_size == copies:
            what = counted(copies, "rank")
        raise UsageError(
            f"{run.path.name} ran on {what}, not {wanted}: who sees which sample would "
            f"change; resume with workers={before.workers} nodes={before.nodes}, or with a mesh "
            f"whose data axis is {copies}"
        )
    for key in _FIXED:
        _refuse_change(run, key, getattr(before, key), getattr(spec, key))
    for key in fixed:
        was, now = getattr(before.strategy, key), getattr(spec.strategy, key)
        _refuse_change(run, f"strategy.{key}", was, now)
    if not any(run.checkpoints.glob("step-*")):
        raise RunDirError(f"{run.path.name} has no checkpoint to continue from; start a new run")
    summary = run.read_json("summary.json")
    if summary is not None and not _longer(spec, before):
        raise UsageError(
            f"{run.path.name} is finished, at step {summary['steps']}; to train it further say how "
            f"long, e.g. epochs={summary['epochs'] + 1}"
        )
    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
    with reopened_run(run, spec):
        yield run, spec


def _refuse_change(run: RunDir, key: str, was: object, now: object) -> None:
    if was != now:
        raise UsageError(
            f"{key.partition('.')[0]} of {run.path.name} cannot change when it is resumed "
            f"({_difference(key, was, now)}); leave it out, or start a new run"
        )


def _longer(spec: RunSpec, before: RunSpec) -> bool:
    """Whether one limit was raised or dropped, and none lowered."""
    limits = ((spec.epochs, before.epochs), (spec.max_steps, before.max_steps))
    steps = [(now or float("inf"), was or float("inf")) for now, was in limits]
    return any(now > was for now, was in steps) and all(now >= was for now, was in steps)


def _difference(key: str, was: object, now: object) -> str:
    """Name the key deepest down that has changed, and how."""
    if isinstance(was, BaseModel) and isinstance(now, BaseModel):
        before, after = dict(was), dict(now)
        changed = next(name for name in before | after if before.get(name) != after.get(name))
        return _difference(f"{key}.{changed}", before.get(changed), after.get(changed))
    return f"{key}: {was} became {now}"
