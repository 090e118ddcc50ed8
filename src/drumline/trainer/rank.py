"""The process of one rank: which one it is, what surrounds its work, how it reports a failure.

`RankInfo` is read from the variables that torchrun made customary; under mpirun and srun, whose
variables have other names, `drumline.core.join` sets these.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

import drumline
from drumline.comm.lost_peers import LostPeerError, mentions_lost_peer, unreachable_nodes
from drumline.core.errors import ERRORS, CommError, DrumlineError
from drumline.core.nodes import name_rank, node_addresses
from drumline.core.processes import die_with_parent, exit_at_once
from drumline.core.rundir import EventWriter, RunDir, describe_start
from drumline.core.task import RANK_OPTIONS, SCRATCH

_CONSEQUENCE_DELAY_S = 0.5
# What gloo and the store say when the other side is gone, or sends what belongs to another call: a
# consequence, not a cause.
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|peer|failed to recv|socket"
    r"|collective mismatch",
    re.IGNORECASE,
)
_FROM_TORCH = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """This process among the ranks."""

    rank: int
    world_size: int
    local_rank: int
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


def _read_rank_info() -> RankInfo:
    environ = os.environ
    try:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        info = RankInfo(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", rank)),
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
def rank_process(run: RunDir) -> Iterator[tuple[RankInfo, EventWriter]]:
    """Run this process as a rank of a training run; an exception becomes an event and ends it.

    It ends with its parent, too, and what it prints goes to the rank's log. It may not leave before
    the others.
    """
    die_with_parent()
    info, writer = enter_run(run)
    with writer as events:
        try:
            _refuse_to_repeat(run, info.attempt, info.world_size)
            yield info, events
        except BaseException as error:
            trace = note_failure(events, error, rank=info.rank)
            traceback.print_exception(type(error), error, trace)
            exit_at_once(error.exit_code if isinstance(error, DrumlineError) else 1)


def enter_run(run: RunDir) -> tuple[RankInfo, EventWriter]:
    """Make this process the rank that the environment says: its log, and its events' start."""
    info = _read_rank_info()
    _log_to(run.rank_log(info.rank))
    events = EventWriter(run.rank_events(info.rank))
    events.write("start", **describe_start(info.rank, attempt=info.attempt))
    events.flush()
    return info, events


def note_failure(events: EventWriter, error: BaseException, *, rank: int) -> TracebackType | None:
    """Write the error event of a rank; returns the user's part of the traceback, to be printed.

    A consequence of a lost peer's end waits a little, so that the peer's end is noticed first.
    """
    _write_failure(events, error, rank=rank)
    if _is_consequence(error):
        time.sleep(_CONSEQUENCE_DELAY_S)
    return _users_part(error.__traceback__)


def _log_to(path: Path) -> None:
    """Send what this process prints, C libraries included, to the rank's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        if not stream.write_through:  # type: ignore[union-attr]
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _write_failure(events: EventWriter, error: BaseException, *, rank: int) -> None:
    """Write the error event of this rank, visible at once.

    Where the run directory cannot be written (a full disk may be what went wrong), the event goes
    to the launch's temporary folder. It goes to both where ranks are started on their own: then
    another one's launcher may remove the run directory before ours has read it.
    """
    record = {**describe_error(error), "rank": rank, "time": time.time()}
    elsewhere = RANK_OPTIONS in os.environ
    try:
        events.write("error", **record)
        events.flush()
    except DrumlineError:
        elsewhere = True
    if elsewhere and SCRATCH in os.environ:
        with EventWriter(Path(os.environ[SCRATCH]) / f"rank-{rank}.jsonl") as fallback_events:
            fallback_events.write("error", **record)


def _refuse_to_repeat(run: RunDir, attempt: int, world_size: int) -> None:
    """Raise the error of the attempt before at once, where trying again would only repeat it.

    A worker that died may live next time; a wrong option or a loss that is NaN stays what it is.
    """
    if attempt == 0:
        return
    for log in run.rank_logs(world_size):
        error = None
        for event in log.outlines():
            if event["event"] == "start" and event["attempt"] < attempt:
                error = None
            elif event["event"] == "error" and event.get("expected"):
                error = event
        if error is not None:
            raise ERRORS.get(error["type"], DrumlineError)(error["message"])


def describe_error(error: BaseException) -> dict[str, object]:
    """Return a training rank's error as plain values, for its error event.

    `expected` errors are told by their message alone; `consequence` says that another rank's end
    is the likely cause.
    """
    if isinstance(error, DrumlineError):
        return {**error.to_record(), "expected": True, "consequence": False}
    record = {
        "type": type(error).__name__,
        "message": str(error),
        "exit_code": 1,
        "traceback": "".join(
            traceback.format_exception(type(error), error, _users_part(error.__traceback__))
        ),
        "expected": False,
        "consequence": _is_consequence(error),
        "timed_out": _TIMED_OUT.search(str(error)) is not None,
    }
    if record["timed_out"]:  # do simulated nodes not answer either?
        record["unreachable"] = unreachable_nodes() if record["consequence"] else []
        record["lost"] = list(error.ranks) if isinstance(error, LostPeerError) else []
    return record


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of drumline and torch that lead to the user's code, if any do."""
    packages = [str(Path(module.__file__ or "").parent) for module in (drumline, torch)]
    packages += ["<frozen runpy>"]
    here = trace
    while here is not None and here.tb_frame.f_code.co_filename.startswith(tuple(packages)):
        here = here.tb_next
    return here or trace


def _is_consequence(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone, or does not answer."""
    text = str(error)
    if mentions_lost_peer(text):
        return True
    gone = _PEER_GONE.search(text) or _TIMED_OUT.search(text)
    if not isinstance(error, RuntimeError) or gone is None:  # torch's Dist…Errors are RuntimeErrors
        return False
    frames = "".join(traceback.format_tb(error.__traceback__))
    return "gloo" in text or "torch/distributed" in frames or type(error).__name__ in _FROM_TORCH
