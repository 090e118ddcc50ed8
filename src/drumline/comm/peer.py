"""`LostPeerError`: another rank does not take part any more. Raised by the backends written here.

The launcher looks for the rank that failed first; a rank that only lost its peer says so by this
error, and by its text, since PyTorch's C++ parts hand on the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LOST = re.compile(r"\(drumline (shm|mpi|rpc)\)")


class LostPeerError(RuntimeError):
    """A collective cannot end, because another rank is gone or does not come."""

    def __init__(self, message: str, *, backend: str, ranks: Iterable[int]) -> None:
        super().__init__(f"{message} (drumline {backend})")
        self.ranks = tuple(ranks)


def tells_of_lost_peer(text: str) -> bool:
    """Whether an error's text is that of a `LostPeerError`, whatever its type has become."""
    return _LOST.search(text) is not None
