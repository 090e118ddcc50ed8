"""What is found out, or refused, before anything is started.

NCCL without a GPU; a file by which ranks cannot meet (`init: file` never takes one that another run
has left); a module that is not there; and what a script's workers will load, from its text.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.core.errors import UsageError

if TYPE_CHECKING:
    from drumline.core.rundir import RunDir
    from drumline.spec.run_spec import RunSpec


_NVIDIA_S = 20.0  # a driver that has to wake takes some
# device files of NVIDIA's driver, of its Jetson boards, of Windows' Linux, of AMD's driver
_SIGNS = ("nvidia*", "nvhost*", "dxg", "kfd")


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine may have a GPU, asked before a launch; only PyTorch knows for sure."""
    there = any(True for sign in _SIGNS for _ in devices.glob(sign))
    return there or shutil.which("nvidia-smi") is not None


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


def refuse_without_gpu(spec: RunSpec) -> None:
    """Refuse a launch that needs a GPU where there is none, before anything is started.

    Raises:
        UsageError: the backend moves GPU tensors, and nothing here speaks for a GPU.
    """
    if spec.backend == "nccl" and not may_have_gpu():
        raise UsageError(
            "backend: nccl moves GPU tensors, and this machine has no GPU (no device file of one, "
            "no nvidia-smi); set backend=auto"
        )


_SCHEME = "file://"


def refuse_bad_init_file(init: str) -> None:
    """Refuse to launch with an init file that ranks cannot rendezvous by; tries to make it.

    One that is there already has another run's addresses in it, which torch would read; one that
    cannot be made torch would try to open for ever.

    Raises:
        UsageError: `init` names such a file.
    """
    if not init.startswith(_SCHEME):
        return
    path = Path(init.removeprefix(_SCHEME))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        path.unlink()
    except FileExistsError:
        raise UsageError(
            f"init: {init}: the file exists already, left by another run or in use by it; "
            f"remove it, or write init: file to get a fresh one"
        ) from None
    except OSError as error:
        if not path.parent.is_dir():
            raise UsageError(
                f"init: {init}: there is no such folder; make it, or write init: file to do without"
            ) from None
        raise UsageError(
            f"init: {init}: the file cannot be made ({error.strerror}); name one in a folder that "
            f"you can write to, or write init: file to do without"
        ) from None


@contextlib.contextmanager
def fresh_rendezvous(run: RunDir, spec: RunSpec) -> Iterator[None]:
    """Launch without rendezvous files of an earlier session of this run, and leave none."""
    shutil.rmtree(run.rendezvous, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(run.rendezvous, ignore_errors=True)
        if spec.init.startswith(_SCHEME):
            with contextlib.suppress(OSError):
                Path(spec.init.removeprefix(_SCHEME)).unlink(missing_ok=True)


# What a script's text says it will need; loaded once for all workers.
_PRELOADS = {
    r"DistributedDataParallel|torch\.optim|optim\.|lightning|accelerate": "torch._dynamo",
    r"pytorch_lightning": "pytorch_lightning",
    r"accelerate": "accelerate",
}


def find_module(name: str) -> Path:
    """Find the file of the module to launch, in this folder and the path, without running it.

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
    """Guess from a script's text which modules the workers of its launch will load.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the script {path}: {error.strerror}") from None
    return [module for pattern, module in _PRELOADS.items() if re.search(pattern, text)]
