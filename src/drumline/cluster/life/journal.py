"""`Journal`: what was going to be done to a cloud, written down before it is done.

    intend(create …) ─▶ fsync ─▶ the call ─▶ did(…) ─▶ fsync

An intent without a result is a call of which nobody knows whether it arrived; whoever continues
looks at those first. What exists is what the cloud says by tags: a lost journal loses nothing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.core.errors import ClusterError
from drumline.core.files import fsync
from drumline.core.json_lines import Message


@dataclass(frozen=True, kw_only=True)
class Intent:
    """One call that was about to be made."""

    number: str
    """names it within its journal"""
    action: str
    what: Message = field(default_factory=dict)
    at: float = 0.0
    """seconds of the epoch"""


class Journal:
    """Lines of JSON that are only ever added to; each is on the disk before its call returns.

    Threads may share one. `path` None keeps nothing: for somebody who removes another laptop's
    cluster. A `forgiving` one goes on where it cannot be written: nothing may be made without a
    line before it, but whatever is to go must go, though the disk is full.
    """

    def __init__(self, path: Path | None, *, forgives: bool = False) -> None:
        self._path = path
        self._forgives = forgives
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def forgiving(self) -> Journal:
        """Return it as whoever removes something writes it."""
        return Journal(self._path, forgives=True)

    def intend(self, action: str, **what: Any) -> Intent:
        """Write down what is about to be done; call it before the call that does it."""
        number = f"{os.getpid()}-{time.time_ns()}-{next(self._numbers)}"
        intent = Intent(number=number, action=action, what=what, at=time.time())
        self._append("intend", intent, what)
        return intent

    def did(self, intent: Intent, **result: Any) -> None:
        """Write down that it was done."""
        self._append("did", intent, result)

    def failed(self, intent: Intent, why: str) -> None:
        """Write down that it was refused, so that nothing came of it."""
        self._append("failed", intent, {"why": why})

    def read(self) -> list[Message]:
        """Return all lines; one that a crash cut short is left out."""
        if self._path is None or not self._path.exists():
            return []
        lines = []
        for text in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(line := json.loads(text), dict):
                    lines.append(line)
        return lines

    def intents(self, action: str) -> list[Intent]:
        """Return all intents of an action, in order."""
        known = {"intend", "action", "at"}
        return [
            Intent(
                number=line["intend"],
                action=action,
                what={key: value for key, value in line.items() if key not in known},
                at=float(line.get("at", 0.0)),
            )
            for line in self.read()
            if line.get("action") == action and "intend" in line
        ]

    def open_intents(self, action: str) -> list[Intent]:
        """Return the intents of an action of which no result is known, in order."""
        closed = {line.get("did") or line.get("failed") for line in self.read()}
        return [intent for intent in self.intents(action) if intent.number not in closed]

    def done(self, action: str) -> list[tuple[Intent, Message]]:
        """Return the intents of an action that came to be, each with the line that says so."""
        results = {line["did"]: line for line in self.read() if "did" in line}
        return [(one, results[one.number]) for one in self.intents(action) if one.number in results]

    def _append(self, what: str, intent: Intent, fields: Message) -> None:
        line = {what: intent.number, "action": intent.action, "at": round(time.time(), 3), **fields}
        if self._path is None:
            return
        try:
            with self._lock:
                _append_line(self._path, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            if not self._forgives:
                raise ClusterError(
                    f"cannot write {self._path}: {error.strerror}; nothing is made that is not "
                    f"written down before: make room there, then run this again"
                ) from None


def _append_line(path: Path, line: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = not path.exists()
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    with open(os.open(path, flags, 0o600), "rb+", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":  # a crash cut a line short
            line = b"\n" + line
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    if fresh:
        fsync(path.parent)  # its name is to be as durable as its content
