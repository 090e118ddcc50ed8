"""A node's side of `drumline pull`: `python -m drumline.node.send ROOT JOB`, in JSON lines.

    laptop ── {"list": true} ─────────────────────────▶  node
           ◀─ {"file": name, "bytes": …, "mtime": …} …
           ◀─ {"listed": n, "phase": "running"}
           ── {"get": name, "offset": …, "sha256": …} ▶  one request for each file that it wants
           ◀─ {"send": name, "offset": …, "bytes": …}     0: the node's file begins differently
           ◀─ frames (core/json_lines)                    from that offset on
           ◀─ {"sent": name, "sha256": …}                 of the whole file, as far as it was sent

Only these are listed: the job's state, its run directory, and in its working directory what the job
has created or changed. A job's folder also holds the secret that its nodes share. No torch and no
pydantic: it must start quickly.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from drumline.core.json_lines import FRAME_BYTES, JsonStream, Message, Record
from drumline.node.folder import BusySign
from drumline.node.job import JobFolder

TOLD = ("state.json", "storage.json", "runner.log")
_SKIPPED = ("__pycache__", ".git", ".ipynb_checkpoints")


@dataclass(frozen=True, kw_only=True)
class ListedFile(Record):
    """A file that can be pulled."""

    file: str
    """its name below the job's folder"""
    bytes: int
    mtime: int
    """in nanoseconds"""


def list_job(job: Path) -> Iterator[ListedFile]:
    """Yield the files of a job on this node that `drumline pull` is to bring to the laptop.

    Of the working directory those that the job has created or changed, rather than got with the
    code. job.json is written after the snapshot was taken and before the job starts. What the job
    writes, or moves there, was changed later by the kernel's own account (ctime), whatever date it
    bears. Clocks tick slowly: in the tick that both fall into, the date decides.
    """
    submitted = _stat(job / "job.json")
    since = submitted.st_mtime_ns if submitted else 0
    for name in (*TOLD, *_walk(job, "run"), *_walk(job, "work")):
        found = _stat(job / name)
        if found is None or not stat.S_ISREG(found.st_mode):
            continue
        if name.startswith("run/") and "/." in name:  # half written
            continue
        if name.startswith("run/events/") and name.endswith(".status"):  # of this moment
            continue
        if name.startswith("work/") and (found.st_ctime_ns, found.st_mtime_ns) < (since, since):
            continue
        yield ListedFile(file=name, bytes=found.st_size, mtime=found.st_mtime_ns)


def _walk(job: Path, part: str) -> Iterator[str]:
    for folder, folders, files in os.walk(job / part):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(files):
            yield (Path(folder) / name).relative_to(job).as_posix()


def _stat(path: Path) -> os.stat_result | None:
    """Return what is known of a file itself, not of what it links to; None where there is none."""
    try:
        return path.stat(follow_symlinks=False)
    except OSError:
        return None


class _Reader:
    """Reads a file in pieces, as far as it went when it was opened, and hashes all of it."""

    def __init__(self, file: BinaryIO, busy: BusySign) -> None:
        self._file = file
        self._busy = busy
        self.end = os.fstat(file.fileno()).st_size
        self.digest = hashlib.sha256()
        self.offset = 0
        self.failed = ""

    def seek(self, request: Message) -> None:
        """Resume after what the laptop has, if the file begins with that."""
        offset = int(request.get("offset", 0))
        if 0 < offset <= self.end:
            for _ in self._read(offset):
                pass
            if self.offset == offset and self.digest.hexdigest() == request.get("sha256"):
                return
            self._file.seek(0)
            self.offset, self.digest = 0, hashlib.sha256()

    def pieces(self) -> Iterator[bytes]:
        """Give the rest; an error ends it early, and is kept."""
        try:
            yield from self._read(self.end)
        except OSError as error:
            self.failed = error.strerror or str(error)

    def _read(self, end: int) -> Iterator[bytes]:
        while self.offset < end and (piece := self._file.read(min(FRAME_BYTES, end - self.offset))):
            self.digest.update(piece)
            self.offset += len(piece)
            self._busy.tick()
            yield piece


def _send(job: Path, request: Message, stream: JsonStream, busy: BusySign) -> None:
    """Send a file from where the laptop's copy ends, or from its start where that differs."""
    name = str(request["get"])
    path = job / name
    try:
        if not path.resolve().is_relative_to(job.resolve()):
            raise PermissionError(1, "it is not in the job's folder")
        with path.open("rb") as file:
            unless = request.get("unless")
            if unless and hashlib.file_digest(file, "sha256").hexdigest() == unless:
                stream.send(same=name)
                return
            file.seek(0)
            reader = _Reader(file, busy)
            reader.seek(request)
            stream.send(send=name, offset=reader.offset, bytes=reader.end)
            stream.write_frames(reader.pieces())
    except OSError as error:
        stream.send(gone=name, why=error.strerror or str(error))
        return
    if reader.failed:
        stream.send(gone=name, why=reader.failed)
    else:
        stream.send(sent=name, sha256=reader.digest.hexdigest(), bytes=reader.offset)


def main() -> None:
    """Send a job's files from this node as the laptop requests them, until it disconnects."""
    root, name = sys.argv[1:]
    folder, busy = JobFolder(Path(root), name), BusySign(root)
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    for request in stream:
        if "get" in request:
            _send(folder.path, request, stream, busy)
            continue
        phase, count = "", 0
        with suppress(OSError, ValueError):  # before the files: what an ended job has is all there
            if (folder.path / "state.json").exists():
                phase = folder.read_state().phase
        for file in list_job(folder.path):
            stream.send(**file.to_json())
            count += 1
        stream.send(listed=count, phase=phase, there=folder.path.is_dir())


if __name__ == "__main__":
    main()
