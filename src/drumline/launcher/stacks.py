"""The Python stacks of ranks that run: asked for by a signal, read from their files.

An observed rank has registered `faulthandler` for `STACKS_SIGNAL`: the signal's handler is written
in C and writes the stacks of all threads without Python's lock, so that a rank answers, too, that
hangs in a C library. A rank that is stopped does not answer; one that has no such handler (another
program has taken its place) would end of the signal, and is not asked.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.core.json_lines import Message
from drumline.core.processes import is_stopped
from drumline.core.rundir import RunDir
from drumline.core.status import STACKS_SIGNAL, read_status

_ANSWER_S = 1.0
_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.*)')
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*:")
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)
_STARTS = ("drumline/agent/", "drumline/observe.py", "<string>", "<frozen ")
"""by which a program was started: of no interest at the end of its stack"""
_HOOKS = "drumline/observer/"
"""where hooks are that the program does not know of"""
_LIBRARY = re.compile(
    r"-packages/|/lib/python3\.\d+/|^<(frozen |string>)|/drumline/(observe\.py|"
    r"(agent|comm|core|data|interactive|models|observer|optim|parallel|probe|trainer)/)"
)
"""how paths of libraries look: stacks of a cluster's nodes are read elsewhere, too"""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Where a thread is: one function of its stack."""

    path: str
    line: int
    function: str

    @property
    def of_library(self) -> bool:
        """Whether it is in a library rather than in the user's program."""
        return _LIBRARY.search(self.path) is not None

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """What one rank's threads were doing; each stack begins with where the thread is."""

    rank: int
    main: tuple[Frame, ...] = ()
    """of the main thread"""
    text: str = ""
    """of all threads, as faulthandler writes them"""
    silent: str = ""
    """why there is nothing, where the rank gave no answer"""

    @property
    def place(self) -> Frame | None:
        """Where the user's own code is, or else where the main thread is."""
        own = [frame for frame in self.main if not frame.of_library]
        return next(iter(own or self.main), None)


def observed_ranks(run: RunDir) -> list[int]:
    """Return the ranks of a run that are observed on this host."""
    return sorted(int(path.stem.partition("-")[2]) for path in run.events.glob("rank-*.status"))


def ask_stacks(run: RunDir, ranks: Sequence[int]) -> dict[int, Stacks]:
    """Ask ranks of this host for their stacks, and wait for the answers, one second at most."""
    found: dict[int, Stacks] = {}
    waiting: dict[int, int] = {}
    for rank in ranks:
        status = read_status(run.rank_status(rank), rank)
        if status is None:
            found[rank] = Stacks(rank=rank, silent="it is not observed")
        elif not status.is_alive or (mask := _caught(status.pid)) is None:
            found[rank] = Stacks(rank=rank, silent="it has ended")
        elif not mask >> (STACKS_SIGNAL - 1) & 1:
            found[rank] = Stacks(rank=rank, silent="another program has taken its place")
        elif is_stopped(status.pid):
            found[rank] = Stacks(rank=rank, silent="it is stopped by a signal")
        else:
            waiting[rank] = _size(run.rank_stacks(rank))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(status.pid, STACKS_SIGNAL)
    return {**found, **_read_answers(run, waiting)}


def _read_answers(run: RunDir, sizes: Mapping[int, int]) -> dict[int, Stacks]:
    """Read what ranks have written to their files beyond these sizes, once it grows no more."""
    deadline = time.monotonic() + _ANSWER_S
    texts = dict.fromkeys(sizes, "")
    while time.monotonic() < deadline:
        time.sleep(_ANSWER_S / 20)
        now = {rank: _read_from(run.rank_stacks(rank), size) for rank, size in sizes.items()}
        if all(now.values()) and now == texts:
            break
        texts = now
    silent = f"it did not answer within {_ANSWER_S:g} s"
    return {rank: parse_stacks(rank, text, silent) for rank, text in texts.items()}


def parse_stacks(rank: int, text: str, silent: str = "") -> Stacks:
    """Parse what faulthandler has written; the main thread is the last one that it lists."""
    if not text:
        return Stacks(rank=rank, silent=silent)
    frames: list[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
        elif match := _FRAME.match(line):
            path, number, function = match.group("path", "line", "function")
            if _HOOKS not in path:
                frames.append(Frame(path=path, line=int(number), function=function))
    while len(frames) > 1 and any(start in frames[-1].path for start in _STARTS):
        frames.pop()
    return Stacks(rank=rank, main=tuple(frames), text=text)


def stacks_to_json(stacks: Mapping[int, Stacks]) -> Message:
    """Return ranks' stacks as plain values."""
    return {str(rank): [each.text, each.silent] for rank, each in stacks.items()}


def stacks_from_json(values: Message) -> dict[int, Stacks]:
    """Read ranks' stacks back."""
    return {int(rank): parse_stacks(int(rank), *each) for rank, each in values.items()}


def _caught(pid: int) -> int | None:
    """Return the signals that a process handles, as a mask; None where it is gone."""
    try:
        match = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return int(match.group(1), 16) if match else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(path: Path, size: int) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(size)
        return file.read().decode(errors="replace")
    return ""
