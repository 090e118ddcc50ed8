"""Connecting to a cluster that is up, for the commands that use it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Container

from drumline.cluster.fleet import Fleet
from drumline.cluster.home import ClusterHome
from drumline.cluster.machine import Machine
from drumline.cluster.up import read_machines
from drumline.core.errors import HostError, UsageError

_CONNECT_S = 30.0
_TRY_S = 10.0


@contextlib.asynccontextmanager
async def connected(
    home: ClusterHome, *, among: Container[str] | None = None, some: bool = False
) -> AsyncIterator[Fleet]:
    """Connect to all nodes that the last `up` made.

    Args:
        home: of the cluster.
        among: only those that a provider calls so.
        some: be content with those that answer, and say which do not.

    Raises:
        UsageError: there are none yet.
        HostError: some do not answer, or none does.
    """
    machines = [one for one in read_machines(home) if among is None or one.identity in among]
    if not machines:
        raise UsageError(f"{home.name} has no nodes yet; make them with: drumline up")
    if some and len(machines) > 1:
        machines = await _answering(home, machines)
    async with Fleet.open(machines, home, timeout_s=_CONNECT_S) as fleet:
        yield fleet


async def _answering(home: ClusterHome, machines: list[Machine]) -> list[Machine]:
    """Return the machines that let us in, and tell of the others."""

    async def try_one(machine: Machine) -> HostError | None:
        try:
            async with Fleet.open([machine], home, timeout_s=_TRY_S):
                return None
        except HostError as error:
            return error

    found = await asyncio.gather(*(try_one(machine) for machine in machines))
    errors = [error for error in found if error is not None]
    if len(errors) == len(machines):
        raise errors[0]
    for error in errors:
        print(f"drumline: {error.message}", file=sys.stderr)
    return [machine for machine, error in zip(machines, found, strict=True) if error is None]
