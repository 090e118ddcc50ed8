"""All-reduce on a ring, from nothing but send and receive, in the two forms that people meet.

Each rank talks to two neighbours only: it sends to its right and receives from its left.

         ┌──► 0 ──► 1 ──┐
         └─── 3 ◄── 2 ◄─┘

`ring_all_reduce` is the form of the tutorials: whole buffers travel, n−1 times.
`chunked_ring_all_reduce` (Patarasuk & Yuan 2009; Baidu's and Horovod's ring) cuts the buffer into
n chunks and moves 2·(n−1)/n of it, which no algorithm can better: for n = 4 half of the bytes, for
large n a factor n/2 less.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def ring_all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` over the group, in place, by passing whole buffers around.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    Messages per rank: n−1 of the full size. Memory: n buffers.

    Step s of n−1: send what came in at step s−1 (one's own buffer first), receive from the left.
    After n−1 steps every rank has seen every buffer, and adds them up in rank order: floating-point
    sums depend on the order, and all ranks must end with the same bits.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % n, (rank - 1) % n
    buffers: dict[int, Tensor] = {rank: tensor.clone()}
    for step in range(n - 1):
        outgoing = buffers[(rank - step) % n]
        incoming = torch.empty_like(tensor)
        sent = dist.isend(outgoing, group=group, group_dst=right)
        dist.recv(incoming, group=group, group_src=left)
        _wait(sent)
        buffers[(rank - step - 1) % n] = incoming
    tensor.copy_(buffers[0])
    for other in range(1, n):
        tensor.add_(buffers[other])


def chunked_ring_all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` over the group, in place, moving as few bytes as possible.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    Messages per rank: 2·(n−1), of 1/n of the size each. Memory: one chunk besides the tensor.

    With n = 3 and chunks a b c; ▪ marks how many ranks' values a chunk holds.

                     rank 0            rank 1            rank 2
      start          a▪  b▪  c▪        a▪  b▪  c▪        a▪  b▪  c▪
      (1) reduce-scatter, n−1 steps: send the chunk that just grew, add the one that comes in
      step 0         c▪▪               a▪▪               b▪▪            (0 sends a, 1 b, 2 c)
      step 1         b▪▪▪              c▪▪▪              a▪▪▪
      (2) all-gather, n−1 steps: send the chunk that is complete, keep the one that comes in
      step 0         a▪▪▪              b▪▪▪              c▪▪▪
      step 1         c▪▪▪              a▪▪▪              b▪▪▪

    Each chunk is added up in one order, on one path, so all ranks end with the same bits.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1 or tensor.numel() == 0:
        return
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = split_chunks(tensor, n)
    inbox = torch.empty_like(chunks[0])  # the first chunk is the largest

    for step in range(n - 1):  # (1)
        outgoing, growing = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        incoming = inbox[: growing.numel()]
        sent = _isend(outgoing, right, group)
        _recv(incoming, left, group)
        growing.add_(incoming)
        _wait(sent)

    for step in range(n - 1):  # (2)
        outgoing, missing = chunks[(rank + 1 - step) % n], chunks[(rank - step) % n]
        sent = _isend(outgoing, right, group)
        _recv(missing, left, group)
        _wait(sent)


def split_chunks(tensor: Tensor, n: int) -> list[Tensor]:
    """Cut a flat tensor into n views whose sizes differ by one element at most, largest first."""
    small, larger = divmod(tensor.numel(), n)
    return list(tensor.split([small + 1] * larger + [small] * (n - larger)))


def _isend(chunk: Tensor, to: int, group: ProcessGroup | None) -> dist.Work | None:
    return dist.isend(chunk, group=group, group_dst=to) if chunk.numel() else None


def _recv(chunk: Tensor, source: int, group: ProcessGroup | None) -> None:
    if chunk.numel():
        dist.recv(chunk, group=group, group_src=source)


def _wait(sent: dist.Work | None) -> None:
    if sent is not None:
        sent.wait()
