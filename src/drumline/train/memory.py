"""Keeping freed memory for the next step, or giving it back at once.

A training step allocates and frees the same megabytes of activations over and over. glibc gives
large blocks back to the kernel each time and gets them back empty, page by page: thousands of page
faults a step. Told to keep them, it reuses the same pages; the process stays at its peak size.

Kept blocks have gaps between them that nothing fits into, so a process whose memory is limited
would reach its limit long before it needs so much. It gives each large block back instead.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 32 * 2**20  # glibc's limit for blocks that come from its own heap
_LARGE = 2**17  # glibc's own, which it raises with each large block that is freed
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed; does nothing where it is not glibc."""
    _tell_glibc(_M_MMAP_THRESHOLD, _LARGEST)
    _tell_glibc(_M_TRIM_THRESHOLD, _NEVER)


def give_back_freed_memory() -> None:
    """Ask the C library to give large blocks back; does nothing where it is not glibc."""
    _tell_glibc(_M_MMAP_THRESHOLD, _LARGE)
    _tell_glibc(_M_TRIM_THRESHOLD, _LARGE)


def _tell_glibc(parameter: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  only glibc has it
        library.mallopt(parameter, value)
