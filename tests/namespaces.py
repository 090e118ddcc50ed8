"""Simulated nodes in tests: whether they can be made here, and what goes on inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.core.errors import CommError
from drumline.launch.network import find_way


def need_namespaces() -> None:
    """Skip the test where nodes cannot be simulated."""
    try:
        find_way()
    except CommError as error:
        pytest.skip(error.message)


def network_namespaces() -> set[str]:
    """The network namespaces that processes of this machine are in, or hold open."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        for link in (entry / "ns" / "net", *_descriptors(entry)):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("net:["):
                found.add(target)
    return found


def _descriptors(entry: Path) -> list[Path]:
    try:
        return list((entry / "fd").iterdir())
    except OSError:
        return []


def network_of(run: Path) -> dict:
    """What the manifest says of the simulated network."""
    return json.loads((run / "manifest.json").read_text())["network"]


def in_hub(run: Path, *command: str) -> None:
    """Run a command where the hub's ends of all links are."""
    hub = str(network_of(run)["hub"])
    subprocess.run(["nsenter", "-t", hub, "--net", *command], check=True, timeout=10)


def unprivileged_prefix() -> list[str]:
    """What to put before a Python command, the interpreter included, to run it without rights.

    Root becomes nobody, if nobody can read an interpreter and this code; else it drops every
    capability but the one that lets root map itself.
    """
    if os.geteuid() != 0:
        return [sys.executable]
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    path = f"PYTHONPATH={':'.join(filter(None, sys.path))}"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}"):
        command = [*nobody, "env", path, python]
        tried = subprocess.run(
            [*command, "-c", "import torch, drumline.cli.train"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return command
    return ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", sys.executable]
