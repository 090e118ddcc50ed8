"""A node's side of `drumline pull`: `python -m drumline.node.send ROOT JOB`, in lines of JSON.

    laptop ── {"list": true} ─────────────────────────▶  node
           ◀─ {"file": name, "bytes": …, "mtime": …} …
           ◀─ {"listed": n, "phase": "running"}
           ── {"get": name, "offset": …, "sha256": …} ▶  one line for each file that it wants
           ◀─ {"send": name, "offset": …, "bytes": …}     0: the node's file begins differently
           ◀─ base64 …                                    each line a piece of the file
           ◀─ {"sent": name, "sha256": …}                 of the whole file, as far as it was sent

What is told of: the job's state, its run directory, and in its working directory what the job has
made or changed there. Nothing else: a job's folder also holds what its nodes know each other by.
No torch and no pydantic: it must start quickly.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from drumline.core.errors import UsageError
from drumline.node.folder import Busy
from drumline.node.job import JobFolder

PIECE = 36 << 10  # bytes of a line before base64, so that a line stays below 64 KiB
TOLD = ("state.json", "storage.json", "runner.log")
_SKIPPED = ("__pycache__", ".git", ".ipynb_checkpoints")


def list_job(job: Path) -> Iterator[dict[str, Any]]:
    """Give the files of a job that a person wants to keep."""
    for name in TOLD:
        yield from _entry(job, name)
    for name in _walk(job, "run"):
        if not any(part.startswith(".") for part in name.split("/")):  # those are half written
            yield from _entry(job, name)
    since = _mtime(job / "job.json")
    for name in _walk(job, "work"):
        if _is_new(job / name, since):
            yield from _entry(job, name)


def _walk(job: Path, part: str) -> Iterator[str]:
    for folder, folders, files in os.walk(job / part):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(files):
            yield (Path(folder) / name).relative_to(job).as_posix()


def _is_new(path: Path, since: int) -> bool:
    """Whether the job has made or changed a file, rather than got it with the code.

    job.json is written after the snapshot was taken and before the job starts. What the job writes,
    or moves there, was changed later by the kernel's own account (ctime), whatever date it bears.
    Clocks tick slowly: in the tick that both fall into, the date decides.
    """
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return (found.st_ctime_ns, found.st_mtime_ns) >= (since, since)


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _entry(job: Path, name: str) -> Iterator[dict[str, Any]]:
    try:
        found = (job / name).stat(follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISREG(found.st_mode):
        yield {"file": name, "bytes": found.st_size, "mtime": found.st_mtime_ns}


def send(job: Path, asked: dict[str, Any], out: TextIO, busy: Busy) -> None:
    """Send a file from where the laptop's copy ends, or from its start where that differs."""
    name = str(asked["get"])
    path = job / name
    try:
        if not path.resolve().is_relative_to(job.resolve()):
            raise PermissionError(1, "it is not in the job's folder")
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            unless = asked.get("unless")
            if unless and hashlib.file_digest(file, "sha256").hexdigest() == unless:
                _say(out, same=name)
                return
            file.seek(0)
            digest, offset = _begin(file, end, asked)
            _say(out, send=name, offset=offset, bytes=end)
            while offset < end and (piece := file.read(min(PIECE, end - offset))):
                digest.update(piece)
                offset += len(piece)
                busy.tick()
                out.write(base64.b64encode(piece).decode() + "\n")
            _say(out, sent=name, sha256=digest.hexdigest(), bytes=offset)
    except OSError as error:
        _say(out, gone=name, why=error.strerror or str(error))


def _begin(file: Any, end: int, asked: dict[str, Any]) -> tuple[Any, int]:
    """Find where to go on: behind what the laptop has, if the file begins with that."""
    offset = int(asked.get("offset", 0))
    if 0 < offset <= end:
        digest = hashlib.sha256()
        left = offset
        while left and (piece := file.read(min(1 << 20, left))):
            digest.update(piece)
            left -= len(piece)
        if not left and digest.hexdigest() == asked.get("sha256"):
            return digest, offset
        file.seek(0)
    return hashlib.sha256(), 0


def _say(out: TextIO, **values: Any) -> None:
    out.write(json.dumps(values) + "\n")
    out.flush()


def phase_of(job: Path) -> str:
    """Return how far the job has come; "" where nobody knows."""
    if not (job / "state.json").exists():
        return ""
    try:
        return JobFolder(job.parents[1], job.name).read_state().phase
    except (OSError, ValueError, UsageError):
        return ""


def main() -> None:
    """Answer what the laptop asks, until it hangs up."""
    root, name = sys.argv[1:]
    job, busy = JobFolder(Path(root), name).path, Busy(root)
    for line in sys.stdin:
        asked = json.loads(line)
        if "get" in asked:
            send(job, asked, sys.stdout, busy)
            continue
        phase, count = phase_of(job), 0  # before the files: what an ended job has is all there
        for entry in list_job(job):
            _say(sys.stdout, **entry)
            count += 1
        _say(sys.stdout, listed=count, phase=phase, there=job.is_dir())


if __name__ == "__main__":
    main()
