"""A limit on a rank's memory, and the sentence that says what did not fit into it.

So that a laptop can show what otherwise takes a large GPU: a model that does not fit into one
worker, and does fit into two with half of it each. The kernel counts what the process may write
to (RLIMIT_DATA: heap, anonymous mappings, stacks of threads), touched or not, and refuses more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from math import ceil
from pathlib import Path

from torch import nn

from drumline.core.errors import UsageError
from drumline.core.parts import OptimizerSpec
from drumline.core.spec import RunSpec
from drumline.core.units import format_bytes
from drumline.train.memory import give_back_freed_memory

_STATUS = Path("/proc/self/status")
_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory|bad_alloc|MemoryError"
)
_HEADROOM = 1.25  # activations, messages and what torch takes for itself


def limit_memory(nbytes: int) -> None:
    """Let this process take so many bytes beyond what it has now.

    Raises:
        UsageError: this system has no such limit, or the user's own one is lower.
    """
    held = _bytes_held()
    if held is None:
        raise UsageError(
            "memory_bytes needs Linux, where a process can be limited to some memory; leave it out"
        )
    import resource  # not on every system

    give_back_freed_memory()

    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    if highest not in (resource.RLIM_INFINITY, -1) and held + nbytes > highest:
        raise UsageError(
            f"memory_bytes={nbytes} is more than the {format_bytes(highest - held)} that `ulimit "
            f"-Hd` leaves this process; set memory_bytes={max(highest - held, 0)} or less"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (held + nbytes, highest))


@contextlib.contextmanager
def memory_budget(spec: RunSpec) -> Iterator[list[nn.Module]]:
    """Keep to the spec's limit in here; running into it is an error in one sentence.

    Yields a list to put in what this rank is to hold (the last entry counts), for the sentence.
    """
    held: list[nn.Module] = []
    if spec.memory_bytes is not None:
        limit_memory(spec.memory_bytes)
    try:
        yield held
    except Exception as error:
        if spec.memory_bytes is None or not held:
            raise
        explained = explain_memory(
            error, limit=spec.memory_bytes, model=held[-1], optimizer=spec.optimizer
        )
        if explained is None:
            raise
        raise explained from None


def explain_memory(
    error: BaseException, *, limit: int, model: nn.Module, optimizer: OptimizerSpec
) -> UsageError | None:
    """Say in a sentence what did not fit and the way out; None if memory was not the trouble.

    Args:
        error: what torch or Python raised.
        limit: as given to `limit_memory`.
        model: all that this rank was to hold, or its outline.
        optimizer: tells how much state there is for each parameter.
    """
    if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
        return None
    parameters = sum(p.nbytes for p in model.parameters())
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    state = gradients * _tensors_per_parameter(optimizer)
    total = parameters + gradients + state
    enough = max(2, ceil(total * _HEADROOM / limit))
    return UsageError(
        f"this rank may take {format_bytes(limit)} of memory (memory_bytes={limit}), which is used "
        f"up: parameters take {format_bytes(parameters)}, gradients {format_bytes(gradients)}, "
        f"the state of {optimizer.name} {format_bytes(state)}, together {format_bytes(total)}, and "
        f"activations come on top; split the model (strategy=pipeline workers={enough}), or set "
        f"memory_bytes={ceil(max(total * _HEADROOM, limit * _HEADROOM))}",
        limit=limit,
        needed=total,
    )


def _bytes_held() -> int | None:
    """How much the kernel counts now, if there is one that says so."""
    try:
        status = _STATUS.read_text()
    except OSError:
        return None
    found = re.search(r"^VmData:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _tensors_per_parameter(optimizer: OptimizerSpec) -> int:
    """How many tensors of a parameter's size the optimizer keeps for it."""
    return 2 if optimizer.name == "adam" else int(optimizer.momentum > 0)
