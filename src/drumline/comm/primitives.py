"""The same sum out of other primitives of the backend: everything passes through one rank, or
everything goes everywhere. Simple to read, and what the ring is measured against.

                    bytes that the busiest rank moves (n ranks, buffer of b bytes)
  reduce_broadcast  ~ 2·b·log2(n)   up a tree, and down again
  gather_scatter    2·(n−1)·b       all at rank 0
  all_gather        2·(n−1)·b       at every rank
  (chunked ring     4·(n−1)/n·b     at every rank)

Each adds up in rank order or in one place, so all ranks end with the same bits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

SERVER = 0


def reduce_broadcast(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` by two collectives, in place: reduce to rank 0, then broadcast from there.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    """
    dist.reduce(tensor, group=group, group_dst=SERVER)
    dist.broadcast(tensor, group=group, group_src=SERVER)


def gather_scatter(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` by two collectives, in place: rank 0 gathers, adds, and scatters the sum.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    Memory on rank 0: n buffers.
    """
    n = dist.get_world_size(group)
    serves = dist.get_rank(group) == SERVER
    parts = [torch.empty_like(tensor) for _ in range(n)] if serves else None
    dist.gather(tensor, parts, group=group, group_dst=SERVER)
    if parts is not None:
        total = _add_in_rank_order(parts)
        parts = [total] * n  # read only, so the same tensor may stand for each rank
    dist.scatter(tensor, parts, group=group, group_src=SERVER)


def all_gather(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Sum `tensor` by one collective, in place: everybody gets every buffer and adds for itself.

    Every rank of the group calls this; it blocks until this rank holds the sum.
    Memory: n buffers on every rank.
    """
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    tensor.copy_(_add_in_rank_order(parts))


def _add_in_rank_order(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total
