"""Collectives in which one rank talks to each of the others: the plainest form.

                 0                root 0 sends to, or receives from, everybody itself: n−1 messages
              ┌──┼──┐             one after the other on its link. The others wait for one message.
              1  2  3

With n ranks and b bytes: the root moves (n−1)·b, whatever the others do. Good for few ranks and for
reading; all other algorithms are measured against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drumline.comm.channel import Channel, wait_all
from drumline.comm.pieces import Pieces
from drumline.comm.reduce_op import Op


def broadcast(channel: Channel, tensor: Tensor, root: int) -> None:
    """Broadcast linearly, in place: the root sends its tensor to each of the others.

    Every rank calls this. The root blocks until all is sent, the others until it is here.
    The root sends n−1 messages of b bytes.
    """
    if channel.rank == root:
        wait_all([channel.isend(tensor, to) for to in _others(channel, root)])
    else:
        channel.recv(tensor, root)


def reduce(channel: Channel, tensor: Tensor, root: int, op: Op) -> None:
    """Reduce linearly: all send to the root, which combines in place; the others keep theirs.

    Every rank calls this. The root blocks until all have come, the others until theirs is sent.
    The root receives n−1 messages of b bytes, and needs n buffers: a slow rank does not hold up the
    bytes of the others. It combines in rank order.
    """
    if channel.rank != root:
        channel.send(tensor, root)
        return
    others = _others(channel, root)
    inbox = {source: torch.empty_like(tensor) for source in others}
    arriving = {source: channel.irecv(inbox[source], source) for source in others}
    own = tensor.clone() if root > 0 else tensor
    for source in range(channel.size):
        if source != root:
            arriving[source].wait()
        value = own if source == root else inbox[source]
        if source == 0 and root > 0:
            tensor.copy_(value)
        elif source > 0:
            op.combine(tensor, value)
    op.finish(tensor, channel.size)


def scatter(channel: Channel, out: Tensor, source: Tensor | None, root: int) -> None:
    """Scatter linearly: the root sends each rank k its k-th piece.

    Every rank calls this; the root with all pieces, one after the other in `source`.
    The root sends n−1 messages of one piece each.
    """
    if source is None:
        channel.recv(out, root)
        return
    pieces = Pieces.even(source, channel.size)
    wait_all([channel.isend(pieces[to], to) for to in _others(channel, root)])
    out.copy_(pieces[root])


def gather(channel: Channel, tensor: Tensor, target: Tensor | None, root: int) -> None:
    """Gather linearly: all send their tensors to the root, which holds them in rank order.

    Every rank calls this; the root with room for all pieces in `target`.
    The root receives n−1 messages of one piece each.
    """
    if target is None:
        channel.send(tensor, root)
        return
    pieces = Pieces.even(target, channel.size)
    pieces[root].copy_(tensor)
    wait_all([channel.irecv(pieces[source], source) for source in _others(channel, root)])


def all_gather(channel: Channel, pieces: Pieces) -> None:
    """All-gather linearly: fill in the others' pieces; each rank sends its own to all.

    Every rank calls this; it blocks until all pieces are here. Each rank sends its piece n−1 times.
    """
    others = _others(channel, channel.rank)
    arriving = [channel.irecv(pieces[source], source) for source in others]
    wait_all([channel.isend(pieces[channel.rank], to) for to in others])
    wait_all(arriving)


def reduce_scatter(channel: Channel, pieces: Pieces, op: Op) -> None:
    """Reduce-scatter linearly: rank k combines all pieces k, in place; others stay as they were.

    Every rank calls this; it blocks until its own piece is done and the others are sent.
    Each rank sends n−1 pieces, and needs room for as many.
    """
    rank = channel.rank
    others = _others(channel, rank)
    inbox = {source: torch.empty_like(pieces[rank]) for source in others}
    arriving = [channel.irecv(inbox[source], source) for source in others]
    leaving = [channel.isend(pieces[to], to) for to in others]
    wait_all(arriving)
    inbox[rank] = pieces[rank].clone()
    pieces[rank].copy_(inbox[0])
    for source in range(1, channel.size):
        op.combine(pieces[rank], inbox[source])
    op.finish(pieces[rank], channel.size)
    wait_all(leaving)


def all_reduce(channel: Channel, tensor: Tensor, op: Op) -> None:
    """All-reduce linearly, in place: rank 0 collects, and sends back what came out.

    Every rank calls this; it blocks until the result is here. This is a parameter server with one
    server: rank 0 receives n−1 messages of b bytes and sends as many, the others one each way.
    """
    reduce(channel, tensor, 0, op)
    broadcast(channel, tensor, 0)


def all_to_all(channel: Channel, target: Pieces, source: Pieces) -> None:
    """Exchange all-to-all, all at once: send piece k to rank k, and collect this rank's pieces.

    Every rank calls this; it blocks until all is sent and received. Each rank sends n−1 pieces.
    """
    others = _others(channel, channel.rank)
    arriving = [channel.irecv(target[peer], peer) for peer in others]
    leaving = [channel.isend(source[peer], peer) for peer in others]
    target[channel.rank].copy_(source[channel.rank])
    wait_all(arriving)
    wait_all(leaving)


def barrier(channel: Channel) -> None:
    """Block until every rank has called this, by n−1 messages of a byte to rank 0, and n−1 back."""
    all_reduce(channel, torch.zeros(1, dtype=torch.uint8), Op.SUM)


def _others(channel: Channel, rank: int) -> list[int]:
    return [other for other in range(channel.size) if other != rank]
