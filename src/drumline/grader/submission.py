"""`Submission`: a student's folder; and `CheckOutcome`: how a check of it ended, and where."""

from __future__ import annotations

import importlib
import linecache
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

from drumline.core.json_lines import Message

Status = Literal["pass", "wrong", "to do", "not run"]
_PACKAGE = Path(__file__).resolve().parents[1]
_LONGEST = 300  # characters of a student's message that are kept


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The student's folder, as the checks see it; imports happen in the process that calls."""

    folder: Path
    timeout_s: float
    """how long a check may take"""
    scratch: Path
    """a folder of ours, for the files by which ranks rendezvous"""

    def module(self, name: str) -> ModuleType:
        """Import one of the student's files.

        Raises:
            Wrong: there is no such file.
        """
        if not (self.folder / f"{name}.py").is_file():
            raise Wrong("missing-file", file=f"{name}.py")
        if sys.path[:1] != [str(self.folder)]:
            sys.path.insert(0, str(self.folder))
        return importlib.import_module(name)

    def take(self, module: str, name: str) -> Any:
        """Return a function or class of one of the student's files.

        Raises:
            Wrong: the file has nothing by that name that can be called.
        """
        found = getattr(self.module(module), name, None)
        if not callable(found):
            raise Wrong("missing-name", file=f"{module}.py", name=name)
        return found


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """How a check ended."""

    status: Status = "pass"
    mistake: str | None = None
    """the name of what is wrong, or of why the check was not run"""
    facts: Message = field(default_factory=dict)
    """numbers and names for the sentences about it"""
    picture: Sequence[str] = ()
    """lines of text"""
    output: str = ""
    """the end of what the student's code printed"""

    @classmethod
    def wrong(cls, mistake: str, **facts: Any) -> Self:
        """Return the outcome of a check that found a mistake."""
        return cls(status="wrong", mistake=mistake, facts=facts)


class CheckEnded(Exception):  # noqa: N818  raised to end a check, not an error of ours
    """The check has ended, in this process or another, and this is how."""

    def __init__(self, outcome: CheckOutcome) -> None:
        super().__init__(outcome.mistake)
        self.outcome = outcome


class Wrong(CheckEnded):
    """Something is wrong with the student's code, and this is what."""

    def __init__(self, mistake: str, *, picture: Sequence[str] = (), **facts: Any) -> None:
        super().__init__(replace(CheckOutcome.wrong(mistake, **facts), picture=list(picture)))
        self.mistake = mistake


def outcome_of(error: BaseException, folder: Path) -> CheckOutcome:
    """Turn the error that ended a check of a student's code into an outcome."""
    if isinstance(error, CheckEnded):
        return error.outcome
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    where = _format_last(theirs)
    if isinstance(error, NotImplementedError) and where:
        return CheckOutcome(status="to do", facts={"hole": _shorten(str(error)), "where": where})
    if isinstance(error, SystemExit):
        return CheckOutcome.wrong("exits", code=_shorten(str(error.code)), where=where or "?")
    return CheckOutcome.wrong(
        "raises",
        kind=type(error).__name__,
        message=_shorten(str(error)) or "—",
        where=where or _format_syntax_error(error) or _format_last(frames) or "?",
    )


def format_line(file: str, line: int, function: str) -> str:
    """Write a line of a student's code down: `optimizers.py:31 in step: m = self.m[i]`."""
    code = linecache.getline(file, line).strip()
    ours = Path(file).is_relative_to(_PACKAGE)  # where names are the same as the student's
    name = Path(file).relative_to(_PACKAGE.parent) if ours else Path(file).name
    return f"{name}:{line} in {function}" + (f": {_shorten(code)}" if code else "")


def _format_last(frames: Sequence[traceback.FrameSummary]) -> str:
    return "".join(format_line(one.filename, one.lineno or 0, one.name) for one in frames[-1:])


def _format_syntax_error(error: BaseException) -> str:
    if not isinstance(error, SyntaxError) or not error.filename:
        return ""
    return f"{Path(error.filename).name}:{error.lineno}: {_shorten((error.text or '').strip())}"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
