"""A job that trains by a spec: the spec, settled for the nodes that there really are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from drumline.core.errors import SpecError
from drumline.spec.load import dump_spec, validate_spec


@dataclass(frozen=True, kw_only=True)
class SettledSpec:
    """What all nodes of a job need of its spec."""

    text: str
    """the whole spec, as every node's run directory gets it"""
    timeout_s: float
    restarts: int


def settle_spec(text: str, *, nodes: int, workers: int) -> SettledSpec:
    """Set a spec's nodes and workers to the cluster's.

    Raises:
        SpecError: it does not fit them, or asks for what only simulated nodes have.
    """
    values = yaml.safe_load(text) or {}
    if not isinstance(values, dict):
        raise SpecError("the spec is no mapping; write key: value lines")
    _refuse_one_machine(values)
    spec = validate_spec({**values, "nodes": nodes, "workers": workers})
    return SettledSpec(text=dump_spec(spec), timeout_s=spec.timeout_s, restarts=spec.restarts)


def _refuse_one_machine(values: Mapping[str, Any]) -> None:
    """Refuse what needs all ranks on one machine."""
    link = values.get("link")
    given = {
        "slow_nodes": bool(values.get("slow_nodes")),
        "link": any(link.values()) if isinstance(link, dict) else bool(link),
    }
    for key in given:
        if given[key]:
            raise SpecError(
                f"{key} is about simulated nodes, but a cluster's nodes have the network and the "
                f"speed that they have; leave {key} out"
            )
    init, backend = values.get("init", "env"), values.get("backend", "auto")
    if init != "env":
        raise SpecError(
            f"init: {init}: ranks on a cluster's nodes share no folder, and meet at the leader by "
            f"themselves; leave init out"
        )
    if backend in ("mpi", "shm"):
        raise SpecError(
            f"backend: {backend} is for ranks on one machine; leave backend out, and the best one "
            f"is chosen"
        )
