"""What a round of messages costs, and what each byte adds, on this machine and right now.

All ranks pass a message to their right neighbour at the same time, again and again: this is what a
round of an algorithm is, with the cores and links as busy as they are in one.
"""

from __future__ import annotations

import statistics
import time

import torch

from drumline.comm import Channel

SIZES = (8, 2**18)
"""bytes of a message; the second is at least as large as what the collective moves"""
_ROUNDS, _GAMES = 7, 5


def time_rounds(channel: Channel, nbytes: int) -> list[tuple[int, float]]:
    """Return (bytes, seconds of a round), a few times each; every rank calls this."""
    if channel.size == 1:
        return []
    sizes = (SIZES[0], max(SIZES[1], nbytes))
    return [(size, _pass_around(channel, size)) for size in sizes for _ in range(_GAMES)]


def _pass_around(channel: Channel, nbytes: int) -> float:
    """Return the median of a few rounds, in seconds; the first one does not count."""
    ball, room = torch.zeros(nbytes, dtype=torch.uint8), torch.empty(nbytes, dtype=torch.uint8)
    right, left = (channel.rank + 1) % channel.size, (channel.rank - 1) % channel.size
    times = []
    for _ in range(_ROUNDS):
        began = time.monotonic_ns()
        channel.exchange(ball, right, room, left)
        times.append(time.monotonic_ns() - began)
    return statistics.median(times[1:]) * 1e-9
