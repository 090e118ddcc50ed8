"""Processes that end with their parent, signals held back meanwhile, system calls, cores.

`die_with_parent`: on Linux the kernel sends the signal, even where the parent got SIGKILL and this
process is stopped or deep in a C library. Elsewhere a thread looks for the parent twice a second.

`deferred_signals`: Python raises KeyboardInterrupt between any two instructions: after a folder is
made and before anybody knows of it, or in the middle of its removal. Inside the context the signals
that end a command are only noted; they are raised where it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def die_with_parent(parent: int | None = None) -> None:
    """End this process (SIGKILL) as soon as its parent process is gone.

    `parent` is who should be the parent, where that is known: it may be gone already.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        when_parent_ends(parent, _die)
    if os.getppid() != parent:  # it went before we asked
        _die()


def when_parent_ends(parent: int, then: Callable[[], None]) -> None:
    """Call a function, in a thread of its own, as soon as the parent process is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        then()

    threading.Thread(target=watch, daemon=True).start()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def call_libc(name: str, *arguments: int | bytes | None) -> None:
    """Make a system call that Python 3.11 has no function for; raises OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def exit_at_once(code: int) -> NoReturn:
    """End this process without destructors: torch's take long, or wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer this process's signals until the context ends; those without a handler end it as ever.

    Handlers are exchanged, and no mask is set: children would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread gets signals
        yield
        return
    came: list[int] = []
    handlers = {
        number: handler for number in _ENDING if callable(handler := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def start_detached(argv: Sequence[str], *, cwd: Path | None = None, given: str = "") -> None:
    """Start a process that outlives this one, with `given` as its input; its output is dropped."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(given)


def start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks; None where it is gone.

    PIDs are reused: with this, a PID identifies a process for good.
    """
    fields = _read_stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; false where the system does not say."""
    return _read_stat(pid)[:1] == ["T"]


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name; none where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def count_cores() -> int:
    """Return the CPU cores that the scheduler gives this process, where it says so, or else all."""
    mine = getattr(os, "sched_getaffinity", None)
    return len(mine(0)) if mine is not None else os.cpu_count() or 1


def main() -> None:
    """Become another command that ends with a process: `… processes PARENT COMMAND …`."""
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
