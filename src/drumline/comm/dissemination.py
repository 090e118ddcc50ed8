"""The dissemination barrier: log2(n) rounds, no rank is special (Hensgen, Finkel & Manber 1988).

n = 5      round (1)  r → r+1     each rank then knows of 2 arrivals, its own among them
round (2)  r → r+2     … of 4
round (3)  r → r+4     … of all
"""

from __future__ import annotations

import torch

from drumline.comm.channel import Channel


def barrier(channel: Channel) -> None:
    """Block until every rank has called this.

    Messages per rank: log2(n), rounded up, of one byte each way.
    """
    token, room = torch.zeros(1, dtype=torch.uint8), torch.empty(1, dtype=torch.uint8)
    distance = 1
    while distance < channel.size:
        right, left = (channel.rank + distance) % channel.size, channel.rank - distance
        channel.exchange(token, right, room, left % channel.size)
        distance *= 2
