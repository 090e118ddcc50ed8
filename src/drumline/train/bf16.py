"""bf16 on a CPU that promises more than it holds.

Some virtual machines announce AMX tile instructions and then trap on them; oneDNN trusts the
announcement and the process dies of SIGILL. So a child tries one small product first, and where it
dies, oneDNN is told to use plain AVX-512.
"""

from __future__ import annotations

import os
import signal

import torch

_VARIABLE = "ONEDNN_MAX_CPU_ISA"


def settle_bf16() -> str | None:
    """Make bf16 products safe in this process; returns a note where something had to be done.

    To be called before the first product, and before this process has threads.
    """
    if _VARIABLE in os.environ or _child_survives():
        return None
    os.environ[_VARIABLE] = "AVX512_CORE_BF16"
    return "this CPU traps on AMX instructions that it announces; bf16 uses AVX-512 instead"


def _child_survives() -> bool:
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGILL, signal.SIG_DFL)
            tile = torch.ones(64, 64, dtype=torch.bfloat16)
            torch.mm(tile, tile)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL)
