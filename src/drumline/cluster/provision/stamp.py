"""The stamp of a node's environment: a hash of all that it is made of, and what that is.

It covers the packages, the user's requirements, and a user's playbook with files that this refers
to: by their location beside it (roles, group_vars, …), or by name (import_tasks, the source of a
copy, …). A name that a task computes as it runs cannot be known here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from drumline.cluster.providers import Machine
from drumline.cluster.spec import ClusterSpec, EnvironmentSpec
from drumline.core.errors import SpecError
from drumline.core.files import stays_inside

PLAYBOOKS = Path(__file__).parent / "playbooks"
MAKER = Path(__file__).parents[2] / "node" / "environment.py"
"""runs on the nodes, and makes what needs no download"""
_REFERENCE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[\s=]+(\S+)", re.MULTILINE)
NODE_PACKAGES = ("torch", "numpy", "pillow", "pydantic", "pyyaml", "safetensors", "packaging")
"""what the modules that run on nodes import; the command line needs more, which stays here"""
_STORAGE = {"s3": "s3fs>=2024.6", "gs": "gcsfs>=2024.6", "gcs": "gcsfs>=2024.6"}
_STORAGE |= dict.fromkeys(("abfs", "abfss", "az"), "adlfs>=2024.6")


@dataclass(frozen=True, kw_only=True)
class EnvironmentFiles:
    """The user's files, as they are now."""

    requirements: dict[str, str] = field(default_factory=dict)
    """each requirements file by its path relative to the first one's folder, which comes first"""
    playbook: Path | None = None


def read_environment_files(spec: EnvironmentSpec, folder: Path) -> EnvironmentFiles:
    """Read the files that provisioning needs: requirements and playbooks beside cluster.yaml."""
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


@dataclass(frozen=True, kw_only=True)
class NodePackage:
    """One package that a node needs."""

    name: str
    requirement: str
    """what works, such as numpy>=1.26"""
    version: str
    """what is installed here, and is installed there; "" where it is not installed here"""
    keep: bool
    """whether a version that works stays, though it is another: the one that fits the driver"""


def environment_dependencies(spec: ClusterSpec) -> list[NodePackage]:
    """Return the packages that provisioning installs for Drumline itself, and for the storage."""
    declared: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a checkout, not installed
        declared = importlib.metadata.requires("drumline") or []
    needed = [
        text for text in declared if ";" not in text and Requirement(text).name in NODE_PACKAGES
    ]
    scheme = (spec.storage or "").partition("://")[0]
    if scheme in _STORAGE:
        needed.append(_STORAGE[scheme])
    found = []
    for text in needed:
        name, version = canonicalize_name(Requirement(text).name), ""
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = Version(importlib.metadata.version(name)).public  # without +cpu, +cu128
        keep, wanted = name == "torch", str(Requirement(text))
        found.append(NodePackage(name=name, requirement=wanted, version=version, keep=keep))
    return found


def environment_hash(spec: ClusterSpec, files: EnvironmentFiles) -> str:
    """Hash all that provisioning makes the nodes' environment from."""
    content = {
        **describe_environment(spec, files),
        "maker": MAKER.read_text(),
        "playbook": (PLAYBOOKS / "environment.yml").read_text(),
        "yours": playbook_digests(files.playbook) if files.playbook else {},
    }
    return _digest(content)


def describe_environment(spec: ClusterSpec, files: EnvironmentFiles) -> dict[str, object]:
    """Describe the environment that provisioning makes, as `node/environment.py` reads it."""
    return {
        "python": spec.environment.python,
        "dependencies": [asdict(package) for package in environment_dependencies(spec)],
        "requirements": files.requirements,
    }


def node_stamp(environment: str, machine: Machine, machines: Sequence[Machine]) -> str:
    """Hash what a node is provisioned with: the environment of all, and its place among them."""
    place = [machine.node, machine.address, machine.root, machines[0].address, len(machines)]
    return _digest([environment, place])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_BY_PLACE = ("roles", "group_vars", "host_vars", "library", "module_utils", "collections")
_LOOKED_IN = ("", "files", "tasks", "templates", "vars")
"""folders in which Ansible looks for a name, beside the playbook and the file that names it"""


def playbook_digests(playbook: Path) -> dict[str, str]:
    """Return the digests of all files of an Ansible playbook, by their paths from it."""
    found: dict[str, str] = {}
    base = playbook.parent
    _add(found, str(playbook), base)
    for folder in [*(base / name for name in _BY_PLACE), *base.glob("*_plugins")]:
        _add(found, str(folder), base)
    return {os.path.relpath(path, base): digest for path, digest in found.items()}


def _add(found: dict[str, str], path: str, base: Path) -> None:
    """Add a file and what it refers to, or all files of a folder."""
    if os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            for name in names:
                _add(found, os.path.join(folder, name), base)
        return
    path = os.path.normpath(path)
    if path in found or not os.path.isfile(path):
        return
    try:
        content = Path(path).read_bytes()
    except OSError:  # if it is needed, Ansible says so itself
        return
    found[path] = hashlib.sha256(content).hexdigest()
    if path.endswith((".yml", ".yaml")):
        for name in _names(content):
            for folder in dict.fromkeys((os.path.dirname(path), str(base))):
                for place in _LOOKED_IN:
                    other = os.path.join(folder, place, name)
                    # of folders only those below: a task's "." or "/etc" means another
                    if os.path.isfile(other) or ("/" in name and _is_below(other, base)):
                        _add(found, other, base)


def _names(content: bytes) -> Iterator[str]:
    """Give what may be names in a YAML file; what is not YAML, Ansible complains about itself."""
    try:
        for token in yaml.scan(content):
            if isinstance(token, yaml.ScalarToken):
                names = {token.value, *re.split(r"[\s=]+", token.value)}
                yield from (name for name in names if name and not os.path.isabs(name))
    except (yaml.YAMLError, UnicodeDecodeError):
        return


def _is_below(path: str, base: Path) -> bool:
    inside = os.path.relpath(path, base)
    return os.path.isdir(path) and inside != "." and not inside.startswith("..")
