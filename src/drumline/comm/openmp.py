"""OpenMP in a thread of one's own: each thread that computes gets a whole team of helpers.

torch shares its work out by OpenMP, which makes a team of N threads for every thread that asks. A
communication thread that adds up gradients would bring N more to cores that backward has taken
already, and both would wait for each other. So it works alone.

`torch.set_num_threads` is no help here: it changes the default of all threads, and MKL's.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path

import torch

_LIBRARY = re.compile(r"(/\S*/lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)$", re.MULTILINE)


def work_alone() -> None:
    """Let torch's operations in the calling thread, and in no other, use one thread.

    Does nothing where the library is not found: it costs speed then, and nothing else.
    """
    torch.get_num_threads()  # torch settles the number of a new thread at its first use
    with contextlib.suppress(OSError):
        for path in set(_LIBRARY.findall(Path("/proc/self/maps").read_text())):
            with contextlib.suppress(AttributeError):
                ctypes.CDLL(path).omp_set_num_threads(1)
