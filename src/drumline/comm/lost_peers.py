"""Peers that are gone: the error that says so, and a probe that tells a dead rank from a cut link.

The launcher looks for the rank that failed first; a rank that only lost its peer raises
`LostPeerError`, recognised by its text, too, since PyTorch's C++ parts pass on the text alone.

A stopped rank and a cut link look the same to a collective: silence. But a host answers for itself:
its kernel refuses a connection to a closed port at once, whatever its processes do. Over a cut link
nothing comes back (`unreachable_nodes`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from drumline.core.nodes import node_addresses

_LOST = re.compile(r"\(drumline (shm|mpi|rpc)\)")


class LostPeerError(RuntimeError):
    """A collective cannot end, because another rank is gone or does not come."""

    def __init__(self, message: str, *, backend: str, ranks: Iterable[int]) -> None:
        super().__init__(f"{message} (drumline {backend})")
        self.ranks = tuple(ranks)


def mentions_lost_peer(text: str) -> bool:
    """Whether an error's text is that of a `LostPeerError`, whatever its type has become."""
    return _LOST.search(text) is not None


_CLOSED_PORT = 9


def unreachable_nodes(within_s: float = 1.0) -> list[int]:
    """Return the simulated nodes, if there are any, that are lost as peers: they do not answer."""
    addresses = node_addresses()
    if not addresses:
        return []

    async def answers(address: str) -> bool:
        try:
            async with asyncio.timeout(within_s):
                _, writer = await asyncio.open_connection(address, _CLOSED_PORT)
        except ConnectionRefusedError:
            return True
        except OSError:  # silence, or no way there
            return False
        writer.close()
        return True

    async def ask_all() -> list[bool]:
        return await asyncio.gather(*map(answers, addresses))

    return [node for node, answered in enumerate(asyncio.run(ask_all())) if not answered]
