"""Only one command changes a cluster at a time; the second one says who the first is."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from drumline.cluster.home import ClusterHome
from drumline.core.errors import ClusterError
from drumline.core.formatting import format_seconds


@contextlib.contextmanager
def locked(home: ClusterHome) -> Iterator[None]:
    """Hold the cluster's lock; it goes with this process, whatever ends it.

    Raises:
        ClusterError: another command holds it; says which, whose and since when.
    """
    with _take(home) as file:
        file.truncate(0)
        with contextlib.suppress(OSError):  # it holds on a full disk, too, without its name
            os.write(file.fileno(), json.dumps(_holder()).encode())
        try:
            yield
        finally:
            file.truncate(0)


def _take(home: ClusterHome) -> TextIO:
    """Open the lock's file and lock it; again, where `down` has removed it in between."""
    while True:
        home.make()
        file = open(home.lock, "a+")  # noqa: SIM115  closed by whoever holds it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            note = file.read()
            file.close()
            raise ClusterError(
                f"the cluster {home.name} is being changed by {_describe(note)}; wait until that "
                f"has ended, or end it"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(home.lock)):
                return file
        file.close()


def _holder() -> dict[str, object]:
    words = " ".join(["drumline", *sys.argv[1:2]])
    return {"pid": os.getpid(), "what": words, "user": _user(), "at": time.time()}


def _user() -> str:
    try:
        return f"{getpass.getuser()} on {socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return f"user {os.getuid()} on {socket.gethostname()}"


def _describe(note: str) -> str:
    try:
        holder = json.loads(note)
        since = format_seconds(max(0.0, time.time() - holder["at"]))
        return f"`{holder['what']}` (process {holder['pid']} of {holder['user']}, since {since})"
    except (ValueError, KeyError, TypeError):
        return "another command"
