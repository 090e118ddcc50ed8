"""What a node's agent is told to do for a job: its task, and the terms that hold for all nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import SpecError, UsageError
from drumline.core.json_lines import Record
from drumline.core.nodes import NODES
from drumline.core.task import MODULE, PRELOAD, AgentTask
from drumline.launch.preflight import list_gpus
from drumline.launch.scripts import find_module, guess_preloads
from drumline.node.job import Job, JobFolder


@dataclass(frozen=True, kw_only=True)
class Terms(Record):
    """What the leader settles for all nodes of a job."""

    workers: int
    timeout_s: float
    restarts: int
    spec: str = ""
    """the whole spec, as every node's run directory gets it; "" for a script"""


def settle_terms(job: Job, workers: int) -> Terms:
    """Settle the terms of a job; its spec gets the nodes and workers of the cluster.

    Raises:
        SpecError: the spec does not fit them, or asks for what only simulated nodes have.
    """
    if not job.spec:
        return Terms(workers=workers, timeout_s=job.timeout_s, restarts=job.restarts)
    import yaml  # a script's job needs neither, and they take a while to load

    from drumline.spec.load import dump_spec, validate_spec

    values = yaml.safe_load(job.spec) or {}
    if not isinstance(values, dict):
        raise SpecError("the spec is no mapping; write key: value lines")
    link, slow_nodes = values.get("link"), values.get("slow_nodes")
    if isinstance(link, dict):
        link = any(link.values())
    for key, given in (("slow_nodes", slow_nodes), ("link", link)):
        if given:
            raise SpecError(
                f"{key} is about simulated nodes, but a cluster's nodes have the network and the "
                f"speed that they have; leave {key} out"
            )
    if (init := values.get("init", "env")) != "env":
        raise SpecError(
            f"init: {init}: ranks on a cluster's nodes share no folder, and meet at the leader by "
            f"themselves; leave init out"
        )
    if (backend := values.get("backend")) in ("mpi", "shm"):
        raise SpecError(
            f"backend: {backend} is for ranks on one machine; leave backend out, and the best one "
            f"is chosen"
        )
    spec = validate_spec({**values, "nodes": job.nodes, "workers": workers})
    return Terms(
        workers=workers, timeout_s=spec.timeout_s, restarts=spec.restarts, spec=dump_spec(spec)
    )


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


def variables_for(job: Job, workers: int) -> dict[str, str]:
    """Return what the ranks' environment has beyond the node's own."""
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    nodes = {NODES: ",".join(job.addresses)} if job.nodes > 1 else {}
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), **nodes}


def default_workers() -> int:
    """Return how many ranks a node has where nobody says: one for each GPU, or one."""
    return max(1, sum(line.startswith("GPU ") for line in list_gpus() or ()))
