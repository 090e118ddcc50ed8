"""Where ranks meet by a file: refused where another run has left one, removed at the end."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir


def refuse_stale_meeting(init: str) -> None:
    """Refuse a file that is there already: torch would read another run's addresses from it.

    Raises:
        UsageError: `init` names such a file.
    """
    path = _named_file(init)
    if path is not None and path.exists():
        raise UsageError(
            f"init: {init}: the file exists already, left by another run or in use by it; "
            f"remove it, or write init: file to get a fresh one"
        )


@contextlib.contextmanager
def meeting_removed(run: RunDir, init: str) -> Iterator[None]:
    """Leave no trace of where the ranks of this run met."""
    try:
        yield
    finally:
        shutil.rmtree(run.rendezvous, ignore_errors=True)
        path = _named_file(init)
        if path is not None:
            for used in (path, *path.parent.glob(f"{path.name}.*")):  # one per restart
                used.unlink(missing_ok=True)


def _named_file(init: str) -> Path | None:
    return Path(urlsplit(init).path) if init.startswith("file://") else None
