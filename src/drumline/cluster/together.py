"""One thing on all nodes at once. Each finishes its part; then all that failed is one error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from drumline.cluster.ssh.remote import Flow, Remote
from drumline.core.errors import DrumlineError, HostError

T = TypeVar("T")


async def settled(works: Iterable[Awaitable[T]]) -> list[T | Exception]:
    """Do all works at once, and let each finish; what they raise is among the results.

    A caller that is canceled cancels all of them, and waits for their ends.
    """

    async def finish(work: Awaitable[T]) -> T | Exception:
        try:
            return await work
        except Exception as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(finish(work)) for work in works]
    return [task.result() for task in tasks]


async def all_of(works: Iterable[Awaitable[T]]) -> list[T]:
    """Do all works at once, let each finish, and return their results in order.

    Raises:
        DrumlineError: what failed on one node, or one error for all the nodes that failed.
    """
    results = await settled(works)
    raise_for_all([result for result in results if isinstance(result, Exception)])
    return [result for result in results if not isinstance(result, Exception)]


async def start_all(
    remotes: Sequence[Remote], command: Callable[[Remote], Sequence[str]]
) -> list[Flow]:
    """Start a command on all nodes at once, in node order; where one cannot, on none.

    Raises:
        HostError: some cannot start it; names all of them. It was ended on the others.
    """
    results = await settled(remote.start(command(remote)) for remote in remotes)
    failures = [result for result in results if isinstance(result, Exception)]
    flows = [result for result in results if not isinstance(result, Exception)]
    if failures:
        for flow in flows:
            flow.stop()
        raise_for_all(failures)
    return flows


def raise_for_all(failures: Sequence[Exception]) -> None:
    """Raise what failed on one node, or on several alike, or one error for all that failed.

    That has the first one's fields, and `nodes` counts them.
    """
    told: dict[str, DrumlineError] = {}
    for failure in failures:
        if not isinstance(failure, DrumlineError):
            raise failure
        told.setdefault(failure.message, failure)
    if not told:
        return
    first = next(iter(told.values()))
    if len(told) == 1:
        raise first
    text = f"{len(failures)} nodes: " + "; ".join(told)
    raise HostError(text, **{**first.fields, "nodes": len(failures)})
