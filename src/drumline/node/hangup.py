"""Runs a command that ends with the connection it was started by: `python3 -c THIS-FILE COMMAND…`.

Without a terminal, an SSH server tells nobody that the client is gone: a command notices when it
reads or writes, or never. This process watches the pipes to the server meanwhile. When their other
ends close, the command and what it started get SIGHUP, and five seconds later SIGKILL; what has
moved to a session of its own lives on. The file is sent as text, before anything of ours is on the
node: nothing but the standard library, Python 3.8.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

GRACE_S = 5.0


def main(argv: list[str]) -> int:
    """Run a command on the node that ends with its connection; returns its exit code or 128 + n."""
    awake, bell = os.pipe()
    for end in (awake, bell):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if not child:
        _become(argv)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDONLY)  # the input is the command's alone
    os.dup2(null, 0)
    poll = select.poll()
    poll.register(awake, select.POLLIN)
    for end in (1, 2):
        poll.register(end, 0)  # errors and hang-ups are told without asking
    deadline = None
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if deadline is not None and time.monotonic() > deadline:
            os.killpg(0, signal.SIGKILL)
        events = poll.poll(None if deadline is None else 200)
        if deadline is None and any(e & (select.POLLERR | select.POLLHUP) for _, e in events):
            deadline = time.monotonic() + GRACE_S
            poll.unregister(1)
            poll.unregister(2)
            os.killpg(0, signal.SIGHUP)
        with suppress(BlockingIOError):
            os.read(awake, 512)


def _become(argv: list[str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGCHLD):  # Python ignores the first one
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
