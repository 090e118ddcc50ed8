"""The inventory: a cluster's nodes as Ansible wants to hear of them.

    all ── drumline ──┬── leader     worker0
                      └── workers    worker1, worker2, …

`drumline inventory --list` prints it as a dynamic inventory, so that any playbook can be run on the
cluster. Hosts have the names that the cluster's SSH configuration knows; that file says the rest
(address, port, user, key, pinned host key), and Ansible's ssh is told to read it and no other.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.cluster.machine import Machine
from drumline.core.errors import UsageError


def inventory_list(
    machines: Sequence[Machine],
    ssh_config: Path,
    *,
    pythons: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the document that an inventory script prints for `--list`.

    Args:
        machines: all nodes, in node order.
        ssh_config: the cluster's SSH configuration; its hosts are called worker0, worker1, …
        pythons: the interpreter that runs Ansible's modules, by node name, where it is known.
    """
    leader, workers = machines[:1], machines[1:]
    return {
        "_meta": {
            "hostvars": {
                machine.name: {
                    **host_variables(machine),
                    "ansible_python_interpreter": (pythons or {}).get(machine.name, "auto_silent"),
                }
                for machine in machines
            }
        },
        "all": {"children": ["drumline"]},
        "drumline": {
            "children": ["leader", "workers"],
            "vars": {
                "ansible_ssh_common_args": f"-F {shlex.quote(str(ssh_config))}",
                "drumline_leader": leader[0].address if leader else "",
                "drumline_nodes": len(machines),
            },
        },
        "leader": {"hosts": [machine.name for machine in leader]},
        "workers": {"hosts": [machine.name for machine in workers]},
    }


def inventory_host(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what an inventory script prints for `--host NAME`.

    Raises:
        UsageError: there is no such node; names those that there are.
    """
    hosts: dict[str, dict[str, Any]] = document["_meta"]["hostvars"]
    if name not in hosts:
        raise UsageError(f"no node {name!r}; this cluster has {', '.join(hosts) or 'none'}")
    return hosts[name]


def host_variables(machine: Machine) -> dict[str, Any]:
    """Return what playbooks may want to know of a node."""
    return {
        "ansible_connection": "ssh",
        "ansible_remote_tmp": f"{machine.root}/.ansible",
        "drumline_root": machine.root,
        "drumline_node": machine.node,
        "drumline_address": machine.address,
    }


def static_inventory(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same in the form of an inventory file, which needs no script to be run."""
    hosts = document["_meta"]["hostvars"]

    def group(name: str) -> dict[str, Any]:
        found = document[name]
        return {
            "hosts": {host: hosts[host] for host in found.get("hosts", ())},
            "children": {child: group(child) for child in found.get("children", ())},
            "vars": found.get("vars", {}),
        }

    return {"all": group("all")}
