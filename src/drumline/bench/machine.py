"""On what was measured: the manifest of a run, and what else the numbers depend on."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

from drumline.launch.runs import build_manifest


def describe_machine(argv: list[str]) -> dict[str, Any]:
    """Return the machine, its software, the command, and how busy it was."""
    load = os.getloadavg()[0]
    return {**build_manifest(argv), "cpu": _cpu_model(), "load_1min": round(load, 2)}


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
