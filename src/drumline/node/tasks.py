"""What a node's agent is told to do for a job: its task, its spec, how many ranks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.core.errors import SpecError, UsageError
from drumline.core.task import MODULE, PRELOAD, AgentTask
from drumline.launch.scripts import find_module, guess_preloads
from drumline.node.agent import variables_for
from drumline.node.job import Job, JobFolder


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the leader has settled for all nodes."""

    workers: int
    timeout_s: float
    restarts: int


def build_task(job: Job, folder: JobFolder, terms: Terms) -> AgentTask:
    """Build the task of a node's agent."""
    script = job.argv
    if script and script[0] != MODULE:
        script = (str(folder.work / script[0]), *script[1:])
    return AgentTask(
        run=str(folder.run.path),
        node=job.node,
        nodes=job.nodes,
        workers=terms.workers,
        restarts=terms.restarts,
        timeout_s=terms.timeout_s,
        script=script,
        folder=str(folder.work),
        variables=variables_for(job, terms.workers),
    )


def preloads_for(job: Job) -> tuple[str, ...]:
    """Name what the job's workers will load; called in its folder.

    Raises:
        UsageError: there is no such script or module.
    """
    if not job.argv:
        return PRELOAD
    if job.argv[0] == MODULE:
        if len(job.argv) < 2:
            raise UsageError("-m needs a module's name, as for python -m")
        return (*PRELOAD, *guess_preloads(find_module(job.argv[1])))
    if not Path(job.argv[0]).is_file():
        raise UsageError(
            f"there is no script {job.argv[0]} in the folder that was synced; give its path from "
            f"there, and see that .gitignore and .drumlineignore do not leave it out"
        )
    return (*PRELOAD, *guess_preloads(Path(job.argv[0])))


_WITHIN_S = 20.0  # a driver that has to wake takes some


def count_gpus() -> int:
    """Count this machine's NVIDIA GPUs, as nvidia-smi lists them."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return 0
    try:
        listed = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    if listed.returncode != 0:
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def default_workers() -> int:
    """Return how many ranks this node should have where nobody says."""
    return max(1, count_gpus())


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
    import yaml  # a script's job needs neither, and they take a while to load

    from drumline.spec.load import dump_spec, validate_spec

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
