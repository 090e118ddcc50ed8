"""How many ranks a node takes by itself: one for each GPU, or one."""

from __future__ import annotations

import shutil
import subprocess

_WITHIN_S = 20.0  # a driver that has to wake takes some


def count_gpus() -> int:
    """Count this machine's NVIDIA GPUs, as nvidia-smi lists them."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return 0
    try:
        listed = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if listed.returncode != 0:
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def default_workers() -> int:
    """Return how many ranks this node should have where nobody says."""
    return max(1, count_gpus())
