"""What the nodes' environment is made of, and a hash of all of it.

The hash is noted on each node when its environment stands (R/env/stamp). Where it is the same as
what would be made now, there is nothing to do, and Ansible is not even started.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from drumline.cluster.machine import Machine
from drumline.cluster.playbook_files import playbook_digests
from drumline.cluster.spec import ClusterSpec, EnvironmentSpec
from drumline.core.errors import SpecError
from drumline.core.inside import stays_inside

PLAYBOOKS = Path(__file__).parent / "playbooks"
MAKER = Path(__file__).parents[1] / "node" / "environment.py"
"""runs on the nodes, and makes what needs no download"""
_REFERENCE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[\s=]+(\S+)", re.MULTILINE)
_PACKAGES = {"s3": "s3fs>=2024.6", "gs": "gcsfs>=2024.6", "gcs": "gcsfs>=2024.6"}
_PACKAGES |= dict.fromkeys(("abfs", "abfss", "az"), "adlfs>=2024.6")


@dataclass(frozen=True, kw_only=True)
class EnvironmentFiles:
    """The user's files, as they are now."""

    requirements: dict[str, str] = field(default_factory=dict)
    """each requirements file by its path relative to the first one's folder, which comes first"""
    playbook: Path | None = None

    @property
    def first(self) -> str:
        """The file to install from; "" where there is none."""
        return next(iter(self.requirements), "")


def read_environment_files(spec: EnvironmentSpec, folder: Path) -> EnvironmentFiles:
    """Read the files that a spec names, which lie beside cluster.yaml.

    Raises:
        SpecError: one is not there, or lies outside; says which.
    """
    requirements: dict[str, str] = {}
    if spec.requirements is not None:
        first = folder / Path(spec.requirements).expanduser()
        _add_requirements(requirements, first.parent, first.name, "environment.requirements")
    playbook = None
    if spec.playbook is not None:
        playbook = (folder / Path(spec.playbook).expanduser()).absolute()
        _read(playbook, "environment.playbook")
    return EnvironmentFiles(requirements=requirements, playbook=playbook)


def _add_requirements(found: dict[str, str], folder: Path, name: str, named_by: str) -> None:
    """Add a file, and those that it refers to."""
    if name in found:
        return
    found[name] = _read(folder / name, named_by)
    for reference in _REFERENCE.findall(found[name]):
        if "://" in reference:
            continue
        other = str(PurePosixPath(name).parent / reference)
        if not stays_inside(other):
            raise SpecError(
                f"{folder / name} refers to {reference}, which is outside its folder and does not "
                f"travel to the nodes; put it beside {name}"
            )
        _add_requirements(found, folder, other, str(folder / name))


def _read(path: Path, named_by: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(
            f"{named_by} names {path}, which cannot be read: {why}; give a file that is there"
        ) from None


def environment_dependencies(spec: ClusterSpec) -> list[str]:
    """Return what the nodes need for Drumline itself, and for the storage."""
    try:
        words = importlib.metadata.requires("drumline") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that nobody installed
        words = []
    needed = [word for word in words if ";" not in word]
    scheme = (spec.storage or "").partition("://")[0]
    return [*needed, *([_PACKAGES[scheme]] if scheme in _PACKAGES else [])]


def environment_hash(spec: ClusterSpec, files: EnvironmentFiles) -> str:
    """Hash everything that the environment of all nodes is made from."""
    content = {
        "python": spec.environment.python,
        "dependencies": environment_dependencies(spec),
        "requirements": files.requirements,
        "maker": MAKER.read_text(),
        "playbook": (PLAYBOOKS / "environment.yml").read_text(),
        "yours": playbook_digests(files.playbook) if files.playbook else {},
    }
    return _digest(content)


def node_stamp(environment: str, machine: Machine, machines: Sequence[Machine]) -> str:
    """Hash what one node's environment is made from: that of all, and its place among them."""
    place = [machine.node, machine.address, machine.root, machines[0].address, len(machines)]
    return _digest([environment, place])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
