"""The directory of a run while its launcher holds it: made, locked, put back if nothing came of it.

The manifest in it says with what, where and by which command the run was started.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
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
from drumline.core.lock import FileLock
from drumline.core.rundir import EventTail, RunDir

if TYPE_CHECKING:
    from drumline.core.rundir import RunDir
    from drumline.launch.network import NetworkRecord
    from drumline.spec.run_spec import RunSpec


_PACKAGES = ("drumline", "torch", "numpy", "safetensors", "pydantic")


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
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def note_network(run: RunDir, network: NetworkRecord) -> None:
    """Add a launch's simulated nodes to its manifest: addresses, rates, delays, CPU shares."""
    run.write_json("manifest.json", {**(run.read_json("manifest.json") or {}), "network": network})


def _version(package: str) -> str | None:
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


RUNS = Path("runs")
FAILURE = "failure.json"
_LOCK_S = 0.2  # for somebody who only looks at a run


@contextlib.contextmanager
def new_run(spec: RunSpec, out: Path | None) -> Iterator[RunDir]:
    """Make the run directory of a launch that trains; removed again after a mistake in the spec.

    A crash or an interrupt leaves it, with its logs; so does a run that came to its first step.
    """
    from drumline.spec.load import write_run_spec  # pydantic: not before an agent has started

    run = RunDir.create(spec.name, root=RUNS, exact=out)
    try:
        write_run_spec(run, spec)
        run.write_json("manifest.json", build_manifest(sys.argv))
        with _locked(run), noted_failure(run):
            yield run
    except DrumlineError as error:
        crashed = isinstance(error, WorkerError | PeerError | InterruptError)
        if not crashed and not _has_trained(EventTail(run.rank_events(0))):
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def create_script_run(name: str, script: list[str]) -> RunDir:
    """Make the run directory of a script that is launched, with its manifest."""
    run = RunDir.create(name, root=RUNS)
    run.write_json("manifest.json", {**build_manifest(sys.argv), "script": script})
    return run


@contextlib.contextmanager
def reopened_run(run: RunDir, spec: RunSpec) -> Iterator[None]:
    """Hold a run that is launched again by a new spec; if it never trains, all is put back."""
    from drumline.spec.load import read_run_spec, write_run_spec

    summary, aside = run.path / "summary.json", run.path / ".summary.before"
    with _locked(run), noted_failure(run):
        (run.path / FAILURE).unlink(missing_ok=True)
        tail = EventTail(run.rank_events(0))
        tail.read()
        before = read_run_spec(run)
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
        with _locked(run):
            failure = run.read_json(FAILURE)
    except UsageError:
        return "running", None
    if failure is None:
        return "killed", None
    interrupted = failure.get("type") == InterruptError.__name__
    return "interrupted" if interrupted else "failed", failure.get("message")


@contextlib.contextmanager
def _locked(run: RunDir) -> Iterator[None]:
    """Hold a run's directory against other launchers; the kernel lets go if we die.

    Raises:
        UsageError: another launcher holds it.
    """
    lock = FileLock(run.path, flags=os.O_RDONLY)
    if not lock.acquire(_LOCK_S):  # somebody who only looks at the run lets go of it at once
        raise UsageError(
            f"{run.path.name} is being trained by another command right now; wait for it"
        )
    try:
        yield
    finally:
        lock.release()


def _has_trained(tail: EventTail) -> bool:
    return any(event["event"] == "step" for event in tail.read())
