"""The edition of this package that a process runs with: R/lib-<hash>, as it was when it started.

`drumline submit` and `drumline up` may bring another one, and let R/lib lead there. A job goes on
with its own: its agents are of the same edition, and nobody removes that while the job runs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import drumline

WHOLE = "whole"
"""the file that ends an edition's unpacking; whoever needs the edition holds it locked"""
_PATH = "PYTHONPATH"


def edition() -> Path | None:
    """Return the folder of this process's edition; None where nobody brought one: a checkout."""
    folder = Path(drumline.__file__).parents[1]
    return folder if (folder / WHOLE).exists() else None


def of_this_edition(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a process's variables, such that it has this edition whatever R/lib leads to."""
    own = edition()
    if own is None:
        return dict(variables)
    others = [path for path in (variables.get(_PATH),) if path]
    return {**variables, _PATH: os.pathsep.join([str(own), *others])}


def hold_edition() -> None:
    """Keep this process's edition on the node for as long as the process lives."""
    own = edition()
    if own is not None:
        handle = os.open(own / WHOLE, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH)
