"""Where ranks meet by a file: never one that another run has left, and removed at the end."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec

_SCHEME = "file://"


def refuse_stale_meeting(init: str) -> None:
    """Refuse a file that is there already: torch would read another run's addresses from it.

    Raises:
        UsageError: `init` names such a file, or one in a folder that does not exist.
    """
    if init.startswith(_SCHEME) and not Path(init.removeprefix(_SCHEME)).parent.is_dir():
        raise UsageError(
            f"init: {init}: there is no such folder; make it, or write init: file to do without"
        )
    if init.startswith(_SCHEME) and Path(init.removeprefix(_SCHEME)).exists():
        raise UsageError(
            f"init: {init}: the file exists already, left by another run or in use by it; "
            f"remove it, or write init: file to get a fresh one"
        )


@contextlib.contextmanager
def fresh_meeting(run: RunDir, spec: RunSpec) -> Iterator[None]:
    """Start without traces of an earlier session of this run, and leave none."""
    shutil.rmtree(run.rendezvous, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(run.rendezvous, ignore_errors=True)
        if spec.init.startswith(_SCHEME):
            with contextlib.suppress(OSError):
                Path(spec.init.removeprefix(_SCHEME)).unlink(missing_ok=True)
