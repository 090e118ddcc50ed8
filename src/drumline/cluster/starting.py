"""Starting one command on each node: on all of them, or, where one cannot, on none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from drumline.cluster.banner import raise_for_all
from drumline.cluster.remote import Flow, Remote


async def start_all(
    remotes: Sequence[Remote], command: Callable[[Remote], Sequence[str]]
) -> list[Flow]:
    """Start a command on all nodes at once, in node order.

    Raises:
        HostError: some cannot start it; names all of them. It was ended on the others.
    """
    results = await asyncio.gather(
        *(remote.start(command(remote)) for remote in remotes), return_exceptions=True
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    flows = [result for result in results if not isinstance(result, BaseException)]
    if failures:
        for flow in flows:
            flow.stop()
        raise_for_all(failures)
    return flows
