"""`Fleet`: all nodes of a cluster, connected at once, one connection each, kept while it is open.

Commands connect to a cluster that is up, and run a coroutine over its nodes:

    run_on(connected(spec, home), lambda fleet: fleet.all(push_package))
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import GONE, cluster_gone, find_gone
from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.connection import Connection
from drumline.cluster.ssh.remote import Note, Remote, all_of, raise_for_all
from drumline.cluster.ssh.transport import wait_for_banner
from drumline.core.errors import DrumlineError, HostError, UsageError

N = TypeVar("N")
T = TypeVar("T")

_AGAIN_S = 1.0


def report_nothing(_who: str, _what: str) -> None:
    """Ignore reports of progress from SSH connections: the default reporter."""


class Fleet:
    """The connected nodes, in node order."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        nodes = sorted(connections, key=lambda one: one.machine.node)
        self.remotes: tuple[Remote, ...] = tuple(nodes)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        machines: Sequence[Machine],
        home: ClusterHome,
        *,
        timeout_s: float,
        auth_retry_s: float = 0.0,
        report: Reporter = report_nothing,
        lost: list[HostError] | None = None,
    ) -> AsyncIterator[Fleet]:
        """Wait for all machines' SSH servers, and connect to each, all at once.

        `auth_retry_s`: How long one that answers, but lets nobody in, is tried again: a machine
        that boots may have its SSH server before its user.
        `lost`: Takes why some cannot be reached; the fleet is the others then, if any.
        """
        opened: list[Connection] = []

        async def connect(machine: Machine) -> None:
            try:
                opened.append(await _connect(machine, home, timeout_s, auth_retry_s, report))
            except HostError as error:
                if lost is None:
                    raise
                lost.append(error)

        try:
            await all_of(connect(machine) for machine in machines)
            yield cls(opened)
        finally:
            await asyncio.gather(*(one.close() for one in opened), return_exceptions=True)

    @property
    def leader(self) -> Remote:
        """Node 0."""
        return self.remotes[0]

    async def all(self, function: Callable[[Remote], Awaitable[T]]) -> list[T]:
        """Call a function for each node, all at once; returns its results in node order."""

        async def call(remote: Remote) -> T:
            machine = remote.machine
            try:
                return await function(remote)
            except DrumlineError as error:
                if "node" in error.fields:
                    raise
                text = f"{machine.name} ({machine.host}): {error.message}"
                fields = {**error.fields, "node": machine.node, "host": machine.host}
                raise HostError(text, **fields) from error
            except Exception as error:
                error.add_note(f"on {machine.name}")
                raise

        return await all_of(map(call, self.remotes))


async def _connect(
    machine: Machine, home: ClusterHome, timeout_s: float, auth_retry_s: float, report: Reporter
) -> Connection:
    await wait_for_banner(machine, timeout_s=timeout_s, report=report)
    began = time.monotonic()
    broken = 0
    while True:
        try:
            connection = await Connection.open(machine, home)
        except HostError as error:
            reason = error.fields["reason"]
            broken += reason == "lost"
            retried = reason in ("auth", "lost") and time.monotonic() - began < auth_retry_s
            if not retried and not (reason == "lost" and broken <= 2):
                raise
            report(machine.name, "is not ready to let us in yet")
        else:
            report(machine.name, "connected")
            return connection
        await asyncio.sleep(_AGAIN_S)


_CONNECT_S = 30.0
_TRY_S = 10.0
_LOOK_S = 3.0  # after so long without all nodes the provider is asked whether they are there


def run_on(nodes: AbstractAsyncContextManager[N], work: Callable[[N], Awaitable[T]]) -> T:
    """Run an operation on what `connected` or `reachable` gives, in an event loop of its own."""

    async def run() -> T:
        async with nodes as opened:
            return await work(opened)

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def connected(
    spec: ClusterSpec,
    home: ClusterHome,
    *,
    among: Container[str] | None = None,
    note: Note | None = None,
) -> AsyncIterator[Fleet]:
    """Connect to the cluster's nodes of the last `up`, or to those `among` these.

    `note`: be content with those that answer, and tell by this which do not.

    Raises:
        UsageError: there are none yet.
        HostError: some do not answer, or none does, or they have ended: then `reason` is gone.
    """
    machines = [one for one in home.read_facts().machines if among is None or one.identity in among]
    if not machines:
        raise no_nodes(home)
    timeout_s = _TRY_S if note and len(machines) > 1 else _CONNECT_S
    async with reachable(spec, home, machines, timeout_s=timeout_s) as (fleet, lost):
        if not fleet.remotes and all(error.fields.get("reason") == GONE for error in lost):
            raise cluster_gone(home)
        if note is None or not fleet.remotes:
            raise_for_all(lost)
        else:
            for error in lost:
                note(f"drumline: {error.message}")
        yield fleet


@contextlib.asynccontextmanager
async def reachable(
    spec: ClusterSpec, home: ClusterHome, machines: Sequence[Machine], *, timeout_s: float = _TRY_S
) -> AsyncIterator[tuple[Fleet, list[HostError]]]:
    """Connect to the nodes that let us in; gives what keeps us from the others.

    The provider is asked only where not all are there at once: it may be slow to answer.
    """
    lost: list[HostError] = []
    async with contextlib.AsyncExitStack() as stack:

        def opening(some: Sequence[Machine]) -> asyncio.Task[Fleet]:
            fleet = Fleet.open(some, home, timeout_s=timeout_s, lost=lost)
            return asyncio.create_task(stack.enter_async_context(fleet))

        task = opening(machines)
        try:
            await asyncio.wait([task], timeout=_LOOK_S)
            if lost or not task.done():
                asking = asyncio.create_task(find_gone(spec, home, machines))
                await asyncio.wait([task, asking], return_when=asyncio.FIRST_COMPLETED)
                gone = await asking if lost or not task.done() else []
                asking.cancel()  # where all have come meanwhile
                nodes = {error.fields["node"] for error in gone}
                if gone and not task.done():  # do not wait for those
                    task.cancel()
                    await asyncio.wait([task])
                    lost.clear()
                    task = opening([one for one in machines if one.node not in nodes])
                await asyncio.wait([task])
                lost[:] = [error for error in lost if error.fields["node"] not in nodes] + gone
            yield await task, sorted(lost, key=lambda error: int(error.fields["node"]))
        finally:
            task.cancel()
            await asyncio.wait([task])


def no_nodes(home: ClusterHome) -> UsageError:
    """Return the error for a cluster whose `up` has made no nodes yet."""
    return UsageError(f"{home.name} has no nodes yet; make them with: drumline up")


def refuse_silent(spec: ClusterSpec, home: ClusterHome, machine: Machine) -> None:
    """Say what is known of a node that does not answer: OpenSSH knows only that it does not."""

    async def check() -> None:
        try:
            await wait_for_banner(machine, timeout_s=_TRY_S, report=report_nothing)
        except HostError:
            for gone in await find_gone(spec, home, [machine]):
                raise gone from None
            raise

    asyncio.run(check())
