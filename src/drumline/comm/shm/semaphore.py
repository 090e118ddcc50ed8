"""POSIX semaphores in shared memory, from the C library by ctypes.

They are what makes the backend right on every processor: a post and the wait that takes it are
full memory barriers by the standard, so what was written before the post is seen after the wait.
Flags made of plain stores would be right on x86 alone. A waiting rank sleeps in the kernel, so
there may be more ranks than cores; going to sleep and waking up costs some 10 µs, and looking
again and again before that made the whole no faster where other programs wanted the cores.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time

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
