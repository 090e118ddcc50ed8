"""What a node's agent is told to do for a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import UsageError
from drumline.core.task import MODULE, PRELOAD, AgentTask
from drumline.launch.scripts import find_module, guess_preloads
from drumline.node.crew import variables_for
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
