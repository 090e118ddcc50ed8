"""`ProcessWatch`: whether the processes of the other ranks still live.

By pidfds: the kernel says that a process has ended even while its parent has not yet asked for its
exit code, and never takes a new process for an old one.
"""

from __future__ import annotations

import os
import select
import sys

from drumline.comm.lost_peers import LostPeerError

if sys.platform == "linux":
    from os import pidfd_open
else:  # only Linux shares memory without a name, so nothing is ever watched elsewhere

    def pidfd_open(pid: int) -> int:
        """Refuse."""
        raise OSError("no pidfds on this system")


class ProcessWatch:
    """The processes of a group."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}
        for rank, pid in enumerate(pids):
            try:
                descriptor = pidfd_open(pid)
            except ProcessLookupError:
                self.close()
                raise LostPeerError(
                    f"rank {rank} of the group ended before it began", backend="shm", ranks=[rank]
                ) from None
            self._rank_of[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)

    def gone(self) -> list[int]:
        """Return the ranks (in the group) whose processes have ended."""
        return sorted(self._rank_of[descriptor] for descriptor, _ in self._poll.poll(0))

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._rank_of:
            os.close(descriptor)
        self._rank_of.clear()
        self._poll = select.poll()
