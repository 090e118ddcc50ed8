"""Rounds of messages, and the shapes that collectives are made of: star, tree, chain, ring.

A round is the messages that travel at the same time. In a round each rank sends one message at most
and receives one at most: two on one link would share it. So the number of rounds is how many
messages follow each other on the critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

_CHAIN_BYTES = 2**14  # the smallest segment of a chain
SEGMENT_BYTES = 2**20
"""how much of a piece travels at once where an algorithm passes it on while the rest arrives"""
SMALL_BYTES = 2**16
"""what is never cut: a message costs more than its overlap brings"""


class PlannedMessage(NamedTuple):
    """One message; its size is in elements while a schedule is made, and in bytes in the end."""

    source: int
    target: int
    size: int


Round = list[PlannedMessage]
Rounds = list[Round]


def star(n: int, root: int, size: int) -> Rounds:
    """Schedule a star: the root sends to everybody, one after the other."""
    return [[PlannedMessage(root, other, size)] for other in range(n) if other != root]


def tree(n: int, root: int, size: Callable[[int], int]) -> Rounds:
    """Schedule a binomial tree downwards; `size` says how much a subtree of so many ranks gets."""
    rounds = []
    for bit in reversed(range((n - 1).bit_length())):
        below = 1 << bit
        parents = (v for v in range(0, n, 2 * below) if v + below < n)  # counted from the root
        rounds.append(
            [
                PlannedMessage(
                    (v + root) % n, (v + below + root) % n, size(min(below, n - v - below))
                )
                for v in parents
            ]
        )
    return rounds


def chain(n: int, first: int, parts: Sequence[int]) -> Rounds:
    """Schedule a chain from neighbour to neighbour: link i carries part t−i in round t."""
    return [
        [
            PlannedMessage((first + i) % n, (first + i + 1) % n, parts[t - i])
            for i in range(n - 1)
            if 0 <= t - i < len(parts)
        ]
        for t in range(len(parts) + n - 2)
    ]


def round_ring(sizes: Sequence[int], element_bytes: int, *, ahead: int) -> Rounds:
    """Schedule a ring of n pieces: all n send to the right, rank r piece r−ahead−s in step s."""
    n, rounds = len(sizes), []
    for step in range(n - 1):
        pieces = [cut(sizes[(r - ahead - step) % n], element_bytes) for r in range(n)]
        for parts in zip_longest(*pieces, fillvalue=0):
            rounds.append([PlannedMessage(r, (r + 1) % n, part) for r, part in enumerate(parts)])
    return rounds


def pairwise(n: int, size: int) -> Rounds:
    """Schedule pairwise messages: everybody sends to the next, then to the one after, and so on."""
    return [[PlannedMessage(r, (r + step) % n, size) for r in range(n)] for step in range(1, n)]


def dissemination(n: int) -> Rounds:
    """Schedule a dissemination barrier: a byte to the rank at distance 1, 2, 4, … on the right."""
    distances = (1 << bit for bit in range((n - 1).bit_length()))
    return [[PlannedMessage(r, (r + distance) % n, 1) for r in range(n)] for distance in distances]


def even(elements: int, n: int) -> list[int]:
    """Return the sizes of a schedule's n pieces: they differ by one at most, the larger first."""
    small, larger = divmod(elements, n)
    return [small + 1] * larger + [small] * (n - larger)


def segment_bytes(elements: int, element_bytes: int) -> int:
    """Return how much of a ring's piece a schedule sends at once: half of it, within two bounds."""
    return max(SMALL_BYTES, min(SEGMENT_BYTES, -(-elements // 2) * element_bytes))


def chain_segment_bytes(nbytes: int, ranks: int) -> int:
    """Return how much a schedule's chain hands on at once: the last rank is close behind."""
    return max(_CHAIN_BYTES, min(SEGMENT_BYTES, nbytes // (4 * ranks)))


def cut(elements: int, element_bytes: int, nbytes: int | None = None) -> list[int]:
    """Return the sizes of the segments that a schedule's piece travels in."""
    if nbytes is None:
        nbytes = segment_bytes(elements, element_bytes)
    step = max(1, nbytes // element_bytes)
    return [min(step, elements - start) for start in range(0, elements, step)]


def reverse(rounds: Rounds) -> Rounds:
    """Run a schedule backwards: what went down comes up, what was gathered is scattered."""
    return [[PlannedMessage(m.target, m.source, m.size) for m in now] for now in reversed(rounds)]


def rename(rounds: Iterable[Round], names: Sequence[int]) -> Rounds:
    """Rename the ranks of a schedule: those given take the places of 0, 1, 2, …"""
    return [
        [PlannedMessage(names[m.source], names[m.target], m.size) for m in now] for now in rounds
    ]


def up_and_down(down: Rounds) -> Rounds:
    """Schedule a way up and down: the rounds backwards, to collect, then forwards, to give back."""
    return reverse(down) + down
