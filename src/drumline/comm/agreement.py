"""Do all ranks make the same call? Found out before the call, since afterwards they only hang.

Each rank writes what it is about to call into the store, and reads what the others have written:

    key                      rank 0                        rank 1
    …/7/<rank>               all_reduce(float32[4], sum)   broadcast(float32[4], root 0)
                             └──────────── both ranks see both, and raise ───────────┘

It costs two round trips to the store a call, so it is for small groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup, Store
from torch.distributed.distributed_c10d import _get_default_store

from drumline.core.errors import CommError
from drumline.core.formatting import name_ranks

TIMEOUT_S = 30.0
_TIDY = 32  # calls between two removals of old keys


class Agreement:
    """The calls of one rank in a group, compared with those of the others, in order."""

    def __init__(
        self, store: Store, members: Sequence[int], rank: int, *, timeout_s: float
    ) -> None:
        """Begin at call 0; every member must. `rank` is this one's place among the members."""
        self._store = store
        self._members = members
        self._rank = rank
        self._timeout = timedelta(seconds=timeout_s)
        group = f"agreement/{'-'.join(str(member) for member in members)}"
        before = store.add(f"{group}/made-by/{rank}", 1)  # the same members may meet again
        self._prefix = f"{group}/{before}"
        self._calls = 0
        self._last: str | None = None

    @classmethod
    def of(cls, group: ProcessGroup | None, *, timeout_s: float = TIMEOUT_S) -> Agreement:
        """Return that of all ranks of a group, by the store that they met at."""
        ranks = dist.get_process_group_ranks(group)
        return cls(_get_default_store(), ranks, dist.get_rank(group), timeout_s=timeout_s)

    def check(self, call: str) -> None:
        """Return once all ranks are about to make this call; every rank calls this, and it blocks.

        If another rank makes another call, or none within the timeout, all raise a CommError.
        """
        calls = self.compare(call)
        if len(set(calls)) > 1:
            raise self._explain_difference(calls)

    def compare(self, call: str) -> list[str]:
        """Return what each rank gave; every rank calls this, and it blocks until the last has."""
        keys = [f"{self._prefix}/{self._calls}/{place}" for place in range(len(self._members))]
        self._store.set(keys[self._rank], call)
        try:
            self._store.wait(keys, self._timeout)
        except RuntimeError:
            raise self._explain_absence(call, keys) from None
        calls = [value.decode() for value in self._store.multi_get(keys)]
        self._calls += 1
        self._last = call
        if self._calls % _TIDY == 0:  # everybody has read all but the newest
            for old in range(self._calls - _TIDY - 1, self._calls - 1):
                self._store.delete_key(f"{self._prefix}/{old}/{self._rank}")
        return calls

    def _explain_absence(self, call: str, keys: list[str]) -> CommError:
        missing = [
            member
            for member, key in zip(self._members, keys, strict=True)
            if not self._store.check([key])
        ]
        after = f"; all came to the call before, {self._last}" if self._last else ""
        own = self._members[self._rank]
        return CommError(
            f"{name_ranks(missing)} did not come to call {self._calls + 1}, "
            f"{call}, where rank {own} waited {self._timeout.total_seconds():g} s{after}; "
            f"every rank must make the same calls in the same order",
            ranks=missing,
        )

    def _explain_difference(self, calls: list[str]) -> CommError:
        by_call: dict[str, list[int]] = {}
        for member, call in zip(self._members, calls, strict=True):
            by_call.setdefault(call, []).append(member)
        told = ", ".join(
            f"{name_ranks(ranks)} {'calls' if len(ranks) == 1 else 'call'} {call}"
            for call, ranks in by_call.items()
        )
        return CommError(
            f"call {self._calls} differs between ranks: {told}; "
            f"every rank must make the same calls in the same order",
            calls=calls,
        )
