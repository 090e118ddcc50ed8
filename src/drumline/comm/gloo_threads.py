"""When a process group of gloo's may be destroyed: once its threads have come to rest.

A thread of gloo's that lets go of a tensor which Python knows takes the GIL. The destructor of a
group waits for its threads, with the GIL held: it is called where Python lets go of the group, or
of DDP's reducer, which may be the last to have it. So both can wait for each other for ever:

    program   all_reduce ── destroy_process_group ── ~Reducer ── ~ProcessGroupGloo ── join …
    gloo      all_reduce ──────── lets go of the tensor ── waits for the GIL …

A program that destroys its groups waits for their threads first, for milliseconds, without the GIL.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_REST_S = 2.0  # they have nothing to do by then, and need a core for a moment
_LOOK_S = 0.002
_TELLS_OF_RUNNING = re.compile("^State|ctxt_switches")


def rest_gloo_threads() -> None:
    """Wait until no thread of gloo runs, nor waits for the GIL: this thread lets go of it."""
    deadline, before = time.monotonic() + _REST_S, None
    while (now := _gloo_threads()) and time.monotonic() < deadline:
        if now == before and not any("R (running)" in account for account in now):
            return
        before = now
        time.sleep(_LOOK_S)


def rest_before_destroying() -> None:
    """Let `destroy_process_group` wait for gloo's threads first, in the whole process."""
    destroy = distributed_c10d.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        rest_gloo_threads()
        destroy(*args, **kwargs)

    for module in (distributed_c10d, dist):
        vars(module)["destroy_process_group"] = destroy_process_group


def _gloo_threads() -> list[str]:
    """Return the kernel's account of each of gloo's threads: its state, and how often it ran."""
    accounts = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # this one has just ended
            lines = (thread / "status").read_text().splitlines()
            if lines[0].endswith("pt_gloo_runloop"):
                accounts.append(" ".join(line for line in lines if _TELLS_OF_RUNNING.search(line)))
    return accounts
