"""`Submission`: a folder of a student's, and what is taken from it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from drumline.grader.outcome import Wrong


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The student's folder, as the checks see it; imports happen in the process that calls."""

    folder: Path
    timeout_s: float
    """how long a check may take"""
    scratch: Path
    """a folder of ours, for files by which ranks meet"""

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
