"""Which nodes are still there: the provider's word, where SSH alone cannot tell.

To SSH, a node that has ended itself looks like one behind a firewall.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import describe_deadline
from drumline.cluster.machine import Machine
from drumline.cluster.making import build_provider
from drumline.cluster.provider import Provider
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.transport import host_error
from drumline.core.errors import DrumlineError, HostError

ASK_S = 10.0
"""how long the provider may take to answer"""
GONE = "gone"
"""the `reason` of what the provider does not have any more"""


async def find_ended(
    provider: Callable[[], Provider], machines: Sequence[Machine]
) -> list[Machine]:
    """Ask the provider which machines are there no more; no answer is no news.

    Args:
        provider: makes it, or gives it; called in a thread.
        machines: those that there should be.
    """
    answer: Future[set[str]] = Future()

    def ask() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result({machine.identity for machine in provider().machines()})
        except BaseException as error:
            answer.set_exception(error)

    # a thread of its own: one of asyncio's would be waited for, however often AWS is tried
    threading.Thread(target=ask, daemon=True).start()
    try:
        living = await asyncio.wait_for(asyncio.wrap_future(answer), ASK_S)
    except (DrumlineError, TimeoutError):
        return []
    return [machine for machine in machines if machine.identity not in living]


async def find_gone(
    spec: ClusterSpec, home: ClusterHome, machines: Sequence[Machine]
) -> list[HostError]:
    """Return an error for each machine that has ended: `node` says which, `reason` is gone."""
    ended = await find_ended(partial(build_provider, spec, home), machines)
    why = f"has ended {_when(home)}; drumline up makes it again"
    return [host_error(machine, GONE, why) for machine in ended]


def cluster_gone(home: ClusterHome) -> HostError:
    """Return the error for a cluster of which no node is left."""
    return HostError(
        f"the cluster {home.name} is gone: its nodes have ended {_when(home)}; make it again with: "
        f"drumline up, or clear up after it with: drumline down",
        reason=GONE,
    )


def _when(home: ClusterHome) -> str:
    """Say as much of when nodes ended as is known without them."""
    deadline = home.read_facts().get("deadline")
    if deadline is None:
        return "or were removed"
    at = describe_deadline(deadline)
    if deadline < time.time():
        return f"at the limit ({at}), or before"
    return f"before the limit ({at}), idle or otherwise"
