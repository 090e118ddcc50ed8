"""All machines that a cluster has ever had, and from when to when each has cost.

    cluster.json   machines: those of the last `up`; former: those whose place they took
    the provider   those that there are; EC2 also tells of those that have ended, and when

A machine of which nobody knows when it ended has `until` 0: whoever bills it takes the latest
moment that it can have been.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from drumline.cluster.home import ClusterHome
from drumline.cluster.machine import Machine
from drumline.cluster.provider import Provider
from drumline.core.errors import DrumlineError


@runtime_checkable
class Remembering(Protocol):
    """A provider that knows of machines that are no more."""

    def ended(self) -> list[Machine]:
        """Return those of the cluster, each with its end where that is known."""


def read_former(home: ClusterHome) -> list[Machine]:
    """Return the machines whose place others have taken, each with its end."""
    return [Machine.from_json(values) for values in home.read_facts().get("former", [])]


def former_machines(
    home: ClusterHome, provider: Provider, noted: Sequence[Machine], machines: Sequence[Machine]
) -> list[Machine]:
    """Return the former machines, with those of the last `up` that are no more.

    Args:
        home: of the cluster.
        provider: is asked when they ended; where it does not know, they ended by now.
        noted: the machines of the last `up`.
        machines: those that there are.
    """
    here = {machine.identity for machine in machines}
    former = {machine.identity: machine for machine in read_former(home)}
    if gone := [one for one in noted if one.identity not in here and one.since]:
        told = {machine.identity: machine.until for machine in _ended(provider)}
        deadline = home.read_facts().get("deadline")
        latest = time.time() if deadline is None else min(time.time(), float(deadline))
        former |= {one.identity: one.at(until=told.get(one.identity) or latest) for one in gone}
    return list(former.values())


def every_machine(
    home: ClusterHome, provider: Provider, noted: Sequence[Machine], living: Sequence[Machine]
) -> list[Machine]:
    """Return all machines that a cluster has had, by node and age; the living have no end."""
    known: dict[str, Machine] = {}
    for machine in (*_ended(provider), *read_former(home), *noted, *living):
        before = known.get(machine.identity, machine)
        known[machine.identity] = machine.at(
            until=before.until or machine.until, price_usd=machine.price_usd or before.price_usd
        )
    for machine in living:
        known[machine.identity] = known[machine.identity].at(until=0.0)
    return sorted(known.values(), key=lambda machine: (machine.node, machine.since))


def living_machines(provider: Provider) -> list[Machine]:
    """Return the machines that there are; none where they cannot be told."""
    with contextlib.suppress(DrumlineError, OSError):
        return provider.machines()
    return []


def _ended(provider: Provider) -> list[Machine]:
    if isinstance(provider, Remembering):
        with contextlib.suppress(DrumlineError, OSError):  # what is not known is not billed
            return provider.ended()
    return []
