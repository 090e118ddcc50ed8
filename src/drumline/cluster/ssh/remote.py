"""What everything above SSH needs of a connection, and one operation on all nodes at once.

Commands are argument lists: no shell interprets them unless the list starts one. An operation over
many nodes lets each node finish, then raises one error that holds all failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from drumline.cluster.machine import Machine
from drumline.core.errors import DrumlineError, HostError


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""


class Flow(Protocol):
    """A command that runs on a node, with its input and output."""

    async def write(self, content: bytes) -> None:
        """Write to its standard input; waits while the node is slower than we are."""

    async def end_input(self) -> None:
        """Close its standard input."""

    def lines(self) -> AsyncIterator[bytes]:
        """Give the lines of its standard output as they come, without their ends."""

    async def wait(self) -> Done:
        """Wait for its end; `stdout` is empty where `lines` has given it."""

    def stop(self) -> None:
        """End it: hang up."""


class Remote(Protocol):
    """One node, connected. `machine.root` is an absolute path here."""

    @property
    def machine(self) -> Machine:
        """Which node."""

    async def run(
        self, argv: Sequence[str], *, given: bytes = b"", timeout_s: float | None = None
    ) -> Done:
        """Run a command to its end, with `given` as its input; never raises for its exit code.

        Raises:
            HostError: the connection is lost, or it takes longer than `timeout_s`.
        """

    async def start(self, argv: Sequence[str]) -> Flow:
        """Start a command; it gets a hang-up when the connection ends."""

    async def forward(self, port: int, *, local: int = 0) -> int:
        """Make 127.0.0.1:port of the node reachable as 127.0.0.1:local here; returns `local`.

        It lasts as long as the connection. `local` 0 takes a free one.
        """


def last_line(output: bytes | bytearray) -> str:
    """Return the last line that a command has printed, which mostly says why it ended."""
    return output.decode(errors="replace").strip().rpartition("\n")[2]


def node_python(machine: Machine) -> str:
    """Return the Python of the node's environment."""
    return f"{machine.root}/env/bin/python"


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
