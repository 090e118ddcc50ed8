"""Simulated nodes in tests: whether they can be made here, and what goes on inside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from drumline.core.errors import CommError
from drumline.launcher.network import find_namespace_method


def need_namespaces() -> None:
    """Skip the test where nodes cannot be simulated."""
    try:
        find_namespace_method()
    except CommError as error:
        pytest.skip(error.message)


SESSION = "DRUMLINE_TEST_SESSION"
"""the variable that all processes of these tests have, with a value of their own"""


def network_namespaces() -> set[str]:
    """The network namespaces that processes of this machine are in, or hold open."""
    return _namespaces(Path("/proc").glob("[0-9]*"))


def own_namespaces() -> set[str]:
    """Those of this process and of what it has started; other tests may run beside these."""
    return _namespaces([Path("/proc/self"), *own_processes()])


def own_processes() -> list[Path]:
    """The folders in /proc of the processes that these tests have started."""
    mark = f"{SESSION}={os.environ[SESSION]}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry)
    return found


def _namespaces(entries: Iterable[Path]) -> set[str]:
    found = set()
    for entry in entries:
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
