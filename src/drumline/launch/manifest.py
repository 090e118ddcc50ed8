"""The manifest: with what, where and by which words a run was started."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.core.rundir import RunDir

_PACKAGES = ("drumline", "torch", "numpy", "safetensors", "pydantic")


def build_manifest(argv: list[str]) -> dict[str, Any]:
    """Describe this machine, its software and the command."""
    return {
        "argv": argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(),
        "hosts": [platform.node()],
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def note_network(run: RunDir, network: dict[str, Any]) -> None:
    """Add the simulated nodes to a run's manifest: addresses, rates, delays, shares of CPU."""
    run.write_json("manifest.json", {**(run.read_json("manifest.json") or {}), "network": network})


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # slow to load, rarely needed

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the folder that the run was started in, if it is a git checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
