"""Rounds of messages and nothing else: what alpha and beta are fitted to.

All ranks pass a message to their right neighbour at the same time. This is what a round of an
algorithm is, with the cores and links as busy as they are in one.
"""

from __future__ import annotations

import torch

from drumline.comm import Channel

ROUNDS = 4
"""how many rounds are timed together"""
_SIZES = (8, 2**15, 2**18)


def round_sizes(channel: Channel, nbytes: int) -> list[int]:
    """Return the sizes to measure, up to what the collective moves; none for one rank alone."""
    return [*_SIZES[:-1], max(_SIZES[-1], nbytes)] if channel.size > 1 else []


class Ball:
    """A message that is passed around."""

    def __init__(self, nbytes: int) -> None:
        self._ball = torch.zeros(nbytes, dtype=torch.uint8)
        self._room = torch.zeros(nbytes, dtype=torch.uint8)

    def pass_around(self, channel: Channel) -> None:
        """Send it to the right a few times; every rank calls this."""
        right, left = (channel.rank + 1) % channel.size, (channel.rank - 1) % channel.size
        for _ in range(ROUNDS):
            channel.exchange(self._ball, right, self._room, left)
