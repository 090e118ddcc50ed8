"""`resume=RUN`: a run that stopped goes on in its own directory, with its own spec.

What may change is how long it trains and how it is run; what it computes may not, or the weights
would not be those of a run that never stopped.
"""

from __future__ import annotations

from pathlib import Path

from drumline.core.errors import RunDirError, UsageError
from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec
from drumline.core.spec_file import load_spec

_FIXED = ("model", "data", "optimizer", "strategy", "seed", "dtype", "precision", "accumulate")


def open_for_resume(name: str, overrides: list[str], *, root: Path) -> tuple[RunDir, RunSpec]:
    """Find the run, apply the overrides that a resumed run may have, and write its spec anew.

    Raises:
        RunDirError: there is no such run, or nothing to continue from.
        UsageError: an override would change what the run computes.
    """
    run = RunDir.open(name, root=root)
    before = run.read_spec()
    spec = load_spec(run.spec_file, overrides)
    if spec.world_size != before.world_size:
        raise UsageError(
            f"{run.path.name} ran on {before.world_size} ranks, not {spec.world_size}: who sees "
            f"which sample would change; resume with workers={before.workers} nodes={before.nodes}"
        )
    for key in _FIXED:
        was, now = getattr(before, key), getattr(spec, key)
        if was != now:
            raise UsageError(
                f"{key} of {run.path.name} cannot change when it is resumed ({_name(was)} became "
                f"{_name(now)}); leave it out, or start a new run"
            )
    if not any(run.checkpoints.glob("step-*")):
        raise RunDirError(f"{run.path.name} has no checkpoint to continue from; start a new run")
    summary = run.read_json("summary.json")
    if summary is not None and (spec.epochs, spec.max_steps) == (before.epochs, before.max_steps):
        raise UsageError(
            f"{run.path.name} is finished, at step {summary['steps']}; to train it further say how "
            f"long, e.g. epochs={summary['epochs'] + 1}"
        )
    run.write_spec(spec)
    (run.path / "summary.json").unlink(missing_ok=True)
    return run, spec


def _name(part: object) -> str:
    return str(getattr(part, "name", None) or getattr(part, "kind", None) or part)
