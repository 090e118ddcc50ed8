"""Keeping freed memory for the next step.

A training step allocates and frees the same megabytes of activations over and over. glibc gives
large blocks back to the kernel each time and gets them back empty, page by page: thousands of page
faults a step. Told to keep them, it reuses the same pages; the process stays at its peak size.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 32 * 2**20  # glibc's limit for blocks that come from its own heap
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Ask the C library to keep what is freed; does nothing where it is not glibc."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  only glibc has it
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
