"""Sends and receives, as PyTorch asks for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from drumline.comm.mpi.waiting import Patience, new_status
from drumline.comm.peer import LostPeerError

# tensors of messages that were given up: MPI may still read or write them, so they stay
_ABANDONED: list[list[Tensor]] = []


class Message(dist.Work):
    """A send or receive under way; the tensor is kept until it is done."""

    def __init__(
        self, request: Any, patience: Patience, what: str, peer: int | None, parts: list[Tensor]
    ) -> None:
        """Follow a request.

        Args:
            request: from MPI.
            patience: how long to wait.
            what: the call, for errors.
            peer: the other rank in the group; None: any.
            parts: the tensor that MPI reads or writes; if there is a second, where to copy it then.
        """
        super().__init__()
        self._request, self._patience, self._what = request, patience, what
        self._peer, self._parts = peer, parts
        self._status: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the tensor may be used again."""
        if self._status is None:
            peers = None if self._peer is None else [self._peer]
            try:
                self._finish(self._patience.wait(self._request, self._what, peers))
            except LostPeerError:
                _ABANDONED.append(self._parts)
                raise
        return True

    def is_completed(self) -> bool:
        """Whether it is done; never blocks."""
        status = new_status()
        if self._status is None and self._request.Test(status):
            self._finish(status)
        return self._status is not None

    def result(self) -> list[Tensor]:
        """Block for, and return, the tensor."""
        self.wait()
        return self._parts[-1:]

    def source_rank(self) -> int:
        """Who sent it (a rank in the group)."""
        self.wait()
        return int(self._status.Get_source()) if self._peer is None else self._peer

    _source_rank = source_rank

    def _finish(self, status: Any) -> None:
        self._status = status
        if len(self._parts) == 2:
            self._parts[1].detach().copy_(self._parts[0])
