"""`Fleet`: all nodes of a cluster, connected at once, one connection each, kept while it is open.

async with Fleet.open(machines, home, timeout_s=300, say=say) as fleet:
    await fleet.all(lambda remote: remote.run(["nvidia-smi"]))
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from drumline.cluster.home import ClusterHome
from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.ssh.connection import Connection
from drumline.cluster.ssh.remote import Remote, all_of
from drumline.cluster.ssh.transport import wait_for_banner
from drumline.core.errors import DrumlineError, HostError

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

        `home`: The cluster's folder, which has the key and the pinned host keys.
        `auth_retry_s`: How long one that answers, but lets nobody in, is tried again: a machine
        that boots may have its SSH server before its user.
        `lost`: Takes why some cannot be reached; the fleet is the others then, if any.

        Raises:
            HostError: some cannot be reached; names all of them, each with the reason.
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
        """Call a function for each node, all at once; returns its results in node order.

        Raises:
            HostError: what failed, with its nodes; the others have finished.
        """
        return await all_of(_named(function, one) for one in self.remotes)


async def _named(function: Callable[[Remote], Awaitable[T]], remote: Remote) -> T:
    try:
        return await function(remote)
    except DrumlineError as error:
        if "node" in error.fields:
            raise
        machine = remote.machine
        fields = {**error.fields, "node": machine.node, "host": machine.host}
        raise HostError(f"{machine.name} ({machine.host}): {error.message}", **fields) from error
    except Exception as error:
        error.add_note(f"on {remote.machine.name}")
        raise


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
