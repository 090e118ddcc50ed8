"""The inventory, as Ansible itself reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.cluster.providers import Machine
from drumline.cluster.provision.playbook import inventory_host, inventory_list, static_inventory
from drumline.core.errors import UsageError

MACHINES = [
    Machine(node=node, host=f"203.0.113.{node}", address=f"10.0.0.{node}", user="me", root="/r")
    for node in range(3)
]
CONFIG = Path("/a folder/ssh/config")


def test_ansible_reads_both_forms_alike(tmp_path):
    document = inventory_list(MACHINES, CONFIG, pythons={"worker1": "/usr/bin/python3"})
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(document)}\nEND\n")
    script.chmod(0o755)
    (tmp_path / "file.json").write_text(json.dumps(static_inventory(document)))
    program = Path(sys.executable).parent / "ansible-inventory"
    variables = {"ANSIBLE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    read = [
        json.loads(
            subprocess.run(
                [program, "-i", tmp_path / name, "--list"],
                capture_output=True,
                env=variables,
                check=True,
                timeout=60,
            ).stdout
        )
        for name in ("script", "file.json")
    ]
    assert read[0] == read[1]
    assert read[0]["leader"]["hosts"] == ["worker0"]
    assert read[0]["workers"]["hosts"] == ["worker1", "worker2"]
    one = read[0]["_meta"]["hostvars"]["worker1"]
    assert one["ansible_ssh_common_args"] == "-F '/a folder/ssh/config'"
    assert one["drumline_address"] == "10.0.0.1"
    assert one["drumline_leader"] == "10.0.0.0"
    assert one["ansible_python_interpreter"] == "/usr/bin/python3"


def test_one_host():
    document = inventory_list(MACHINES, CONFIG)
    assert inventory_host(document, "worker2")["drumline_node"] == 2
    with pytest.raises(UsageError, match="no node 'w'; this cluster has worker0, worker1, worker2"):
        inventory_host(document, "w")
    assert inventory_list([], CONFIG)["leader"] == {"hosts": []}
