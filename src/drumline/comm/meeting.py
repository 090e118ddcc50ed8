"""`Meeting`: all ranks at one store, before and beside the process group.

The group's collectives give up after `timeout_s`, and what they say then names no rank. Here each
rank leaves a mark in the store, so that it is known who has not come; and a wait may be longer
where one rank does what the others must wait for (loading, writing a checkpoint).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta

from torch.distributed import Store

from drumline.core.errors import CommError, PeerError

_ANSWER_S = 2.0


class Meeting:
    """The ranks of a run, at the store that they all know."""

    def __init__(
        self, store: Store, *, rank: int, world_size: int, name: Callable[[int], str] = str
    ) -> None:
        self.store = store
        self._rank = rank
        self._world_size = world_size
        self._name = name
        self._waits = 0
        self.session = ""
        """told apart from an earlier group at the same store, as torchrun's restarts have it"""

    def gather(self, what: str, within_s: float) -> None:
        """Wait until every rank has called this with the same word; every rank must.

        Raises:
            PeerError: some have not come in time; says which.
        """
        keys = [f"{self.session}/{what}/{rank}" for rank in range(self._world_size)]
        self.store.set(keys[self._rank], "1")
        try:
            self.store.wait(keys, timedelta(seconds=within_s))
        except RuntimeError:  # the time is over, or the store is gone: then this raises again
            late = self._find_missing(keys)
            if late:
                raise PeerError(
                    f"rank {', '.join(self._name(rank) for rank in late)} did not {what} within "
                    f"{within_s:g} s, while rank {self._name(self._rank)} waited; is it running, "
                    f"and can it reach the others?",
                    rank=late[0],
                ) from None

    def _find_missing(self, keys: list[str]) -> list[int]:
        """Ask the store who is missing; where it does not answer, we are the one cut off."""
        found: Future[list[int]] = Future()

        def ask() -> None:
            try:
                found.set_result([r for r, key in enumerate(keys) if not self.store.check([key])])
            except RuntimeError as error:
                found.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()  # over a cut link it never returns
        try:
            return found.result(timeout=_ANSWER_S)
        except TimeoutError:
            raise PeerError(
                f"rank {self._name(self._rank)} gets no answer from where ranks meet, at rank "
                f"{self._name(0)}; is the network between them cut?",
                rank=self._rank,
            ) from None

    def barrier(self, within_s: float) -> None:
        """Wait for every rank, as often as there is something to wait for."""
        self._waits += 1
        self.gather(f"come to wait {self._waits}", within_s)

    def agree(self, what: str, value: str, within_s: float) -> None:
        """Make sure that all ranks mean the same thing as rank 0.

        Raises:
            CommError: this rank does not.
        """
        if self._rank == 0:
            self.store.set(what, value)
        self.store.wait([what], timedelta(seconds=within_s))
        theirs = self.store.get(what).decode()
        if theirs != value:
            raise CommError(
                f"rank {self._name(self._rank)} has the {what} {value}, but rank 0 has {theirs}; "
                f"end all ranks and start them again together"
            )
