"""Ping-pong: what one message costs, and what each of its bytes adds.

Neighbours play in pairs, all pairs at once, so that the cores and links are as busy as they are in
a collective; half of the time there and back is one message.
"""

from __future__ import annotations

import statistics
import time

import torch

from drumline.comm import Channel

SIZES = (8, 2**16)
"""bytes of a ball; the second is at least as large as what the collective moves"""
_ROUNDS, _GAMES = 6, 5


def play_pingpong(channel: Channel, nbytes: int) -> list[tuple[int, float]]:
    """Return (bytes, seconds) for each game; every rank calls this, and an odd one has none."""
    sizes = (SIZES[0], max(SIZES[1], nbytes))
    partner = channel.rank ^ 1
    if partner >= channel.size:
        return []
    return [(size, _play(channel, partner, size)) for size in sizes for _ in range(_GAMES)]


def _play(channel: Channel, partner: int, nbytes: int) -> float:
    ball = torch.zeros(nbytes, dtype=torch.uint8)
    times = []
    for _ in range(_ROUNDS):
        began = time.monotonic_ns()
        if channel.rank < partner:
            channel.send(ball, partner)
            channel.recv(ball, partner)
        else:
            channel.recv(ball, partner)
            channel.send(ball, partner)
        times.append(time.monotonic_ns() - began)
    return statistics.median(times[1:]) / 2e9
