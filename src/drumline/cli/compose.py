"""`drumline compose`: a Docker Compose file with one container per rank, as nodes.

    services:
      node01:  drumline train --rank 0 --world-size 4 --master node01:29500 …
      node02:  drumline train --rank 1 --world-size 4 --master node01:29500 …
      …

Compose gives each service its name as an address, so `node01` is where rank 0 listens. All
containers see the working folder, which holds the run directory, and this package, read-only: they
run the code that wrote the file, on the versions that are installed here.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import yaml
from jinja2 import Environment
from packaging.requirements import Requirement
from rich.console import Console

from drumline.cli.app import print_text
from drumline.cli.commands.show import ContainerOptions
from drumline.cli.train import split_args
from drumline.core.errors import DrumlineError, UsageError
from drumline.core.formatting import listed
from drumline.spec.load import load_spec

_MAX_NODES = 99
IMAGE = "drumline-node"
_PACKAGE = Path(__file__).parents[1]
_SOURCE = "DRUMLINE_SOURCE"
_DOCKERFILE = Path(__file__).with_name("Dockerfile.jinja")
_COMPOSE_HEAD = """\
# {nodes} nodes, written by drumline compose. Start them with: docker compose up
# The run directory appears in ./runs; docker compose down removes the containers.
# Where drumline is installed elsewhere, set {source} to its folder:
#   python -c "import drumline; print(*drumline.__path__)"
"""


def compose_command(args: list[str], plan: ContainerOptions, *, out: Path, force: bool) -> None:
    """Run `drumline compose`: write compose.yaml and Dockerfile, once the arguments are checked."""
    if not 1 <= plan.nodes <= _MAX_NODES:
        raise UsageError(f"-n {plan.nodes}: give 1 to {_MAX_NODES} nodes, such as -n 4")
    if plan.cpus is not None and not 0 < plan.cpus < math.inf:
        raise UsageError(f"--cpus {plan.cpus:g}: must be more than 0, such as --cpus 1.5")
    if plan.port not in range(1, 1 << 16):
        raise UsageError(f"--port {plan.port}: give a port from 1 to 65535, such as --port 29500")
    _check_args(args, plan.nodes, out)
    source = f"${{{_SOURCE}:-{_escape(_relative_path(_PACKAGE, out))}}}"
    services = {_name_node(rank): _service(args, plan, rank, source) for rank in range(plan.nodes)}
    compose = _COMPOSE_HEAD.format(nodes=plan.nodes, source=_SOURCE)
    compose += yaml.safe_dump({"services": services}, sort_keys=False)
    files = {out / "compose.yaml": compose, out / "Dockerfile": _dockerfile_text()}
    _write(files, force=force)
    print_text(Console(), f"wrote {listed(files)}")
    folder = shlex.quote(str(out))
    print_text(Console(), f"start the nodes with: docker compose --project-directory {folder} up")


def _check_args(args: list[str], nodes: int, out: Path) -> None:
    """Refuse now what would fail in every container."""
    given = split_args(args)
    for arg in given.overrides:
        if arg.partition("=")[0] in ("nodes", "workers"):
            raise UsageError(f"{arg}: here each node is a container with one rank; use -n instead")
    if given.resume is not None:
        return
    file = None if given.file is None else out / given.file
    spec = load_spec(file, given.overrides, ranks=nodes)
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


def _dockerfile_text() -> str:
    """Write the Dockerfile of the image that all nodes share, with what is installed here.

    That is what the package asks for, extras left out; torch comes first.
    """
    lines = [line for line in requires("drumline") or () if ";" not in line]
    names = sorted((Requirement(line).name for line in lines), key=lambda name: name != "torch")
    torch, *others = map(_pinned, names)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    template = Environment(keep_trailing_newline=True).from_string(_DOCKERFILE.read_text())
    return template.render(python=python, torch=torch, others=" ".join(others))


def _name_node(rank: int) -> str:
    """Name the service of a rank: node01 is rank 0's."""
    return f"node{rank + 1:02d}"


def _relative_path(path: Path, folder: Path) -> str:
    """Return where a folder is, seen from another one, as Compose tells paths from names."""
    return f"./{os.path.relpath(path.resolve(), folder.resolve())}"


def _service(args: list[str], plan: ContainerOptions, rank: int, source: str) -> dict[str, object]:
    # a container sees all cores, whatever its limit: say how many threads make sense
    threads = () if plan.cpus is None else (f"threads={max(1, int(plan.cpus))}",)
    given = map(_escape, (*threads, *args))
    master = f"{_name_node(0)}:{plan.port}"
    options = ("--rank", rank, "--world-size", plan.nodes, "--master", master)
    service: dict[str, object] = {
        "build": ".",
        "image": IMAGE,
        "hostname": _name_node(rank),
        "user": f"{os.getuid()}:{os.getgid()}",  # files in ./runs belong to who wrote this
        "volumes": [".:/workspace", f"{source}:/opt/drumline/drumline:ro"],
        "working_dir": "/workspace",
        "command": ["python", "-m", "drumline", "train", *map(str, options), *given],
    }
    if rank > 0:
        service["depends_on"] = [_name_node(0)]
    resources: dict[str, object] = {}
    if plan.cpus is not None:
        resources["limits"] = {"cpus": f"{plan.cpus:g}"}
    if plan.gpu:
        device = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    if resources:
        service["deploy"] = {"resources": resources}
    return service


def _escape(text: str) -> str:
    return text.replace("$", "$$")  # Compose fills in $NAME


def _pinned(package: str) -> str:
    try:
        return f"{package}=={version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return package
