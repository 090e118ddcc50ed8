"""How a check ends: passed, wrong, or still to do; and which line of the student's it came from.

An outcome is plain JSON: `status` (pass, wrong, to do), `mistake` (the name of what is wrong),
`facts` (numbers and names for the sentences about it) and `picture` (lines of text).
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

PASS, WRONG, TO_DO, NOT_RUN = "pass", "wrong", "to do", "not run"
_PACKAGE = Path(__file__).resolve().parents[1]
_LONGEST = 300  # characters of a student's message that are kept

Outcome = dict[str, Any]


class Wrong(Exception):  # noqa: N818  raised to end a check, not an error of ours
    """Something is wrong with the student's code, and this is what."""

    def __init__(self, mistake: str, *, picture: Sequence[str] = (), **facts: Any) -> None:
        super().__init__(mistake)
        self.mistake = mistake
        self.facts = facts
        self.picture = list(picture)


class Foreign(Exception):  # noqa: N818
    """The outcome of another process, passed on as it is."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.get("mistake"))
        self.outcome = outcome


def outcome(status: str, mistake: str | None = None, **facts: Any) -> Outcome:
    """Write an outcome down."""
    return {"status": status, "mistake": mistake, "facts": facts, "picture": []}


def outcome_of(check: Callable[[], None], folder: Path) -> Outcome:
    """Run a check in this process, whatever the student's code in `folder` does to it."""
    try:
        check()
    except BaseException as error:
        return told(error, folder)
    return outcome(PASS)


def told(error: BaseException, folder: Path) -> Outcome:
    """Turn what ended a check into an outcome."""
    if isinstance(error, Foreign):
        return error.outcome
    if isinstance(error, Wrong):
        found = outcome(WRONG, error.mistake, **error.facts)
        return {**found, "picture": error.picture}
    where = place_of(error.__traceback__, folder)
    if isinstance(error, NotImplementedError) and where:
        return outcome(TO_DO, None, hole=_short(str(error)), where=where)
    if isinstance(error, SystemExit):
        return outcome(WRONG, "exits", code=_short(str(error.code)), where=where or "?")
    return outcome(
        WRONG,
        "raises",
        kind=type(error).__name__,
        message=_short(str(error)) or "—",
        where=where or _last_place(error),
    )


def place_of(trace: TracebackType | None, folder: Path) -> str:
    """Name the innermost line of a traceback that lies in the folder, or nothing."""
    for frame in reversed(traceback.extract_tb(trace)):
        if is_inside(frame.filename, folder):
            return place(frame.filename, frame.lineno or 0, frame.name)
    return ""


def place(file: str, line: int, function: str) -> str:
    """Write a line of code down: `optimizers.py:31 in step: m = self.m[i]`."""
    code = linecache.getline(file, line).strip()
    ours = is_inside(file, _PACKAGE)  # where names are the same as the student's
    name = Path(file).relative_to(_PACKAGE.parent) if ours else Path(file).name
    return f"{name}:{line} in {function}" + (f": {_short(code)}" if code else "")


def is_inside(file: str, folder: Path) -> bool:
    """Whether a file is one of the student's."""
    return Path(file).is_relative_to(folder)


def _last_place(error: BaseException) -> str:
    """Name where an error without a line of the student's came from, such as a syntax error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {_short((error.text or '').strip())}"
    frames = traceback.extract_tb(error.__traceback__)
    return place(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else "?"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
