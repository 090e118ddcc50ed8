"""Ending the connections that OpenSSH keeps open for the next command. Standard library alone."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

_EXIT_S = 10.0


def hang_up(folder: Path) -> None:
    """End the connections whose sockets are in a folder, all at once."""
    quiet = subprocess.DEVNULL
    leaving = [
        subprocess.Popen(
            ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "node"],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )
        for socket in (folder.iterdir() if folder.is_dir() else ())
        if socket.is_socket()
    ]
    for one in leaving:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(_EXIT_S)
        if one.poll() is None:
            one.kill()
            one.wait()
