"""`StoreBarrier`: a barrier at the key-value store, before and beside the process group.

The group's collectives give up after `timeout_s`, and what they say then names no rank. Here each
rank leaves a mark in the store, so that it is known who has not come; and a wait may be longer
where one rank does what the others must wait for (loading, writing a checkpoint).

Ranks that were started one by one compare what they were started with (`agree`):

    (1) rank 0 leaves its arguments
    (2) each other rank reads them, and leaves a mark if its own are the same;
    (3) if not, it leaves the difference in the place of every mark, so that nobody waits for more
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta

from torch.distributed import Store

from drumline.core.errors import PeerError, UsageError
from drumline.core.formatting import listed, name_ranks

_ANSWER_S = 2.0
_LINGER_S = 0.5
_SAME = "the same"


class StoreBarrier:
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
        """Wait until every rank has called this with the same label; every rank must.

        Raises:
            PeerError: some have not come in time; says which.
        """
        keys = {rank: f"{self.session}/{what}/{rank}" for rank in range(self._world_size)}
        self.store.set(keys[self._rank], "1")
        self._wait(keys, what, within_s)

    def tell_all(self, what: str, value: str, within_s: float) -> list[str]:
        """Return the values of all ranks, in rank order; every rank calls this with its own.

        Raises:
            PeerError: some have not come in time; says which.
        """
        keys = {rank: f"{self.session}/{what}/{rank}" for rank in range(self._world_size)}
        self.store.set(keys[self._rank], value)
        self._wait(keys, what, within_s)
        return [value.decode() for value in self.store.multi_get(list(keys.values()))]

    def _wait(self, keys: Mapping[int, str], what: str, within_s: float) -> None:
        """Wait for the keys that ranks leave at the store."""
        if not keys:
            return
        try:
            self.store.wait(list(keys.values()), timedelta(seconds=within_s))
        except RuntimeError:  # the time is over, or the store is gone: then this raises again
            late = self._find_missing(keys)
            if late:
                names = name_ranks(self._name(rank) for rank in late)
                they = "is it" if len(late) == 1 else "are they"
                reach = "can it" if len(late) == 1 else "can they"
                raise PeerError(
                    f"{names} did not {what} within {within_s:g} s, while rank "
                    f"{self._name(self._rank)} waited; {they} running, and {reach} reach the "
                    f"others?",
                    rank=late[0],
                ) from None

    def _find_missing(self, keys: Mapping[int, str]) -> list[int]:
        """Ask the store who is missing; where it does not answer, we are the one cut off."""
        found: Future[list[int]] = Future()

        def ask() -> None:
            try:
                found.set_result([r for r, key in keys.items() if not self.store.check([key])])
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

    def agree(self, arguments: Mapping[str, str], within_s: float) -> None:
        """Make sure that all ranks were started with the same arguments; every rank calls this.

        Args:
            arguments: what this rank was started with, by key.
            within_s: how long to wait for the others.

        Raises:
            UsageError: another rank has other arguments; all ranks say which, and what each has.
            PeerError: some have not come in time; says which.
        """
        first, others = "arguments/0", {r: f"arguments/{r}" for r in range(1, self._world_size)}
        if self._rank == 0:
            self.store.set(first, json.dumps([self._world_size, dict(arguments)]))  # (1)
        else:
            self._wait({0: first}, "come", within_s)
            world_size, theirs = json.loads(self.store.get(first))
            difference = self._compare(arguments, theirs)
            if not difference:
                self.store.set(others[self._rank], _SAME)  # (2)
            else:
                for rank in range(1, max(world_size, self._world_size)):
                    self.store.set(f"arguments/{rank}", difference)  # (3)
        self._wait(others, "come", within_s)
        told = {self.store.get(key).decode() for key in others.values()} - {_SAME}
        if told:
            if self._rank == 0:
                time.sleep(_LINGER_S)  # the store may be ours, and the others have to read it
            raise UsageError(min(told))

    def _compare(self, mine: Mapping[str, str], theirs: Mapping[str, str]) -> str:
        """Say what this rank has and rank 0 has not; empty where they have the same."""
        differ = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
        if not differ:
            return ""
        here, there = (
            listed(one.get(key, f"no {key}") for key in differ) for one in (mine, theirs)
        )
        return (
            f"rank {self._name(self._rank)} has {here}, but rank {self._name(0)} has {there}; "
            f"end all ranks, and start them again with the same words"
        )
