"""`Footprint`: how much memory training takes on this rank, beyond what it starts with.

Linux keeps the highest resident size of a process, and lets it be set back; a GPU's allocator does
the same. Where neither is known, nothing is told.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class Footprint:
    """Begin to watch now; ask for the peak at the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)
        self._before = _read("VmRSS")

    def peak(self) -> dict[str, int]:
        """Return the peak in bytes: of host memory beyond the start, and of a GPU's."""
        found = {}
        highest = _read("VmHWM")
        if highest is not None and self._before is not None:
            found["peak_bytes"] = max(0, highest - self._before)
        if self._device.type == "cuda":
            found["peak_gpu_bytes"] = torch.cuda.max_memory_allocated(self._device)
        return found


def _read(field: str) -> int | None:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found.group(1)) * 1024
    return None
