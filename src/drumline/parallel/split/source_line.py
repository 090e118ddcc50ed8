"""Which line of the user's own code is running: what an error about a model has to point at."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import FrameType, TracebackType

import torch

_HERE = os.path.dirname(__file__)
_NOT_THEIRS = tuple(
    os.path.join(folder, "")
    for folder in (_HERE, os.path.dirname(torch.__file__), sysconfig.get_path("stdlib"))
)
_PACKAGES = os.path.join(sysconfig.get_path("purelib"), "")  # lies below stdlib, may be theirs


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
    if path.startswith("<"):
        return False
    library = path.startswith(_NOT_THEIRS) and not path.startswith(_PACKAGES)
    return not library and not path.startswith(_NOT_THEIRS[:2])


def _describe(path: str, line: int) -> str:
    code = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}:{line}" + (f": `{code}`" if code else "")
