"""The event log: one append-only JSONL file per rank, which is all that other processes see of it.

Writers buffer lines and hand them to the kernel a few times a second, so that a line costs
microseconds on the training path. Readers follow a growing file and never see half a line.

    events/rank-N.jsonl
        start        rank, attempt, pid, host, time
        setup        device, threads
        backend      backend, wanted, why
        clock        ahead_ns: this host's monotonic clock, compared with the leader's
        restore      step, path                  damaged   path, why (a checkpoint passed over)
        ready        total_steps, steps_per_epoch; mesh, cuts where the model is split
        step         step, epoch, loss, lr, samples; times of `train.clock.StepTimes`
        epoch        step, epoch, loss, lr, test_loss, accuracy (the leader's)
        checkpoint   step, path, seconds         note      text
        error        type, message, exit_code, rank, time, expected, consequence, …
        end          step, time, sent, peak_bytes, peak_gpu_bytes
    events/node-N.jsonl
        agent        node, pid, time             stopped   time
        worker_exit  rank, exit_code, time
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from drumline.core.errors import RunDirError
from drumline.core.files import GrowingFile

Event = dict[str, Any]
EventKind = Literal[
    "agent",
    "backend",
    "checkpoint",
    "clock",
    "damaged",
    "end",
    "epoch",
    "error",
    "note",
    "ready",
    "restore",
    "setup",
    "start",
    "step",
    "stopped",
    "worker_exit",
]

FLUSH_EVERY_S = 0.2


class EventWriter:
    """Append events to one file; flushed by time, on demand and on close."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._mend_torn_line(path)
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
        """Hand all lines to the kernel.

        Raises:
            RunDirError: they cannot be written, say because the disk is full.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise self._explain(error) from None

    def close(self) -> None:
        """Flush and close; the file is closed even where flushing fails.

        Raises:
            RunDirError: the last lines cannot be written.
        """
        try:
            self._file.close()
        except OSError as error:
            raise self._explain(error) from None

    def _explain(self, error: OSError) -> RunDirError:
        return RunDirError(
            f"cannot write {self._path}: {error.strerror}; make room there, then continue with "
            f"drumline train resume={self._path.parents[1]}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _mend_torn_line(path: Path) -> None:
        """End a line that a killed writer left half written, so that ours starts on its own."""
        with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
            if file.seek(0, 2) > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")


class EventTail:
    """Read what a growing event file gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)

    def read(self) -> list[Event]:
        """Return the whole lines that were added since the last call; torn ones are passed over."""
        return list(_parse(self._file.read()))


def read_events(path: Path) -> list[Event]:
    """Return all whole events of a file; an absent file has none."""
    return EventTail(path).read()


def _parse(chunk: bytes) -> Iterator[Event]:
    for line in chunk.splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                yield event
