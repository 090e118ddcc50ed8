"""`drumline compose`: nodes as containers."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from drumline.cli.train import split_args
from drumline.core.errors import DrumlineError, UsageError
from drumline.core.formatting import listed
from drumline.launch.compose import ComposePlan, compose_text, dockerfile_text
from drumline.spec.load import load_spec

_MAX_NODES = 99


def compose_command(
    args: list[str],
    *,
    nodes: int,
    cpus: float | None,
    gpu: bool,
    port: int,
    out: Path,
    force: bool,
) -> None:
    """Write compose.yaml and Dockerfile, after a look at the arguments."""
    if not 1 <= nodes <= _MAX_NODES:
        raise UsageError(f"-n {nodes}: give 1 to {_MAX_NODES} nodes, such as -n 4")
    if cpus is not None and cpus <= 0:
        raise UsageError(f"--cpus {cpus:g}: must be more than 0, such as --cpus 1.5")
    if port not in range(1, 1 << 16):
        raise UsageError(f"--port {port}: give a port from 1 to 65535, such as --port 29500")
    _check_args(args, nodes, out)
    plan = ComposePlan(nodes=nodes, options=tuple(args), cpus=cpus, gpu=gpu, port=port)
    files = {
        out / "compose.yaml": compose_text(plan),
        out / "Dockerfile": dockerfile_text(),
    }
    _write(files, force=force)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"wrote {listed(files)}", markup=False)
    folder = shlex.quote(str(out))
    console.print(
        f"start the nodes with: docker compose --project-directory {folder} up", markup=False
    )


def _check_args(args: list[str], nodes: int, out: Path) -> None:
    """Refuse now what would fail in every container."""
    file, overrides, resume = split_args(args)
    for arg in overrides:
        if arg.partition("=")[0] in ("nodes", "workers"):
            raise UsageError(f"{arg}: here each node is a container with one rank; use -n instead")
    if resume is not None:
        return
    spec = load_spec(None if file is None else out / file, overrides, ranks=nodes)
    if spec.backend == "mpi":
        raise UsageError(
            "backend: mpi joins ranks that one mpirun has started, but containers start theirs one "
            "by one; leave backend out, or set backend=gloo"
        )
    if spec.backend == "shm" and nodes > 1:
        raise UsageError(
            "backend: shm joins ranks that share memory, and containers do not; leave backend out, "
            "or set backend=gloo"
        )


def _write(files: dict[Path, str], *, force: bool) -> None:
    there = [str(path) for path in files if path.exists()]
    if there and not force:
        one = len(there) == 1
        raise UsageError(
            f"{listed(there)} {'exists' if one else 'exist'} already; write elsewhere with "
            f"-o DIR, or over {'it' if one else 'them'} with --force"
        )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise DrumlineError(
            f"cannot write {error.filename}: {error.strerror}; choose another folder with -o DIR"
        ) from None
