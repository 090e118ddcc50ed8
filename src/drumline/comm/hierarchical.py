"""Two-level collectives: inside a node first, and between nodes only what must cross.

    node 0   0   1   2   3          (1) inside each node, up to its first rank
             ▲───┴───┴───┘          (2) first ranks among themselves, over the network
             │ (2)                  (3) inside each node, down again
    node 1   4   5   6   7
             ▲───┴───┴───┘ (1)

The links between nodes carry each byte once per node, not once per rank: with m ranks a node, m
times fewer ranks meet on the slow links. `Channel.ranks_per_node` says who shares a node.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drumline.comm import halving, ring, tree
from drumline.comm.channel import Channel
from drumline.comm.reduce_op import Op


def all_reduce(channel: Channel, tensor: Tensor, op: Op) -> None:
    """All-reduce in two levels, in place: messages inside each node, and between the nodes.

    Every rank calls this; it blocks until this rank holds the result. Between nodes: the chunked
    ring, 2·(k−1)/k·b bytes per node with k nodes. Inside: a tree up and a tree down, of b bytes.
    """
    inside, leaders = _levels(channel)
    step = Op.SUM if op is Op.AVG else op
    tree.reduce(inside, tensor, 0, step)  # (1)
    if leaders is not None:
        ring.chunked_all_reduce(leaders, tensor, step)  # (2)
        op.finish(tensor, channel.size)
    tree.broadcast(inside, tensor, 0)  # (3)


def reduce(channel: Channel, tensor: Tensor, root: int, op: Op) -> None:
    """Reduce to the root in two levels, inside nodes and between them, in place there.

    The others keep theirs. Every rank calls this. b bytes leave each node once.
    """
    inside, leaders = _levels(channel, root)
    step = Op.SUM if op is Op.AVG else op
    total = tensor if channel.rank == root else tensor.clone()
    tree.reduce(inside, total, _local(channel, root), step)  # (1)
    if leaders is not None:
        tree.reduce(leaders, total, root // channel.ranks_per_node, step)  # (2)
    if channel.rank == root:
        op.finish(tensor, channel.size)


def broadcast(channel: Channel, tensor: Tensor, root: int) -> None:
    """Broadcast the root's tensor in two levels, in place: between nodes, then inside each.

    Every rank calls this. b bytes enter each node once.
    """
    inside, leaders = _levels(channel, root)
    if leaders is not None:
        tree.broadcast(leaders, tensor, root // channel.ranks_per_node)  # (2)
    tree.broadcast(inside, tensor, _local(channel, root))  # (3)


def barrier(channel: Channel) -> None:
    """Block until every rank calls this: a tree up, dissemination between nodes, a tree down."""
    inside, leaders = _levels(channel)
    token = torch.zeros(1, dtype=torch.uint8)
    tree.reduce(inside, token, 0, Op.MAX)  # (1)
    if leaders is not None:
        halving.dissemination_barrier(leaders)  # (2)
    tree.broadcast(inside, token, 0)  # (3)


def _levels(channel: Channel, root: int = 0) -> tuple[Channel, Channel | None]:
    """Return the channel of this node, and that of the leaders where this rank is one.

    Rank k of each node leads it, where the root is rank k of its own; the last node may be smaller
    than that, and is then led by its first rank.
    """
    m, n = channel.ranks_per_node, channel.size
    nodes = [range(start, min(start + m, n)) for start in range(0, n, m)]
    leaders = [node[_lead(node, root % m)] for node in nodes]
    own = nodes[channel.rank // m]
    return (channel.among(own), channel.among(leaders) if channel.rank in leaders else None)


def _local(channel: Channel, root: int) -> int:
    """Return the local rank of this node's leader."""
    m, n = channel.ranks_per_node, channel.size
    start = channel.rank // m * m
    return _lead(range(start, min(start + m, n)), root % m)


def _lead(node: range, wanted: int) -> int:
    return wanted if wanted < len(node) else 0
