"""The process of one rank: which rank it is, and what surrounds its work.

`RankInfo` is read from the variables that torchrun made customary; under mpirun and srun, whose
variables have other names, `drumline.launch.join` sets these. `rank_process` ends the process with
its parent, sends its output to the rank's log, and reports its failure.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from drumline.core.errors import CommError, DrumlineError
from drumline.core.events import EventWriter
from drumline.core.nodes import name_rank, node_addresses
from drumline.core.processes import die_with_parent
from drumline.core.rundir import RunDir
from drumline.train.failure import is_consequence, refuse_to_repeat, users_part, write_failure

_MOURN_S = 0.5  # who fails for a lost peer ends later, so that the peer's end is the one noticed


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """This process among the ranks."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    attempt: int = 0
    """how often this node's workers were restarted before"""
    nodes: int = 1
    """how many simulated nodes the ranks are on"""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes what belongs to the whole run."""
        return self.rank == 0

    def name_of(self, rank: int) -> str:
        """Name a rank, with its node where there are several."""
        return name_rank(rank, nodes=self.nodes, world_size=self.world_size)


def read_rank_info(environ: Mapping[str, str] = os.environ) -> RankInfo:
    """Find out which rank this process is.

    Raises:
        CommError: no launcher has set the variables, or they are not numbers that fit.
    """
    try:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        info = RankInfo(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", rank)),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
            attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
            nodes=max(1, len(node_addresses(environ))),
        )
    except KeyError:
        raise CommError(
            "no launcher has set RANK and WORLD_SIZE; start with: drumline train"
        ) from None
    except ValueError:
        raise CommError("RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers") from None
    if not 0 <= info.rank < info.world_size:
        raise CommError(
            f"RANK={info.rank} is not a rank of WORLD_SIZE={info.world_size}; "
            f"ranks run from 0 to {info.world_size - 1}"
        )
    return info


@contextlib.contextmanager
def rank_process(
    run: RunDir, *, runs_script: bool = False
) -> Iterator[tuple[RankInfo, EventWriter]]:
    """Be one rank of a run; an exception inside becomes an event and ends the process.

    A script may leave by `sys.exit(0)`, and what it has registered with `atexit` is called, as it
    would be in a process of its own. A rank that trains may not leave before the others.
    """
    die_with_parent()
    info = read_rank_info()
    _log_to(run.rank_log(info.rank))
    with EventWriter(run.rank_events(info.rank)) as events:
        try:
            refuse_to_repeat(run, info.attempt, info.world_size)
            events.write(
                "start",
                rank=info.rank,
                attempt=info.attempt,
                pid=os.getpid(),
                host=socket.gethostname(),
                time=time.time(),
            )
            events.flush()
            yield info, events
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
            write_failure(events, error, rank=info.rank)
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
