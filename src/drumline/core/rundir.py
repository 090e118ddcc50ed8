"""`RunDir`: the layout of a run on disk, the one thing that both columns read and write.

runs/<name>-<n>/
    spec.yaml        the resolved spec; a script has none   written by the launcher
    manifest.json    versions, commit, hosts, argv          written by the launcher
    events/          rank-N.jsonl, node-N.jsonl             appended by ranks and agents
    logs/            rank-N.log: what each rank printed
    checkpoints/     step-N/                                written by the ranks
    tensorboard/     scalars                                written by the leader
    coverage.json    which rank saw which samples           written by the leader
    summary.json     the result; its presence means: done   written by the leader, or the launcher

The event log is one append-only JSONL file per rank, all that other processes see of it. Writers
buffer lines and hand them to the kernel a few times a second, so that a line costs microseconds on
the training path. Readers follow a growing file and never see half a line.

    events/rank-N.jsonl
        start        rank, attempt, pid, host, time
        setup        device, threads
        backend      backend, wanted, why
        clock        ahead_ns: this host's monotonic clock, compared with the leader's
        restore      step, path                  damaged   path, why (a checkpoint passed over)
        ready        total_steps, steps_per_epoch; mesh, cuts where the model is split
        step         step, epoch, loss, lr, samples; the times of `trainer.runners.base.StepTimes`
                     (a script's: no epoch, loss, lr; samples where its data loader tells them)
        collectives  t, total, blocked, spans: what a script's rank did outside of steps, about
                     once a second. A span is op, nbytes (as nccl-tests count it), arrived_ns,
                     ended_ns, ranks (none: all), and, where known, the call's number in its group,
                     the same on all its ranks, and the group
        stacks       stacks of all threads           hang   what the ranks wait for
        epoch        step, epoch, loss, lr, test_loss, metrics by name, validation (the leader's)
        checkpoint   step, path, seconds         note      text
        error        type, message, exit_code, rank, time, expected, consequence, …
        end          step, time, sent, peak_bytes, peak_gpu_bytes
    events/node-N.jsonl
        agent        node, pid, time             stopped   time
        worker_exit  rank, exit_code, time
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from drumline.core.errors import RunDirError, UsageError
from drumline.core.files import GrowingFile, write_atomic
from drumline.core.lock import FileLock

FAILURE = "failure.json"
"""how a run has failed"""
PROGRESS = "progress.json"
"""how far the ranks of a probe have come"""
Event = dict[str, Any]
EventKind = Literal[
    "agent",
    "backend",
    "checkpoint",
    "clock",
    "collectives",
    "damaged",
    "end",
    "epoch",
    "error",
    "hang",
    "note",
    "ready",
    "restart",
    "restore",
    "setup",
    "stacks",
    "start",
    "step",
    "stopped",
    "worker_exit",
]

_HEAD = re.compile(rb'\{"event": ?"(?:step|collectives)"(?:, ?"\w+": ?[^][{}",\s]+)+')
"""what such an event begins with: its numbers, up to the first of its rows"""
_PIECE = 1 << 24
"""of a growing file, in bytes; longer than any line"""
FLUSH_EVERY_S = 0.2
_LOCK_S = 0.2  # somebody who only looks at a run holds it for a moment


class RunDir:
    """One run's directory, whether it exists or not; the module's docstring draws it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec_file = path / "spec.yaml"  # a run of a script has none
        self.events = path / "events"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.rendezvous = path / "rendezvous"  # of ranks, with `init: tcp` and `init: file`

    @classmethod
    def create(cls, name: str, *, root: Path, exact: Path | None = None) -> RunDir:
        """Make `root/<name>-<n>` with the first free n, or exactly the given path.

        Raises:
            UsageError: the exact path exists already.
            RunDirError: the folder cannot be written.
        """
        try:
            path = _make_first_free(root, name) if exact is None else _make_exact(exact)
            run = cls(path.absolute())
            for folder in (run.events, run.logs):
                folder.mkdir()
        except OSError as error:
            raise RunDirError(
                f"cannot make a run directory in {exact or root}: {error.strerror}; "
                f"go to a folder that you can write to, or give one with --out"
            ) from None
        return run

    @classmethod
    def open(cls, name: str, *, root: Path) -> RunDir:
        """Find a run by its path, or by its name under `root`.

        Raises:
            UsageError: there is no such run; lists the newest ones.
        """
        for path in (Path(name), root / name):
            if (path / "manifest.json").is_file():
                return cls(path.absolute())
        known = [run.path.name for run in list_runs(root)[:5]]
        hint = f"there are none in {root}/; give a run's path, or start one with: drumline train"
        if known:
            hint = f"the newest are {', '.join(known)}; name one of them, or give a run's path"
        raise UsageError(f"no run {name!r}: {hint}")

    def word(self, *, root: Path) -> str:
        """Return what `open` finds it by: its name where it is under `root`, else its path."""
        return self.path.name if self.path.parent == root.absolute() else str(self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory against other launchers; the kernel lets go if we die.

        Raises:
            UsageError: another launcher holds it.
        """
        lock = FileLock(self.path, flags=os.O_RDONLY)
        if not lock.acquire(_LOCK_S):
            raise UsageError(
                f"{self.path.name} is being trained by another command right now; wait for it"
            )
        with lock:
            yield

    def rank_events(self, rank: int) -> Path:
        """The event log of one rank."""
        return self.events / f"rank-{rank}.jsonl"

    def node_events(self, node: int) -> Path:
        """The event log of one node's agent."""
        return self.events / f"node-{node}.jsonl"

    @property
    def launcher_events(self) -> Path:
        """What the launcher has seen: hangs."""
        return self.events / "launcher.jsonl"

    def rank_log(self, rank: int) -> Path:
        """What one rank printed."""
        return self.logs / f"rank-{rank}.log"

    def rank_status(self, rank: int) -> Path:
        """What one rank is doing right now (`core.status`)."""
        return self.events / f"rank-{rank}.status"

    def rank_stacks(self, rank: int) -> Path:
        """The Python stacks of one rank, each time somebody has asked for them."""
        return self.logs / f"rank-{rank}.stacks"

    def node_log(self, node: int) -> Path:
        """What one node's agent printed."""
        return self.logs / f"node-{node}.log"

    def rank_logs(self, world_size: int) -> list[EventLog]:
        """Return the event logs of all ranks, in rank order, to be read one event at a time."""
        return [EventLog(self.rank_events(rank)) for rank in range(world_size)]

    def read_rank_events(self, world_size: int) -> list[list[Event]]:
        """Read the events of all ranks into memory: of a short run, or one that has not begun."""
        return [list(log) for log in self.rank_logs(world_size)]

    def count_ranks(self) -> int:
        """Count the ranks that have an event log, from rank 0 on: all that a script tells."""
        return next(rank for rank in itertools.count() if not self.rank_events(rank).exists())

    def write_json(self, name: str, value: object) -> None:
        """Write one of the JSON documents, atomically."""
        write_atomic(self.path / name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON document; None where there is none. Raises RunDirError if it is damaged."""
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunDirError(f"cannot read {path}: {error.strerror}") from None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RunDirError(
                f"{path} is damaged: it holds no JSON object; remove it, or restore it from a copy"
            )
        return value


def list_runs(root: Path) -> list[RunDir]:
    """Return the run directories under a folder, newest first."""
    found = [(file.stat().st_mtime, file.parent) for file in root.glob("*/manifest.json")]
    return [RunDir(path.absolute()) for _, path in sorted(found, reverse=True)]


def _make_exact(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        fix = "choose another --out"
        if (path / "manifest.json").is_file():
            fix += f", or continue that run with: drumline train resume={path}"
        raise UsageError(f"the run directory {path} exists already; {fix}") from None
    return path


def _make_first_free(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / f"{name}-{number}"
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1


class EventWriter(contextlib.AbstractContextManager["EventWriter"]):
    """Append events to one file; flushed by time, on demand and on close."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_torn_line(path)
        self._path = path
        self._file = path.open("a", encoding="utf-8", buffering=1 << 20)
        self._flushed = time.monotonic()

    def write(self, event: EventKind, **fields: Any) -> None:
        """Append one event; `flush` makes it visible to readers at once."""
        self._file.write(json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n")
        now = time.monotonic()
        if now - self._flushed > FLUSH_EVERY_S:
            self._flushed = now
            self.flush()

    def flush(self) -> None:
        """Hand all lines to the kernel; raises RunDirError if that fails: the disk may be full."""
        with self._as_run_dir_error():
            self._file.flush()

    def close(self) -> None:
        """Flush and close; the file is closed even if flushing raises a RunDirError."""
        with self._as_run_dir_error():
            self._file.close()

    @contextlib.contextmanager
    def _as_run_dir_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunDirError(
                f"cannot write {self._path}: {error.strerror}; make room there, then continue with "
                f"drumline train resume={self._path.parents[1]}"
            ) from None

    def __exit__(self, *_: object) -> None:
        self.close()


def describe_start(rank: int, *, attempt: int) -> dict[str, Any]:
    """Return the fields of the event with which a rank begins its log."""
    return {
        "rank": rank,
        "attempt": attempt,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "time": time.time(),
    }


def _end_torn_line(path: Path) -> None:
    """End a line that a killed writer left half written, so that ours starts on its own."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        if file.seek(0, 2) > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")


class EventTail(GrowingFile):
    """An event file that a rank or an agent appends to."""

    def read_events(self) -> list[Event]:
        """Return the events that were added since the last call; torn lines are passed over."""
        return list(self.new_events())

    def new_events(self) -> Iterator[Event]:
        """Give them one by one: a log that is looked at for the first time may be long."""
        while chunk := self.read(most=_PIECE):
            yield from (event for line in chunk.splitlines() if (event := _parse(line)) is not None)


class EventLog:
    """A file of events that is read line by line, each time anew: it may be larger than memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Event]:
        return self.read()

    def read(self, wanted: Callable[[Event], bool] | None = None) -> Iterator[Event]:
        """Read the whole events one by one, or those alone whose outline is wanted."""
        for line in self._lines():
            if wanted is None or ((outline := _outline(line)) is not None and wanted(outline)):
                event = _parse(line)
                if event is not None:
                    yield event

    def outlines(self) -> Iterator[Event]:
        """Read steps and stretches up to the rows that they list, which is quick; others whole."""
        return (event for line in self._lines() if (event := _outline(line)) is not None)

    def _lines(self) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _outline(line: bytes) -> Event | None:
    head = _HEAD.match(line)
    if head is None or b'"total"' not in head[0] or not line.endswith(b"}\n"):
        return _parse(line)  # it has no rows, other numbers than ours, or is torn
    return _parse(head[0] + b"}")


def _parse(line: bytes) -> Event | None:
    """Read a line; None if it is torn."""
    with contextlib.suppress(ValueError):
        value = json.loads(line)
        if isinstance(value, dict) and "event" in value:
            return value
    return None


def read_events(path: Path) -> list[Event]:
    """Return all whole events of a run directory's file; an absent file has none."""
    return list(EventLog(path))
