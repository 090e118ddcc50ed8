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
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.core.errors import (
    DrumlineError,
    InterruptError,
    PeerError,
    RunDirError,
    UsageError,
    WorkerError,
)
from drumline.core.formatting import counted
from drumline.core.rundir import EventTail, RunDir
from drumline.core.task import AgentTask
from drumline.launch.mpirun import MpiRun
from drumline.launch.outcome import RunOutcome
from drumline.launch.preflight import may_have_gpu

if TYPE_CHECKING:
    from drumline.core.nodes import NodePlan
    from drumline.launch.agents import Agents
    from drumline.spec.run_spec import RunSpec

RUNS = Path("runs")
FAILURE = "failure.json"
_POLL_S = 0.1
_PACKAGES = ("drumline", "torch", "numpy", "safetensors", "pydantic")
_SCHEME = "file://"
_FIXED = (
    *("model", "data", "optimizer", "schedule", "accumulate", "clip_norm", "seed"),
    *("dtype", "precision"),
)
_FIXED_IN_STRATEGY = ("average", "of", "compress")
"""where there are copies of the model"""


def build_manifest(argv: list[str]) -> dict[str, object]:
    """Describe a launch for its run's manifest: the command, this machine and its software."""
    return {
        "argv": argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(),
        "hosts": [platform.node()],
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: package_version(name) for name in _PACKAGES},
    }


def package_version(package: str) -> str | None:
    """Return which version of a package is installed; None: it is not."""
    from importlib.metadata import PackageNotFoundError, version  # slow to load, rarely needed

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the folder that the run was started in, if it is a git checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def refuse_without_gpu(spec: RunSpec) -> None:
    """Refuse to launch by NCCL where nothing speaks for a GPU (UsageError)."""
    if spec.backend == "nccl" and not may_have_gpu():
        raise UsageError(
            "backend: nccl moves GPU tensors, and this machine has no GPU (no device file of one, "
            "no nvidia-smi); set backend=auto"
        )


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
    from drumline.spec.load import write_run_spec  # pydantic: not before an agent has started

    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
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
    name: str, script: list[str], *, root: Path = RUNS, out: Path | None = None
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

    If it never trains, all is put back. `ranks`: how many, where somebody else starts them.

    Raises:
        RunDirError: there is nothing to continue from.
        UsageError: there is no such run, or an override would change what it computes.
    """
    from drumline.spec.load import load_spec, read_run_spec

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
    if summary is not None and not _is_longer(spec, before):
        raise UsageError(
            f"{run.path.name} is finished, at step {summary['steps']}; to train it further say how "
            f"long, e.g. epochs={summary['epochs'] + 1}"
        )
    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
    with run.locked(), noted_failure(run), _reopened(run, before, spec):
        yield run, spec


def _is_longer(spec: RunSpec, before: RunSpec) -> bool:
    """Whether one limit was raised or dropped, and none lowered."""
    limits = ((spec.epochs, before.epochs), (spec.max_steps, before.max_steps))
    steps = [(now or float("inf"), was or float("inf")) for now, was in limits]
    return any(now > was for now, was in steps) and all(now >= was for now, was in steps)


@contextlib.contextmanager
def _reopened(run: RunDir, before: RunSpec, spec: RunSpec) -> Iterator[None]:
    """Give a run a new spec, without the summary of the last; put back if the run never trains."""
    from drumline.spec.load import write_run_spec

    summary, aside = run.path / "summary.json", run.path / ".summary.before"
    (run.path / FAILURE).unlink(missing_ok=True)
    tail = EventTail(run.rank_events(0))
    tail.read_events()
    write_run_spec(run, spec)
    if summary.exists():
        summary.rename(aside)
    try:
        yield
    except BaseException:
        if not _has_trained(tail):
            write_run_spec(run, before)
            if aside.exists():
                aside.rename(summary)
        raise
    aside.unlink(missing_ok=True)


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
        world_size=task.workers * max(1, len(plans)),
        exit_codes=exit_codes,
        fallback_events=agents.scratch.path,
        since=started,
        kept=kept,
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
