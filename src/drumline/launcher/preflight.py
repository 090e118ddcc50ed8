"""What is found out before anything is started: GPUs, a module's file, what a script will load."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.core.errors import UsageError
from drumline.spec.data import COLLATES

if TYPE_CHECKING:
    from drumline.spec.run_spec import RunSpec

_NVIDIA_S = 20.0  # a driver that has to wake takes some
# device files of NVIDIA's driver, of its Jetson boards, of Windows' Linux, of AMD's driver
_SIGNS = ("nvidia*", "nvhost*", "dxg", "kfd")


def may_have_gpu() -> bool:
    """Whether this machine may have a GPU, asked before a launch; only PyTorch knows for sure."""
    there = any(True for sign in _SIGNS for _ in Path("/dev").glob(sign))
    return there or shutil.which("nvidia-smi") is not None


def refuse_without_gpu(spec: RunSpec) -> None:
    """Refuse to launch by NCCL where nothing speaks for a GPU (UsageError)."""
    if spec.backend == "nccl" and not may_have_gpu():
        raise UsageError(
            "backend: nccl moves GPU tensors, and this machine has no GPU (no device file of one, "
            "no nvidia-smi); set backend=auto"
        )


def list_gpus() -> list[str] | None:
    """List this machine's NVIDIA GPUs, a line of nvidia-smi each; None without that command."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    try:
        listed = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=_NVIDIA_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.splitlines()


def check_factories(spec: RunSpec) -> None:
    """Refuse a spec that names a module or function of the user's own which is not there."""
    data = spec.data if spec.data.form == "factory" else None
    parts = (spec.model, data, spec.optimizer, spec.schedule, spec.loss, *(spec.metrics or ()))
    for part in (*parts, *spec.loggers, *spec.callbacks):
        if part is not None and ":" in part.name:
            part.factories.check(part.name)
    if spec.data.collate is not None:
        COLLATES.check(spec.data.collate)


# What a script's text says it will need; loaded once for all workers.
_PRELOADS = {
    r"DistributedDataParallel|torch\.optim|optim\.|lightning|accelerate": "torch._dynamo",
    r"pytorch_lightning": "pytorch_lightning",
    r"accelerate": "accelerate",
}


def find_module(name: str) -> Path:
    """Find the file of a module to launch, without running it; a UsageError if there is none."""
    where, spec = [str(Path.cwd()), *sys.path], None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), where)
        if spec is None:
            break
        where = list(spec.submodule_search_locations or [])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", where)
    if spec is None or not spec.has_location or spec.origin is None:
        raise UsageError(f"no module {name}; give its name as for python -m, from this folder")
    return Path(spec.origin)


def guess_preloads(path: Path) -> list[str]:
    """Guess from a script's text which modules the workers of its launch will load."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the script {path}: {error.strerror}") from None
    return [module for pattern, module in _PRELOADS.items() if re.search(pattern, text)]
