"""How a rank that fails tells the world: one event, with what a person needs to see."""

from __future__ import annotations

import os
import re
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

import drumline
from drumline.comm import LostPeerError, tells_of_lost_peer, unreachable_nodes
from drumline.core.errors import ERRORS, DrumlineError
from drumline.core.events import EventWriter
from drumline.core.rundir import RunDir
from drumline.core.task import RANK_OPTIONS, SCRATCH

# What gloo and the store say when the other side is gone: a consequence, not a cause.
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|peer|failed to recv|socket",
    re.IGNORECASE,
)
_FROM_TORCH = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
_TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)


def write_failure(events: EventWriter, error: BaseException, *, rank: int) -> None:
    """Write the error event of this rank, visible at once.

    Where the run directory cannot be written (a full disk may be what went wrong), the event goes
    to the launch's temporary folder. It goes to both where ranks are started on their own: then
    another one's launcher may remove the run directory before ours has read it.
    """
    record = {**describe(error), "rank": rank, "time": time.time()}
    elsewhere = RANK_OPTIONS in os.environ
    try:
        events.write("error", **record)
        events.flush()
    except DrumlineError:
        elsewhere = True
    if elsewhere and SCRATCH in os.environ:
        with EventWriter(Path(os.environ[SCRATCH]) / f"rank-{rank}.jsonl") as last_words:
            last_words.write("error", **record)


def refuse_to_repeat(run: RunDir, attempt: int, world_size: int) -> None:
    """Give up at once where the attempt before ended in an error that would only come again.

    A worker that died may live next time; a wrong option or a loss that is NaN stays what it is.

    Raises:
        DrumlineError: that same error.
    """
    if attempt == 0:
        return
    for events in run.read_rank_events(world_size):
        for event in reversed(events):
            if event["event"] == "start" and event["attempt"] < attempt:
                break
            if event["event"] == "error" and event.get("expected"):
                raise ERRORS.get(event["type"], DrumlineError)(event["message"])


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error as plain values.

    `expected` errors are told by their message alone; `consequence` says that another rank's end
    is the likely cause.
    """
    if isinstance(error, DrumlineError):
        return {**error.to_record(), "expected": True, "consequence": False}
    return {
        "type": type(error).__name__,
        "message": str(error),
        "exit_code": 1,
        "traceback": "".join(
            traceback.format_exception(type(error), error, users_part(error.__traceback__))
        ),
        "expected": False,
        "consequence": is_consequence(error),
        **_describe_silence(error),
    }


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of drumline and torch that lead to the user's code, if any do."""
    packages = [str(Path(module.__file__ or "").parent) for module in (drumline, torch)]
    packages += ["<frozen runpy>"]
    here = trace
    while here is not None and here.tb_frame.f_code.co_filename.startswith(tuple(packages)):
        here = here.tb_next
    return here or trace


def _describe_silence(error: BaseException) -> dict[str, Any]:
    """Say whether the others were silent, and which simulated nodes do not answer either."""
    if not _TIMED_OUT.search(str(error)):
        return {"timed_out": False}
    return {
        "timed_out": True,
        "unreachable": unreachable_nodes() if is_consequence(error) else [],
        "lost": list(error.ranks) if isinstance(error, LostPeerError) else [],
    }


def is_consequence(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone, or does not answer."""
    text = str(error)
    if tells_of_lost_peer(text):
        return True
    gone = _PEER_GONE.search(text) or _TIMED_OUT.search(text)
    if not isinstance(error, RuntimeError) or gone is None:  # torch's Dist…Errors are RuntimeErrors
        return False
    frames = "".join(traceback.format_tb(error.__traceback__))
    return "gloo" in text or "torch/distributed" in frames or type(error).__name__ in _FROM_TORCH
