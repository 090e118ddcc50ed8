"""The process around a rank: it ends with its parent, logs to its file, and reports its failure."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from drumline.core.errors import DrumlineError
from drumline.core.events import EventWriter
from drumline.core.processes import die_with_parent
from drumline.core.rundir import RunDir
from drumline.train.failure import is_consequence, refuse_to_repeat, users_part, write_failure
from drumline.train.place import Place, read_place

_MOURN_S = 0.5  # who fails for a lost peer ends later, so that the peer's end is the one noticed


@contextlib.contextmanager
def rank_process(run: RunDir, *, runs_script: bool = False) -> Iterator[tuple[Place, EventWriter]]:
    """Be one rank of a run; an exception inside becomes an event and ends the process.

    A script may leave by `sys.exit(0)`, and what it has registered with `atexit` is called, as it
    would be in a process of its own. A rank that trains may not leave before the others.
    """
    die_with_parent()
    place = read_place()
    _log_to(run.rank_log(place.rank))
    with EventWriter(run.rank_events(place.rank)) as events:
        try:
            refuse_to_repeat(run, place)
            events.write(
                "start",
                rank=place.rank,
                attempt=place.attempt,
                pid=os.getpid(),
                host=socket.gethostname(),
                time=time.time(),
            )
            events.flush()
            yield place, events
            if runs_script:
                atexit._run_exitfuncs()
        except BaseException as error:
            if runs_script and isinstance(error, SystemExit):
                if isinstance(error.code, str):
                    print(error.code, file=sys.stderr)
                atexit._run_exitfuncs()
                if not error.code:
                    return  # the agent waits for what its function returns
                _leave(error.code if isinstance(error.code, int) else 1)
            write_failure(events, error, rank=place.rank)
            if is_consequence(error):
                time.sleep(_MOURN_S)
            traceback.print_exception(type(error), error, users_part(error.__traceback__))
            if runs_script:
                atexit._run_exitfuncs()
            _leave(error.exit_code if isinstance(error, DrumlineError) else 1)


def _log_to(path: Path) -> None:
    """Send what this process prints, C libraries included, to the rank's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _leave(code: int) -> NoReturn:
    """End at once: destructors of a broken process group may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
