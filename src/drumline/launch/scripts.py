"""What a script's workers will need: found out without running it, and loaded once for all."""

from __future__ import annotations

import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from drumline.core.errors import UsageError

# What a script's text says it will need; loaded once for all workers.
_PRELOADS = {
    r"DistributedDataParallel|torch\.optim|optim\.|lightning|accelerate": "torch._dynamo",
    r"pytorch_lightning": "pytorch_lightning",
    r"accelerate": "accelerate",
}


def find_module(name: str) -> Path:
    """Find the file of a module without running anything; workers look here and in their path.

    Raises:
        UsageError: there is none.
    """
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
    """Name the modules that a script's workers will load, from its text.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the script {path}: {error.strerror}") from None
    return [module for pattern, module in _PRELOADS.items() if re.search(pattern, text)]
