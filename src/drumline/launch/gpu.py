"""Whether this machine may have a GPU, found out without loading torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from drumline.core.errors import UsageError
from drumline.spec.run_spec import RunSpec

# device files of NVIDIA's driver, of its Jetson boards, of Windows' Linux, of AMD's driver
_SIGNS = ("nvidia*", "nvhost*", "dxg", "kfd")


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether anything speaks for a GPU; only PyTorch knows whether it can use it."""
    there = any(True for sign in _SIGNS for _ in devices.glob(sign))
    return there or shutil.which("nvidia-smi") is not None


def refuse_without_gpu(spec: RunSpec) -> None:
    """Say that there is no GPU before anything is started.

    Raises:
        UsageError: the backend moves GPU tensors, and nothing here speaks for a GPU.
    """
    if spec.backend == "nccl" and not may_have_gpu():
        raise UsageError(
            "backend: nccl moves GPU tensors, and this machine has no GPU (no device file of one, "
            "no nvidia-smi); set backend=auto"
        )
