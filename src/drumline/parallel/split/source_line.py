"""Which line of the user's own code is running: what an error about a model has to point at."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import FrameType, TracebackType

import torch

_OURS = tuple(os.path.join(os.path.dirname(path), "") for path in (__file__, torch.__file__))
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = os.path.join(sysconfig.get_path("purelib"), "")  # may lie below the standard library


def line_of_error(error: BaseException) -> str:
    """Return `file.py:7: \\`the code\\`` of the innermost line of theirs, or nothing."""
    found = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if _is_theirs(trace.tb_frame.f_code.co_filename):
            found = _describe(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def line_running() -> str:
    """Return the innermost line of theirs that is being executed now, or nothing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_theirs(frame.f_code.co_filename):
        frame = frame.f_back
    return _describe(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


def _is_theirs(path: str) -> bool:
    standard = path.startswith(_STANDARD) and not path.startswith(_INSTALLED)
    return not standard and not path.startswith(_OURS) and not path.startswith("<")


def _describe(path: str, line: int) -> str:
    code = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}:{line}" + (f": `{code}`" if code else "")
