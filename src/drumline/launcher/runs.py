"""A run on this machine: refused or made, its ranks launched and followed, and resumed later.

While its launcher holds a run's directory it is locked, and it is put back if nothing came of the
launch. The manifest in it says with what, where and by which command the run was started.

`resumed_run`: a run that stopped goes on in its own directory, with its own spec. What may change
is how long it trains and how it is run, down to how its model is split over ranks; what it computes
may not, or the weights would not be those of a run that never stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.core.errors import (
    DrumlineError,
    InterruptError,
    PeerError,
    RunDirError,
    UsageError,
    WorkerError,
)
from drumline.core.formatting import counted, listed
from drumline.core.manifest import build_manifest
from drumline.core.rundir import FAILURE, EventTail, RunDir
from drumline.core.task import AgentTask
from drumline.launcher.mpirun import MpiRun
from drumline.launcher.outcome import RunOutcome
from drumline.launcher.preflight import refuse_without_gpu

if TYPE_CHECKING:
    from drumline.core.nodes import NodePlan
    from drumline.launcher.agents import Agents
    from drumline.spec.run_spec import RunSpec

RUNS = Path("runs")
_POLL_S = 0.1
_SCHEME = "file://"
_FIXED = (
    *("model", "data", "loss", "optimizer", "schedule", "accumulate", "clip_norm", "seed"),
    *("dtype", "precision", "sync_batch_norm"),
)
_FIXED_IN_STRATEGY = ("average", "of", "compress")
"""where there are copies of the model"""


def refuse_bad_init_file(init: str) -> None:
    """Raise a UsageError if ranks cannot rendezvous by the init file; tries to make it.

    One that is there already has another run's addresses in it, which torch would read; one that
    cannot be made torch would try to open for ever.
    """
    if not init.startswith(_SCHEME):
        return
    path = Path(init.removeprefix(_SCHEME))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        path.unlink()
    except FileExistsError:
        raise UsageError(
            f"init: {init}: the file exists already, left by another run or in use by it; "
            f"remove it, or write init: file to get a fresh one"
        ) from None
    except OSError as error:
        if not path.parent.is_dir():
            raise UsageError(
                f"init: {init}: there is no such folder; make it, or write init: file to do without"
            ) from None
        raise UsageError(
            f"init: {init}: the file cannot be made ({error.strerror}); name one in a folder that "
            f"you can write to, or write init: file to do without"
        ) from None


@contextlib.contextmanager
def new_run(spec: RunSpec, out: Path | None) -> Iterator[RunDir]:
    """Make the run directory of a launch that trains; removed again after a mistake in the spec.

    A crash or an interrupt leaves it, with its logs; so does a run that came to its first step.

    Raises:
        UsageError: this machine cannot run the spec; nothing was made.
    """
    from drumline.spec.learning import require_loggers  # pydantic: not before an agent has started
    from drumline.spec.load import write_run_spec

    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
    require_loggers(spec.loggers)
    run = RunDir.create(spec.name, root=RUNS, exact=out)
    try:
        write_run_spec(run, spec)
        run.write_json("manifest.json", build_manifest(sys.argv))
        with run.locked(), noted_failure(run):
            yield run
    except DrumlineError as error:
        crashed = isinstance(error, WorkerError | PeerError | InterruptError)
        if not crashed and not _has_trained(EventTail(run.rank_events(0))):
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def create_script_run(
    name: str,
    script: list[str],
    *,
    root: Path = RUNS,
    out: Path | None = None,
) -> RunDir:
    """Make the run directory of a script that is launched, with its manifest."""
    run = RunDir.create(name, root=root, exact=out)
    run.write_json("manifest.json", {**build_manifest(sys.argv), "script": script})
    return run


@contextlib.contextmanager
def resumed_run(
    name: str, overrides: list[str], *, root: Path, ranks: int | None = None
) -> Iterator[tuple[RunDir, RunSpec]]:
    """Find the run of `resume=RUN`, hold it while it goes on, with the overrides it may have.

    `RUN@best` and `RUN@STEP` go on from that checkpoint; later ones are set aside. If it never
    trains, all is put back. `ranks`: how many, where somebody else starts them.

    Raises:
        RunDirError: there is nothing to continue from.
        UsageError: there is no such run, or an override would change what it computes.
    """
    from drumline.spec.learning import require_loggers
    from drumline.spec.load import load_spec, read_run_spec

    name, _, mark = name.partition("@")
    run = RunDir.open(name, root=root)
    if not run.spec_file.exists():
        raise UsageError(f"{run.path.name} ran a script; start it again with: drumline run …")
    before = read_run_spec(run)
    copies = before.axes.data
    lasting = _FIXED_IN_STRATEGY if copies > 1 else ()
    spec = load_spec(run.spec_file, overrides, ranks=ranks, lasting=lasting)
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
    for key in (*_FIXED, *(f"strategy.{key}" for key in lasting)):
        was, now = attrgetter(key)(before), attrgetter(key)(spec)
        if was != now:
            raise UsageError(
                f"{key.partition('.')[0]} of {run.path.name} cannot change when it is resumed "
                f"({_difference(key, was, now)}); leave it out, or start a new run"
            )
    if not any(run.checkpoints.glob("step-*")):
        raise RunDirError(f"{run.path.name} has no checkpoint to continue from; start a new run")
    summary = run.read_json("summary.json")
    later = _find_later(run, mark, summary or {})
    if summary is not None and not mark and not _is_longer(spec, before):
        raise UsageError(
            f"{run.path.name} is finished, at step {summary['steps']}; to train it further say how "
            f"long, e.g. epochs={summary['epochs'] + 1}"
        )
    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
    require_loggers(spec.loggers)
    with run.locked(), noted_failure(run), _reopened(run, before, spec, later):
        yield run, spec


def _find_later(run: RunDir, mark: str, summary: Mapping[str, Any]) -> list[Path]:
    """Return the checkpoints after the one that `RUN@mark` names, which must be there."""
    if not mark:
        return []
    if mark == "best" and "best" not in summary:
        raise UsageError(
            f"the summary of {run.path.name} names no best checkpoint; train with checkpoint.best "
            f"or early_stopping to its end, or give a step: resume={run.path.name}@STEP"
        )
    steps = {path: int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*")}
    wanted = str(summary["best"]["step"]) if mark == "best" else mark
    if wanted not in map(str, steps.values()):
        there = listed(sorted(steps.values()))
        raise UsageError(f"{run.path.name} has no checkpoint of step {wanted}, but of {there}")
    return [path for path, step in steps.items() if step > int(wanted)]


def _is_longer(spec: RunSpec, before: RunSpec) -> bool:
    """Whether one limit was raised or dropped, and none lowered."""
    limits = ((spec.epochs, before.epochs), (spec.max_steps, before.max_steps))
    steps = [(now or float("inf"), was or float("inf")) for now, was in limits]
    return any(now > was for now, was in steps) and all(now >= was for now, was in steps)


@contextlib.contextmanager
def _reopened(run: RunDir, before: RunSpec, spec: RunSpec, later: Sequence[Path]) -> Iterator[None]:
    """Give a run a new spec, without the summary of the last; put back if the run never trains.

    The `later` checkpoints are set aside: the run goes on from the one before them.
    """
    from drumline.spec.load import write_run_spec

    summary, aside = run.path / "summary.json", run.path / ".summary.before"
    (run.path / FAILURE).unlink(missing_ok=True)
    tail = EventTail(run.rank_events(0))
    tail.read_events()
    write_run_spec(run, spec)
    if summary.exists():
        summary.rename(aside)
    moved = [path.rename(path.with_name(f"later-{path.name}")) for path in later]
    try:
        yield
    except BaseException:
        if not _has_trained(tail):
            write_run_spec(run, before)
            if aside.exists():
                aside.rename(summary)
            for path in moved:
                path.rename(path.with_name(path.name.removeprefix("later-")))
        raise
    aside.unlink(missing_ok=True)
    for path in moved:
        shutil.rmtree(path, ignore_errors=True)


def _difference(key: str, was: object, now: object) -> str:
    """Name the key deepest down that has changed, and how."""
    from pydantic import BaseModel

    if isinstance(was, BaseModel) and isinstance(now, BaseModel):
        before, after = dict(was), dict(now)
        changed = next(name for name in before | after if before.get(name) != after.get(name))
        return _difference(f"{key}.{changed}", before.get(changed), after.get(changed))
    return f"{key}: {was} became {now}"


@contextlib.contextmanager
def noted_failure(run: RunDir) -> Iterator[None]:
    """Record in the run directory how its launch failed, for `runs` and `show`."""
    try:
        yield
    except DrumlineError as error:
        with contextlib.suppress(RunDirError):  # it may be what has failed
            run.write_json(FAILURE, error.to_record())
        raise


def state_of(run: RunDir) -> tuple[str, str | None]:
    """Return whether a launched run is done, running, interrupted, failed or killed, and why."""
    if (run.path / "summary.json").exists():
        return "done", None
    try:
        with run.locked():
            failure = run.read_json(FAILURE)
    except UsageError:
        return "running", None
    if failure is None:
        return "killed", None
    interrupted = failure.get("type") == InterruptError.__name__
    return "interrupted" if interrupted else "failed", failure.get("message")


def _has_trained(tail: EventTail) -> bool:
    return any(event["event"] == "step" for event in tail.read_events())


@contextlib.contextmanager
def launched_training(run: RunDir, spec: RunSpec, agents: Agents) -> Iterator[Iterator[None]]:
    """Launch the ranks that train a run by the spec that it has, as `launched_ranks` does."""
    task = AgentTask(
        run=str(run.path), workers=spec.workers, timeout_s=spec.timeout_s, restarts=spec.restarts
    )
    by_mpi = spec.backend == "mpi"
    with (
        fresh_rendezvous(run, spec),
        launched_ranks(run, task, agents, plans=spec.node_plans, by_mpi=by_mpi) as polls,
    ):
        yield polls


@contextlib.contextmanager
def launched_ranks(
    run: RunDir,
    task: AgentTask,
    agents: Agents,
    *,
    plans: tuple[NodePlan, ...] = (),
    by_mpi: bool = False,
    kept: bool = True,
    elsewhere: str = "",
    timeout: str | None = "timeout_s",
) -> Iterator[Iterator[None]]:
    """Launch ranks by the agents, or by mpirun; whatever happens, none is left in the end.

    Gives what is to be iterated over: it yields a few times a second until all ranks have ended.

    Args:
        run: where it is removed meanwhile, the ranks are ended.
        task: the first node's.
        agents: start the ranks, unless mpirun does.
        plans: the simulated nodes; none: all workers are on this host.
        by_mpi: whether mpirun starts them, as it must where MPI is the backend.
        kept: whether the run directory stays, as in `RunOutcome`.
        elsewhere: where people have seen its logs, likewise.
        timeout: what limits how long a rank waits for others, likewise.

    Raises:
        DrumlineError: what went wrong first, told by rank.
    """
    started = time.time()
    manifest = run.path / "manifest.json"
    ranks: Agents | MpiRun = agents
    if by_mpi:
        agents.end()  # the first was started before the spec was known
        ranks = MpiRun(agents.scratch)

    def poll() -> Iterator[None]:
        while ranks.running() and manifest.exists():
            yield
            time.sleep(_POLL_S)

    try:
        ranks.start(run, task, plans)
        yield poll()
        agents.check_network()
        exit_codes = ranks.exit_codes
    finally:
        ranks.stop()
    if not manifest.exists():
        raise RunDirError(f"{run.path} was removed while it trained; start the run again")
    RunOutcome(
        run=run,
        world_size=int(task.variables.get("WORLD_SIZE", task.workers * max(1, len(plans)))),
        exit_codes=exit_codes,
        fallback_events=agents.scratch.path,
        since=started,
        kept=kept,
        elsewhere=elsewhere,
        timeout=timeout,
    ).check()


@contextlib.contextmanager
def fresh_rendezvous(run: RunDir, spec: RunSpec) -> Iterator[None]:
    """Launch without rendezvous files of an earlier session of this run, and leave none."""
    shutil.rmtree(run.rendezvous, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(run.rendezvous, ignore_errors=True)
        if spec.init.startswith(_SCHEME):
            with contextlib.suppress(OSError):
                Path(spec.init.removeprefix(_SCHEME)).unlink(missing_ok=True)
