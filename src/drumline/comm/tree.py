"""Collectives on a binomial tree: the number of ranks that have the data doubles in each round.

Ranks are counted from the root here (v = rank − root, modulo n). The binary digits of v are its
place in the tree: its parent is v without the lowest set bit, and it owns the ranks below that bit.

      n = 8          0                  round (1): 0 → 4
               ┌─────┼──┐               round (2): 0 → 2, 4 → 6
               4     2  1               round (3): 0 → 1, 2 → 3, 4 → 5, 6 → 7
             ┌─┴┐    3
             6  5                       log2(n) rounds; upwards the same in reverse
             7

A rank moves b bytes at most log2(n) times: the best for small messages, where rounds are what
costs; a large one is better cut up (`ring`, `halving`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from drumline.comm.channel import Channel, wait_all
from drumline.comm.reduce_op import Op


def broadcast(channel: Channel, tensor: Tensor, root: int) -> None:
    """Broadcast the root's tensor down a binomial tree, in place.

    Every rank calls this. It blocks until the tensor is here and has gone on to the children, one
    after the other: all at once would share the link, and the first child would wait for all.
    Messages: one in, up to log2(n) out, of b bytes each.
    """
    position = _TreePosition(channel, root)
    if channel.rank != root:
        channel.recv(tensor, position.above)
    for child in position.children:
        channel.send(tensor, child)


def reduce(channel: Channel, tensor: Tensor, root: int, op: Op) -> None:
    """Reduce to the root up a binomial tree, in place there; the others keep theirs.

    Every rank calls this. It blocks until the children's values are in and the sum has gone up.
    Messages: up to log2(n) in, one out, of b bytes each. Inner ranks need one buffer per child, and
    one for their own sum.
    """
    position = _TreePosition(channel, root)
    inbox = [torch.empty_like(tensor) for _ in position.children]
    arriving = [
        channel.irecv(room, child) for room, child in zip(inbox, position.children, strict=True)
    ]
    total = tensor if channel.rank == root or not inbox else tensor.clone()
    for room, handle in reversed(list(zip(inbox, arriving, strict=True))):  # small subtrees first
        handle.wait()
        op.combine(total, room)
    if channel.rank != root:
        channel.send(total, position.above)
    else:
        op.finish(tensor, channel.size)


def all_reduce(channel: Channel, tensor: Tensor, op: Op) -> None:
    """All-reduce in place by messages up a binomial tree to rank 0, and down again.

    Every rank calls this; it blocks until the result is here and has gone on.
    2·log2(n) rounds of b bytes: for small tensors.
    """
    reduce(channel, tensor, 0, op)
    broadcast(channel, tensor, 0)


def scatter(channel: Channel, out: Tensor, source: Tensor | None, root: int) -> None:
    """Scatter down a binomial tree: rank k gets the root's k-th piece.

    Every rank calls this; the root with all pieces, one after the other in `source`. A message
    carries the pieces of a whole subtree: the root sends log2(n), (n−1) pieces in all; inner ranks
    need room for their subtree.
    """
    position = _TreePosition(channel, root)
    if source is not None:
        held = source.view(channel.size, out.numel()).roll(-root, dims=0)  # counted from the root
    else:
        held = out.new_empty(position.subtree, out.numel())
        channel.recv(held, position.above)
    for child, below, count in position.subtrees():
        channel.send(held[below : below + count], child)
    out.copy_(held[0])


def gather(channel: Channel, tensor: Tensor, target: Tensor | None, root: int) -> None:
    """Gather everybody's tensor up a binomial tree to the root: `scatter` in reverse.

    Every rank calls this; the root with room for all pieces in `target`.
    The root receives log2(n) messages, n−1 pieces in all; inner ranks need room for their subtree.
    """
    position = _TreePosition(channel, root)
    held = tensor.new_empty(position.subtree, tensor.numel())
    held[0].copy_(tensor)
    wait_all(
        [
            channel.irecv(held[below : below + count], child)
            for child, below, count in position.subtrees()
        ]
    )
    if target is None:
        channel.send(held, position.above)
    else:
        target.view(channel.size, tensor.numel()).copy_(held.roll(root, dims=0))


def barrier(channel: Channel) -> None:
    """Block until every rank calls this: 2·log2(n) rounds of one byte, up the tree and down."""
    all_reduce(channel, torch.zeros(1, dtype=torch.uint8), Op.SUM)


class _TreePosition:
    """Who is above and below a rank, in the tree of a root."""

    def __init__(self, channel: Channel, root: int) -> None:
        n, own = channel.size, (channel.rank - root) % channel.size
        lowest = own & -own if own else 1 << (n - 1).bit_length()  # the root is above all bits
        self.above = (own - lowest + root) % n  # means nothing at the root
        self.subtree = min(lowest, n - own)
        self._below = [
            1 << bit for bit in reversed(range(lowest.bit_length() - 1)) if own + (1 << bit) < n
        ]
        self.children = [(own + below + root) % n for below in self._below]

    def subtrees(self) -> list[tuple[int, int, int]]:
        """Return each child with where its subtree begins in this one, and how large it is."""
        return [
            (child, below, min(below, self.subtree - below))
            for child, below in zip(self.children, self._below, strict=True)
        ]
