"""Instances that have ended: from when to when each of them has cost.

EC2 lists an instance for about an hour after its end. The journal keeps what this machine launched
and ended, whether an `up` has come to note it or not: nodes of a zone that was left again, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from drumline.cluster.providers.ec2.cloud import Cloud
from drumline.cluster.providers.ec2.holdings import instances
from drumline.cluster.providers.ec2.tags import Filter
from drumline.cluster.life.journal import Journal
from drumline.cluster.machine import Machine

_MOMENT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def past_machines(
    cloud: Cloud, filters: Sequence[Filter], journal: Journal, price: Callable[[str | None], float]
) -> list[Machine]:
    """Return the machines of a cluster that have ended, each with its end where that is known.

    Args:
        cloud: the way to AWS.
        filters: the cluster's.
        journal: the cluster's.
        price: what a machine of a type costs per hour; of None: of the cluster's type.
    """
    ends: dict[str, float] = {}
    for intent, result in journal.done("terminate_instances"):
        for identity in intent.what.get("instances", ()):
            ends.setdefault(identity, float(result["at"]))
    found: dict[str, Machine] = {}
    for intent, result in journal.done("run_instances"):
        identity = str(result.get("instance", ""))
        found[identity] = _machine(int(intent.what["node"]), identity, price(None), intent.at)
    for holding in instances(cloud, filters, gone=True):
        described = holding.described
        since = described["LaunchTime"].timestamp()
        usd = price(described.get("InstanceType"))
        machine = _machine(holding.node, holding.identity, usd, since)
        found[holding.identity] = machine.at(until=read_end(described))
        if holding.live:
            del found[holding.identity]
    return [one.at(until=one.until or ends.get(one.identity, 0.0)) for one in found.values()]


def read_end(described: Mapping[str, Any]) -> float:
    """Return when an instance ended, as EC2 describes it; 0: it does not say."""
    moment = _MOMENT.search(str(described.get("StateTransitionReason", "")))
    if moment is None:
        return 0.0
    return datetime.strptime(moment[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _machine(node: int, identity: str, price_usd: float, since: float) -> Machine:
    return Machine(
        node=node, host="", address="", user="", identity=identity, price_usd=price_usd, since=since
    )
