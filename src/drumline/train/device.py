"""What a rank computes on: a GPU or the CPU, its threads, and bf16 that is safe to use.

Some virtual machines announce AMX tile instructions and then trap on them; oneDNN trusts the
announcement and the process dies of SIGILL. So a child tries one small product in bf16 first, and
where it dies, oneDNN is told to use plain AVX-512.
"""

from __future__ import annotations

import os
import signal

import torch

from drumline.core.errors import UsageError
from drumline.core.events import EventWriter
from drumline.core.processes import count_cores
from drumline.spec.run_spec import RunSpec
from drumline.train.memory import keep_freed_memory
from drumline.train.rank import RankInfo

_ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"


def prepare_device(spec: RunSpec, rank: RankInfo, events: EventWriter) -> torch.device:
    """Pick this rank's device and make it fit for training, before the first product."""
    device = pick_device(spec.device, rank)
    if spec.precision == "bf16" and device.type == "cpu":
        note = settle_bf16()
        if note is not None:
            events.write("note", text=note)
    keep_freed_memory()
    return device


def pick_device(wanted: str, rank: RankInfo) -> torch.device:
    """Choose the GPU of this local rank (shared, where there are fewer), or the CPU.

    Raises:
        UsageError: a GPU is asked for and there is none.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("device: cuda, but PyTorch sees no GPU here; set device=cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", rank.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def set_threads(spec: RunSpec, ranks_here: int) -> int:
    """Share the cores out among the ranks of this host, unless the spec says how many."""
    threads = spec.threads or max(1, count_cores() // ranks_here)
    torch.set_num_threads(threads)
    return threads


def settle_bf16() -> str | None:
    """Make bf16 products safe in this process; returns a note where something had to be done.

    To be called before the first product, and before this process has threads.
    """
    if _ISA_VARIABLE in os.environ or _child_survives():
        return None
    os.environ[_ISA_VARIABLE] = "AVX512_CORE_BF16"
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
