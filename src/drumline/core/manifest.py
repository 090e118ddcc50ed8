"""The manifest of a run: with what, where and by which command it was started."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime

_PACKAGES = ("drumline", "torch", "numpy", "safetensors", "pydantic")


def build_manifest(argv: list[str]) -> dict[str, object]:
    """Describe a launch for its run's manifest: the command, this machine and its software."""
    return {
        "argv": argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(),
        "hosts": [platform.node()],
        "cpu_count": os.cpu_count(),
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "packages": {name: package_version(name) for name in _PACKAGES},
    }


def package_version(package: str) -> str | None:
    """Return which version of a package is installed; None: it is not."""
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
