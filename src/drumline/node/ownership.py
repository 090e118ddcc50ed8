"""What of a cluster is on a machine that its owner lends: the folder R, and processes out of it.

    python3 - claim  R MARK     make R ours, or say whose it is
    python3 - list   R MARK     the folder, and what runs
    python3 - clear  R MARK     end what runs, and remove the folder

MARK says which cluster's node this is, as JSON; R/drumline.json holds it. A folder without it, or
with another cluster's, is not ours: nothing in it is touched. A cluster is known by its name and
its id: two laptops may think of the same name. The file is sent as text, before anything of ours is
on the node: nothing but the standard library, Python 3.8.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import Any

NOTE = "drumline.json"
TERM_S, KILL_S = 5.0, 5.0


def _owner(root: str) -> Any:
    """Return the mark of a folder; None where there is no folder, {} where it has none."""
    if not os.path.lexists(root):
        return None
    try:
        with open(os.path.join(root, NOTE), encoding="utf-8") as file:
            found = json.load(file)
            return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        pass
    return {} if not os.path.isdir(root) or os.listdir(root) else None


def _processes(root: str) -> dict[int, str]:
    """Return this user's processes that run in the folder, or out of it; not us and our parents."""
    root = os.path.realpath(root)
    ours = set()
    pid = os.getpid()
    while pid > 1:
        ours.add(pid)
        pid = _parent(pid)
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in ours:
            with contextlib.suppress(OSError):
                line = _command_line(root, name)
                if line is not None and os.stat("/proc/" + name).st_uid == os.getuid():
                    found[int(name)] = line
    return found


def _command_line(root: str, pid: str) -> str | None:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        argv = file.read().decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    places = [arg.partition("=")[2] if "=/" in arg else arg for arg in argv]
    places.append(os.readlink(f"/proc/{pid}/cwd"))
    if any(place == root or place.startswith(root + "/") for place in places):
        return " ".join(argv)[:200]
    return None


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _end(root: str) -> list[int]:
    """End the processes, by SIGTERM, then SIGKILL; returns those that are left."""
    left: dict[int, str] = {}
    for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        for pid in _processes(root):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        left = _processes(root)
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = _processes(root)
        if not left:
            break
    return sorted(left)


def main(argv: list[str]) -> dict[str, object]:
    """Claim, inspect or clear the node's folder R on a machine that its owner lends."""
    what, root, mark = argv[0], os.path.normpath(argv[1]), json.loads(argv[2])
    if root in ("/", os.path.expanduser("~")) or not os.path.isabs(root):
        return {"error": f"root is {root}, which is not a folder for Drumline alone"}
    found = _owner(root)
    is_new = what == "claim" and found is None
    if is_new:
        os.makedirs(root, exist_ok=True)
        draft = os.path.join(root, f".{NOTE}.{os.getpid()}")
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(mark, file)
        os.replace(draft, os.path.join(root, NOTE))
        found = mark
    if not found or any(found.get(key) != mark[key] for key in ("cluster", "id")):
        return {"owner": found, "ours": False}
    if what == "clear":
        left = _end(root)
        if left:
            return {"error": f"processes {left} do not end"}
        shutil.rmtree(root)
        return {"owner": None, "ours": True}
    running = list(_processes(root).values())
    return {"owner": found, "ours": True, "new": is_new, "processes": running}


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1:])
    except OSError as error:
        answer = {"error": f"{error.strerror}: {error.filename}"}
    print(json.dumps(answer))
