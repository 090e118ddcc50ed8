"""Collectives on a ring: each rank sends to its right neighbour and receives from its left.

         ┌──► 0 ──► 1 ──┐
         └─── 3 ◄── 2 ◄─┘

Every link is busy all the time and no rank is special. The price is n−1 steps for anything to come
round: for large tensors, not for small ones.

`all_reduce` is the form of the tutorials: whole buffers travel, n−1 times. `chunked_all_reduce`
(Patarasuk & Yuan 2009; Baidu's and Horovod's ring) cuts the buffer into n pieces and moves
2·(n−1)/n of it, which no algorithm can better: for n = 4 half of the bytes, for large n a factor
n/2 less. The chunked forms also pass each piece on in segments, while the rest of it arrives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drumline.comm.channel import Channel, Handle, wait_all
from drumline.comm.pieces import Pieces, segments
from drumline.comm.reduce_op import Op
from drumline.schedules.rounds import chain_segment_bytes

_AHEAD = 4
"""segments that there is room for before they come"""


def all_reduce(channel: Channel, tensor: Tensor, op: Op) -> None:
    """All-reduce on a ring, in place, by passing whole buffers around.

    Every rank calls this; it blocks until this rank holds the result.
    Messages per rank: n−1 of b bytes. Memory: n buffers.

    Step s of n−1: send what came in at step s−1 (one's own buffer first), receive from the left.
    After n−1 steps every rank has seen every buffer, and combines them in rank order: floating-
    point sums depend on the order, and all ranks must end with the same bits.
    """
    rank, n = channel.rank, channel.size
    right, left = (rank + 1) % n, (rank - 1) % n
    buffers: dict[int, Tensor] = {rank: tensor.clone()}
    for step in range(n - 1):
        incoming = torch.empty_like(tensor)
        channel.exchange(buffers[(rank - step) % n], right, incoming, left)
        buffers[(rank - step - 1) % n] = incoming
    tensor.copy_(buffers[0])
    for other in range(1, n):
        op.combine(tensor, buffers[other])
    op.finish(tensor, n)


def chunked_all_reduce(channel: Channel, tensor: Tensor, op: Op) -> None:
    """All-reduce on a ring, in place, in pieces: it moves as few bytes as possible.

    Every rank calls this; it blocks until this rank holds the result.
    Messages per rank: 2·(n−1) pieces of b/n bytes. Memory: four segments besides the tensor.

    With n = 3 and pieces a b c; ▪ marks how many ranks' values a piece holds.

                     rank 0            rank 1            rank 2
      start          a▪  b▪  c▪        a▪  b▪  c▪        a▪  b▪  c▪
      (1) reduce-scatter, n−1 steps: send the piece that just grew, add the one that comes in
      step 0         b▪▪               c▪▪               a▪▪            (0 sends c, 1 a, 2 b)
      step 1         a▪▪▪              b▪▪▪              c▪▪▪
      (2) all-gather, n−1 steps: send the piece that is complete, keep the one that comes in
      step 2         c▪▪▪              a▪▪▪              b▪▪▪
      step 3         b▪▪▪              c▪▪▪              a▪▪▪

    Each piece is combined in one order, on one path, so all ranks end with the same bits. Both
    halves are one loop: in step s piece r−2−s comes in, and each segment of it leaves at once, so
    that the link has no pause between the halves.
    """
    rank, n = channel.rank, channel.size
    right, left = (rank + 1) % n, (rank - 1) % n
    if n == 1:
        return op.finish(tensor, n)
    pieces = [segments(piece) for piece in Pieces.even(tensor, n)]
    stream = [  # what comes in: in which step, segment j of piece k
        (step, k, j)
        for step in range(2 * (n - 1))
        for k in [(rank - 2 - step) % n]
        for j in range(len(pieces[k]))
    ]
    inboxes = [torch.empty_like(pieces[0][0]) for _ in stream[:_AHEAD]]
    leaving: dict[tuple[int, int], Handle] = {}
    offered: list[tuple[Tensor, Handle]] = []

    def offer(until: int) -> None:
        """Offer room for what comes in next; a sender keeps what nobody has room for."""
        for step, k, j in stream[len(offered) : until]:
            room = pieces[k][j]
            if step < n - 1:
                room = inboxes[len(offered) % _AHEAD][: room.numel()]
            elif (k, j) in leaving:
                leaving.pop((k, j)).wait()
            else:  # it must leave before its sum comes
                return
            offered.append((room, channel.irecv(room, left)))

    offer(1)  # before we send: so do the others, and no link waits for room
    for j, part in enumerate(pieces[left]):
        leaving[left, j] = channel.isend(part, right)
    for number, (step, k, j) in enumerate(stream):
        offer(number + _AHEAD)
        part, (room, handle) = pieces[k][j], offered[number]
        handle.wait()
        if step < n - 1:
            op.combine(part, room)  # (1)
        if step == n - 2:
            op.finish(part, n)
        if step < 2 * (n - 1) - 1:
            leaving[k, j] = channel.isend(part, right)
    return wait_all(list(leaving.values()))


def reduce_scatter(channel: Channel, pieces: Pieces, op: Op) -> None:
    """Reduce-scatter on a ring: combine everybody's piece k at rank k, in place.

    The other pieces hold parts of sums then. Every rank calls this; it blocks until its own piece
    is done. Messages per rank: n−1 pieces. Memory: two pieces.

    Step s of n−1: send piece r−1−s, which just grew; receive piece r−2−s and fold it in. A segment
    leaves as soon as it is combined, while the next one still arrives. Room for a step's segments
    is offered one step ahead, in the other of two inboxes: a sender keeps what nobody has room for,
    and the link would be idle meanwhile.
    """
    rank, n = channel.rank, channel.size
    right, left = (rank + 1) % n, (rank - 1) % n
    growing = [segments(pieces[(rank - 2 - step) % n]) for step in range(n - 1)]
    inboxes = [pieces.flat.new_empty(max(pieces.sizes)) for _ in growing[:2]]

    def offer(step: int) -> list[tuple[Tensor, Handle]]:
        size = sum(part.numel() for part in growing[step])
        rooms = segments(inboxes[step % 2][:size])
        return [(room, channel.irecv(room, left)) for room in rooms]

    offered = offer(0) if growing else []
    leaving = _start(channel, pieces[left], right)
    for step, parts in enumerate(growing):
        coming, offered = offered, offer(step + 1) if step < n - 2 else []
        for part, (room, handle) in zip(parts, coming, strict=True):
            handle.wait()
            op.combine(part, room)
            if step < n - 2:
                leaving.append(channel.isend(part, right))
    op.finish(pieces[rank], n)
    wait_all(leaving)


def all_gather(channel: Channel, pieces: Pieces) -> None:
    """All-gather on a ring: fill in the pieces of the others; each rank brings its own.

    Every rank calls this; it blocks until all pieces are here. Messages per rank: n−1 pieces.

    Step s of n−1: send piece r−s, which just came in (one's own first); receive piece r−1−s.
    """
    rank, n = channel.rank, channel.size
    right, left = (rank + 1) % n, (rank - 1) % n
    incoming = [segments(pieces[(rank - 1 - step) % n]) for step in range(n - 1)]
    arriving = [[channel.irecv(part, left) for part in parts] for parts in incoming]
    leaving = _start(channel, pieces[rank], right)
    for step, (parts, handles) in enumerate(zip(incoming, arriving, strict=True)):
        for part, handle in zip(parts, handles, strict=True):
            handle.wait()
            if step < n - 2:
                leaving.append(channel.isend(part, right))
    wait_all(leaving)


def broadcast(channel: Channel, tensor: Tensor, root: int) -> None:
    """Broadcast on a ring, in place: the root's tensor is handed from neighbour to neighbour.

    Every rank calls this; it blocks until the tensor is here and has gone on. Messages per rank:
    one in, one out, of b bytes; the last rank has it after n−1 of them.
    """
    _pass_on(channel, [tensor], root)


def chunked_broadcast(channel: Channel, tensor: Tensor, root: int) -> None:
    """Broadcast on a ring, in place, passing parts on while the rest arrives.

    Every rank calls this; it blocks until the tensor is here and has gone on. Each rank moves b
    bytes in and b out at the same time, in segments of s bytes: it takes (1 + (n−2)·s/b) times as
    long as one message, however many ranks there are.
    """
    _pass_on(channel, segments(tensor, chain_segment_bytes(tensor.nbytes, channel.size)), root)


def reduce(channel: Channel, tensor: Tensor, root: int, op: Op) -> None:
    """Reduce to the root on a ring, in place there: each rank adds its own and hands it on.

    Every rank calls this; it blocks until its sum has gone on. Messages per rank: one in, one out,
    of b bytes; the root has the result after n−1 of them. Memory: one buffer.
    """
    _add_on(channel, tensor, max(1, tensor.nbytes), root, op)


def chunked_reduce(channel: Channel, tensor: Tensor, root: int, op: Op) -> None:
    """Reduce to the root on a ring, in place there, handing parts on while the rest arrives.

    Every rank calls this; it blocks until its sum has gone on. Each rank moves b bytes in and b out
    at the same time, in segments. Memory: one buffer.
    """
    _add_on(channel, tensor, chain_segment_bytes(tensor.nbytes, channel.size), root, op)


def all_to_all(channel: Channel, target: Pieces, source: Pieces) -> None:
    """Exchange all-to-all step by step: send piece k to rank k, and collect this rank's pieces.

    Every rank calls this; it blocks until all is sent and received. Messages per rank: n−1 pieces.
    Step s of n−1: send to the s-th rank on the right while the s-th on the left sends here, so that
    at any time each rank sends one message and receives one.
    """
    rank, n = channel.rank, channel.size
    target[rank].copy_(source[rank])
    for step in range(1, n):
        right, left = (rank + step) % n, (rank - step) % n
        channel.exchange(source[right], right, target[left], left)


def _start(channel: Channel, piece: Tensor, right: int) -> list[Handle]:
    """Send the first piece; alone on a ring, one has nobody to send to."""
    return [channel.isend(part, right) for part in segments(piece)] if channel.size > 1 else []


def _pass_on(channel: Channel, parts: list[Tensor], root: int) -> None:
    """Receive parts from the left and send them on to the right; root starts, its left ends."""
    rank, n = channel.rank, channel.size
    right, left = (rank + 1) % n, (rank - 1) % n
    arriving = [channel.irecv(part, left) for part in parts] if rank != root else []
    leaving: list[Handle] = []
    for k, part in enumerate(parts):
        if arriving:
            arriving[k].wait()
        if right != root:
            leaving.append(channel.isend(part, right))
    wait_all(leaving)


def _add_on(channel: Channel, tensor: Tensor, segment: int, root: int, op: Op) -> None:
    """Add parts that come from the left, and send them on to the right; root's right starts."""
    rank, n = channel.rank, channel.size
    right, left = (rank + 1) % n, (rank - 1) % n
    first, last = left == root, rank == root
    if n == 1:
        return op.finish(tensor, n)
    total = tensor if last or first else tensor.clone()
    parts = segments(total, segment)
    rooms = [] if first else segments(torch.empty_like(tensor), segment)
    arriving = [channel.irecv(room, left) for room in rooms]
    leaving: list[Handle] = []
    for k, part in enumerate(parts):
        if arriving:
            arriving[k].wait()
            op.combine(part, rooms[k])
        if not last:
            leaving.append(channel.isend(part, right))
    if last:
        op.finish(total, n)
    wait_all(leaving)
    return None
