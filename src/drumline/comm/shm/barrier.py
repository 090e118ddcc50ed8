"""`ShmBarrier`: a barrier in shared memory, made of POSIX semaphores, that compares the calls.

    mutex │ waiting │ come: 0 1 2 …  │ open: 0 1 2 …         │ calls (even, odd)
    sem   │ count   │ times each has │ a semaphore for each  │ what each rank is about to do
                      come here

(1) A rank notes what it is about to do, takes the mutex and counts itself in.
(2) The last one posts every other rank's semaphore; the others sleep until then.
(3) Once past it all compare what the others are about to do with their own call.

Calls are double-buffered, for even and odd barriers: a fast rank may be at the next barrier while a
slow one still reads the calls of this one, but never at the one after that.

A rank that does not come is named: at once if its process has ended, else at the timeout.

Semaphores make the backend right on every processor: a post and the wait that takes it are full
memory barriers by the standard; flags made of plain stores would be right on x86 alone. A waiting
rank sleeps in the kernel, so there may be more ranks than cores. That costs some 10 µs; spinning
before it made the whole no faster where other programs wanted the cores.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Sequence
from mmap import mmap

from drumline.comm.lost_peers import LostPeerError
from drumline.comm.shm.segment import ProcessWatch
from drumline.core.errors import CommError
from drumline.core.formatting import name_ranks

SLOT_BYTES = 64
"""room for a sem_t (32 bytes on 64-bit Linux), and no two on a cache line"""
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphore:
    """A semaphore at an address that several processes have mapped."""

    def __init__(self, address: int) -> None:
        self._at = ctypes.c_void_p(address)
        # PyDLL keeps Python's lock: right for calls that return at once. CDLL lets go of it.
        quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None, use_errno=True)
        self._init = slow.sem_init
        self._post = quick.sem_post
        self._try = quick.sem_trywait
        self._until = getattr(slow, "sem_clockwait", None)  # glibc 2.30; a clock that never jumps
        self._until_wall = slow.sem_timedwait

    def set_up(self, value: int) -> None:
        """Make it, for all processes; one of them calls this before the others know of it."""
        if self._init(self._at, 1, ctypes.c_uint(value)):
            raise OSError(ctypes.get_errno(), "cannot make a semaphore in shared memory")

    def post(self) -> None:
        """Add one; wakes a waiter."""
        self._post(self._at)

    def take(self, seconds: float) -> bool:
        """Take one away, waiting up to so many seconds; False if there was none."""
        if self._try(self._at) == 0:
            return True
        if self._until is not None:
            until = _time_spec(time.monotonic() + seconds)
            failed = self._until(self._at, _CLOCK_MONOTONIC, ctypes.byref(until))
        else:
            until = _time_spec(time.time() + seconds)
            failed = self._until_wall(self._at, ctypes.byref(until))
        if not failed:
            return True
        code = ctypes.get_errno()
        if code not in (errno.ETIMEDOUT, errno.EINTR):
            raise OSError(code, f"waiting for a semaphore: {os.strerror(code)}")
        return False


def _time_spec(moment: float) -> _TimeSpec:
    seconds = int(moment)
    return _TimeSpec(seconds, int((moment - seconds) * 1e9))


CALL_BYTES = 96
_POLL_S = 0.1
_GRACE_S = 1.0  # for a rank that is interrupted before it has posted all semaphores


def barrier_bytes(size: int) -> int:
    """Return how much shared memory the barrier of so many ranks takes."""
    return SLOT_BYTES * (2 + 2 * size) + 2 * size * CALL_BYTES


class ShmBarrier:
    """The barrier of a group: its ranks wait here for each other."""

    def __init__(
        self,
        memory: mmap,
        offset: int,
        *,
        rank: int,
        names: Sequence[int],
        timeout_s: Callable[[], float],
        watch: ProcessWatch,
    ) -> None:
        """Lay the barrier over shared memory, all zeros, at the same offset in all ranks.

        `names` has the rank in the run of each rank in the group, for error messages. `timeout_s`
        is asked for when a rank has waited for a while; it may be another for the next collective.
        """
        size = len(names)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        at = [base + SLOT_BYTES * slot for slot in range(2 + 2 * size)]
        self._mutex, self._own = Semaphore(at[0]), Semaphore(at[2 + size + rank])
        self._all = [Semaphore(at[2 + size + other]) for other in range(size)]
        self._others = [semaphore for other, semaphore in enumerate(self._all) if other != rank]
        self._waiting = ctypes.c_int64.from_address(at[1])
        self._come = [ctypes.c_int64.from_address(at[2 + other]) for other in range(size)]
        self._calls = memoryview(memory)[offset + SLOT_BYTES * (2 + 2 * size) :]
        self._rank, self._size, self._names = rank, size, names
        self.timeout_s = timeout_s
        self._watch = watch
        self._barriers = 0
        self._call = b""
        self._broken: Exception | None = None

    def set_up(self) -> None:
        """Make the semaphores; the leader calls this before any rank waits."""
        self._mutex.set_up(1)
        for semaphore in self._all:
            semaphore.set_up(0)

    def wait(self, call: bytes | None = None) -> None:
        """Wait until every rank of the group is here.

        `call` is what this rank is about to do, `CALL_BYTES` long.

        Raises:
            LostPeerError: a rank has ended, or did not come in time.
            CommError: the ranks are about to do different things.
        """
        if self._broken is not None:
            raise self._broken.with_traceback(None)
        self._barriers += 1
        begin = (self._barriers & 1) * self._size * CALL_BYTES
        if call is not None:  # (1)
            self._call = call
            mine = begin + self._rank * CALL_BYTES
            self._calls[mine : mine + CALL_BYTES] = call
        self._come[self._rank].value = self._barriers
        self._take(self._mutex)
        waiting = self._waiting.value + 1
        if waiting == self._size:  # (2)
            self._waiting.value = 0
            self._mutex.post()
            for semaphore in self._others:
                semaphore.post()
        else:
            self._waiting.value = waiting
            self._mutex.post()
            self._take(self._own)
        if call is not None:  # (3)
            calls = self._calls[begin : begin + self._size * CALL_BYTES]
            if calls != call * self._size:
                starts = range(0, len(calls), CALL_BYTES)
                self._refuse([bytes(calls[k : k + CALL_BYTES]) for k in starts])

    def give_up(self, error: Exception) -> None:
        """Meet nobody any more: this rank failed half-way, and is out of step with the others."""
        self._broken = self._broken or CommError(
            f"an earlier collective of this group failed on this rank ({error}); leave the group"
        )

    def close(self) -> None:
        """Let go of the memory."""
        self._calls.release()
        self._broken = self._broken or CommError("this group has been closed")

    def _take(self, semaphore: Semaphore) -> None:
        """Wait for a semaphore, with an eye on the other ranks."""
        if semaphore.take(_POLL_S):
            return
        began = time.monotonic()
        while not semaphore.take(_POLL_S):
            waited_s = time.monotonic() - began
            gone = [
                other
                for other in self._watch.gone()
                if self._come[other].value < self._barriers or waited_s > _GRACE_S
            ]
            if gone:
                raise self._break(gone, "{} ended while this rank waited for a peer in {}")
            limit_s = self.timeout_s()
            if waited_s > limit_s:
                late = [r for r in range(self._size) if self._come[r].value < self._barriers]
                raise self._break(
                    late or [r for r in range(self._size) if r != self._rank],
                    f"timed out: {{}} did not come to {{}} within the timeout of {limit_s:g} s",
                )

    def _break(self, ranks: list[int], message: str) -> LostPeerError:
        names = [self._names[rank] for rank in ranks]
        what = message.format(name_ranks(names), _shown(self._call))
        self._broken = LostPeerError(what, backend="shm", ranks=names)
        return self._broken

    def _refuse(self, calls: list[bytes]) -> None:
        mine = calls[self._rank]
        other = next(rank for rank, call in enumerate(calls) if call != mine)
        self._broken = CommError(
            f"the ranks called different collectives: rank {self._names[self._rank]} "
            f"{_shown(mine)}, rank {self._names[other]} {_shown(calls[other])}; "
            f"all ranks of a group must make the same calls in the same order",
            rank=self._names[self._rank],
        )
        raise self._broken


def _shown(call: bytes) -> str:
    return call.rstrip(b"\0 ").decode(errors="replace") or "a collective"
