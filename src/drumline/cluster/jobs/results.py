"""Jobs' results on this machine: pulled from the nodes, noted, and copied on to the storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.cluster.files.pull import Pulled, Puller
from drumline.cluster.files.storage import store_run, stored_by_nodes
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.submit import status
from drumline.cluster.providers import Reporter
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.remote import Remote
from drumline.core.errors import HostError
from drumline.core.formatting import counted, format_bytes
from drumline.node.job import JOB_ID


@dataclass(frozen=True, kw_only=True)
class ResultsPuller:
    """Brings the results of a cluster's jobs here; `report` tells how far each has come."""

    spec: ClusterSpec
    home: ClusterHome
    remotes: Sequence[Remote]
    report: Reporter

    async def list_jobs(self) -> list[str]:
        """Return the ids of all jobs.

        Raises:
            HostError: one leads out of the folder for results; it comes from a node.
        """
        return [check_job_id(str(job["id"])) for job in await status(self.remotes)]

    async def pull(self, job_id: str, *, into: Path | None = None, watch: bool = False) -> Pulled:
        """Pull a job's files, or again and again until it ends (`watch`), and store its run."""
        folder = into or self.home.results(job_id)

        def tell(pulled: Pulled) -> None:
            files = counted(pulled.files, "file")
            self.report(job_id, f"{files}, {format_bytes(pulled.bytes)} ({pulled.state})")

        self.report(job_id, f"to {folder}")
        async with Puller(self.remotes, job_id, folder) as puller:
            pulled = await (puller.watch(tell) if watch else puller.pull())
        tell(pulled)
        self.home.note_pulled(job_id, folder)
        if self.spec.storage is not None and (folder / "run").is_dir():
            stored, ended = stored_by_nodes(folder, nodes=len(self.remotes)), pulled.ended
            store_run(self.spec.storage, job_id, folder, self.report, stored=stored, ended=ended)
        return pulled


def check_job_id(job_id: str) -> str:
    """Refuse a job's id that leads out of the folder for results: it comes from a node."""
    if not JOB_ID.fullmatch(job_id):
        raise HostError(f"a node tells of a job {job_id!r}, which no job is called; look at it")
    return job_id
