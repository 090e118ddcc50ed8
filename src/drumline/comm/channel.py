"""`Channel`: one rank's place among others, and its plain messages to them.

All collectives of this package are written on these few calls, so one can read an algorithm without
knowing torch.distributed, and watch it by handing it a channel that takes notes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _get_default_store

from drumline.core.errors import UsageError


class Handle(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Block until it is done."""


class _AlreadyDone:
    """A message with nothing in it is not sent."""

    def wait(self) -> None:
        """Return at once."""


_DONE = _AlreadyDone()


class Channel:
    """The ranks of a group, or some of them, numbered from 0 in the order given.

    Messages between two ranks arrive in the order in which they were sent. Tensors must be
    contiguous; those without elements are not sent at all.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        members: Sequence[int] | None = None,
        *,
        ranks_per_node: int | None = None,
        family: int | None = None,
    ) -> None:
        """Make the channel of this rank among `members`, by default all ranks of the group.

        Every `ranks_per_node` ranks, counted from the first, share a node; None: all do. Channels
        of one `family` are used by one thread; None: a new family.
        """
        if dist.get_backend(group) == "nccl":
            raise UsageError(
                "these algorithms are made of plain messages, which NCCL would queue behind each "
                "other; give them a gloo group: torch.distributed.new_group(backend='gloo')"
            )
        self.group = group
        everybody = range(dist.get_world_size(group))
        if members is not None:
            _check_members(members, dist.get_rank(group), len(everybody))
        self.members = tuple(everybody if members is None else members)
        self.rank = self.members.index(dist.get_rank(group))
        self.size = len(self.members)
        whole = group or dist.group.WORLD
        assert whole is not None
        self.global_ranks = [dist.get_global_rank(whole, member) for member in self.members]
        """the members by the names that they have in the default group"""
        self.ranks_per_node = ranks_per_node or self.size
        # Channels that are used at the same time must not take each other's messages: those of the
        # same members are counted, in the order in which each rank makes them.
        key = f"channel/{self.global_ranks}/{self.rank}"
        self._family = _get_default_store().add(key, 1) if family is None else family
        self._tag = zlib.crc32(repr((self.members, self._family)).encode()) >> 1

    def among(self, ranks: Sequence[int]) -> Channel:
        """Return the channel of some of these ranks; only they may call this."""
        _check_members(ranks, self.rank, self.size)
        members = [self.members[rank] for rank in ranks]
        return Channel(self.group, members, family=self._family)

    def isend(self, tensor: Tensor, to: int) -> Handle:
        """Start sending; the tensor must stay as it is until `wait` returns."""
        if tensor.numel() == 0:
            return _DONE
        target = self.members[to]
        return dist.isend(tensor, group=self.group, tag=self._tag, group_dst=target) or _DONE

    def irecv(self, tensor: Tensor, source: int) -> Handle:
        """Start receiving; the tensor holds nothing certain until `wait` returns."""
        if tensor.numel() == 0:
            return _DONE
        origin = self.members[source]
        return dist.irecv(tensor, group=self.group, tag=self._tag, group_src=origin) or _DONE

    def send(self, tensor: Tensor, to: int) -> None:
        """Send, and block until the tensor may be changed."""
        self.isend(tensor, to).wait()

    def recv(self, tensor: Tensor, source: int) -> None:
        """Receive, and block until it is here."""
        self.irecv(tensor, source).wait()

    def exchange(self, outgoing: Tensor, to: int, incoming: Tensor, source: int) -> None:
        """Send and receive at once, so that a circle of ranks cannot wait for each other."""
        sent = self.isend(outgoing, to)
        self.recv(incoming, source)
        sent.wait()


def _check_members(ranks: Sequence[int], own: int, size: int) -> None:
    """Refuse ranks that cannot be a group, or not one that this rank is in."""
    given, known = list(ranks), f"ranks go from 0 to {size - 1}"
    if not given:
        raise UsageError(f"a group of no ranks; {known}, and this is rank {own}: name it, at least")
    if wrong := [rank for rank in given if rank not in range(size)]:
        raise UsageError(f"ranks are {given}, but there is no rank {wrong[0]}: {known}")
    if twice := [rank for rank in given if given.count(rank) > 1]:
        raise UsageError(f"ranks are {given}, but rank {twice[0]} is there twice; name it once")
    if own not in given:
        raise UsageError(
            f"ranks are {given}, but this is rank {own}; only the ranks that are named call this"
        )


def wait_all(handles: Sequence[Handle]) -> None:
    """Block until all of a channel's sends and receives (`Handle`s) are done."""
    for handle in handles:
        handle.wait()
