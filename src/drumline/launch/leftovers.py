"""What launches that were killed have left: found, ended, removed.

By design there is nothing but a temporary folder, and semaphores of its name: processes end with
their parent, and simulated networks with the last process in them. But a kernel may be strange, or
a container's init not reap; then a process is ours if it was told a launch's temporary folder, and
stray if nobody holds that folder any more.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from drumline.core.scratch import is_held, sweep
from drumline.core.task import SCRATCH


def remove_leftovers() -> list[str]:
    """End stray processes, remove folders without an owner and their semaphores; says what."""
    ended = []
    for pid, command in stray_processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
        ended.append(f"ended process {pid}: {command}")
    return [*ended, *(f"removed {path}" for path in sweep())]


def stray_processes() -> list[tuple[int, str]]:
    """Find processes of launches that are gone: their number, and what they run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) == os.getpid() or entry.stat().st_uid != os.getuid():
                continue
            folder = _scratch_of(entry)
            if folder is None or is_held(folder) or not (folder.exists() or _is_orphan(entry)):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile, or is not ours to look at
            continue
        found.append((int(entry.name), command.strip()[:100]))
    return found


def _scratch_of(entry: Path) -> Path | None:
    for variable in (entry / "environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == SCRATCH.encode() and value:
            # as that process sees it: it may live in a container with folders of its own
            return entry / "root" / os.fsdecode(value).lstrip("/")
    return None


def _is_orphan(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[1] == "1"
