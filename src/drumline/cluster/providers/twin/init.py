"""`python -m drumline.cluster.providers.twin.init HOME NAME HOST`: a node's first process.

It is PID 1 of the node's PID namespace, so that the kernel ends everything on the node with it:
sessions, and jobs that have left their session. The host moves the node's link in from outside.

    host ── starts ──▶ (1) new namespaces, fork ──▶ (2) PID 1 in them
         ◀─ {"pid": …} ─┘                              │
         ── what to mount and to start, one line ─────▶│ (3)
         ◀─ {} or {"error": …} ────────────────────────┘ (4) sshd, timer, reap, until SIGTERM

Standard library only, and little of it: it is started once for each node. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from drumline.core.processes import call_libc, die_with_parent

if TYPE_CHECKING:
    from drumline.core.json_lines import Message

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_PR_CAP_AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR = 47, 2, 4
_CAP_NET_BIND_SERVICE = 10


def main() -> int:
    """Run as the init process of a twin node, in namespaces of its own."""
    die_with_parent(int(sys.argv[3]))
    spaces = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
    call_libc("unshare", spaces)  # (1)
    pid = os.fork()
    if pid:
        _report({"pid": pid})
        _hang_up(2)  # the line to the host is the node's alone
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    die_with_parent()  # where the parent went before that, there is nobody to read from below
    request = sys.stdin.readline()
    if not request:
        return 0
    wanted = json.loads(request)
    try:
        _furnish(wanted)  # (3)
    except OSError as error:
        _report({"error": f"{error.strerror or error} {error.filename or ''}".strip()})
        return 1
    _report({})
    _hang_up(os.open(os.devnull, os.O_RDONLY))
    _live(wanted)
    return 0


def _furnish(wanted: Message) -> None:
    """Give the node files, a name and limits of its own; raises OSError if the kernel refuses."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)  # others see nothing of what follows
    for target, options in wanted["memory"]:
        _mount("tmpfs", target, b"tmpfs", _MS_NOSUID | _MS_NODEV, options)
    for folder in wanted["folders"]:
        os.makedirs(folder, exist_ok=True)
    for source, target in wanted["binds"]:
        _mount(source, target, None, _MS_BIND)
    try:
        _mount("proc", "/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:  # a container that hides parts of /proc: then process lists are the machine's
        print("no /proc of its own", file=sys.stderr)
    name = wanted["name"].encode()
    call_libc("sethostname", name, len(name))
    for name, content in wanted["limits"].items():
        path = os.path.join(wanted["limits_folder"], name)
        os.makedirs(wanted["limits_folder"], exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
    os.umask(0o022)  # the host's is stricter
    _keep_only_low_ports()


def _keep_only_low_ports() -> None:
    """Let programs that are started from here keep one right: to listen on ports below 1024.

    In a user namespace a process has all rights over it, and by those over its own read-only
    files; programs on a node are to find what they would find on a machine.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, _CAP_NET_BIND_SERVICE, 0, 0)


def _mount(source: str, target: str, kind: bytes | None, flags: int, options: str = "") -> None:
    paths = os.fsencode(source), os.fsencode(target)
    call_libc("mount", *paths, kind, flags, options.encode() or None)


def _live(wanted: Message) -> None:
    """Start the SSH server when it is time, look after the limits, and reap, until SIGTERM. (4)"""
    awaited = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    now = time.monotonic()
    server, timer = wanted["server"], wanted["timer"]
    jobs = [(now + wanted["boot_s"], 0.0, server)] if server else []
    jobs += [(now, wanted["check_s"], timer)] if timer else []
    while True:
        now = time.monotonic()
        for job in [job for job in jobs if job[0] <= now]:
            jobs.remove(job)
            _start(job[2])
            if job[1]:
                jobs.append((now + job[1], job[1], job[2]))
        pause = min((job[0] - now for job in jobs), default=3600.0)
        got = signal.sigtimedwait(awaited, max(0.0, pause))
        if got is not None and got.si_signo == signal.SIGTERM:
            return
        _reap()


def _start(command: list[str]) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    try:
        os.posix_spawn(command[0], command, environment, setsigmask=(), setsigdef=(signal.SIGPIPE,))
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", file=sys.stderr)


def _reap() -> None:
    """Collect processes that have ended: ours, and those whose parents have left them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _hang_up(other: int) -> None:
    os.dup2(other, 0)
    os.dup2(2, 1)


def _report(values: dict[str, object]) -> None:
    os.write(1, json.dumps(values).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
