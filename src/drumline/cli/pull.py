"""What `pull` does, and prints: results from all nodes to this machine, and on to the storage."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Container
from functools import partial
from pathlib import Path

from rich.console import Console

from drumline.cli.cluster_display import NodeRows, print_note
from drumline.cluster.files.pull import Pulled, Puller
from drumline.cluster.files.storage import store_run, stored_by_nodes
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.submit import status
from drumline.cluster.providers import Reporter
from drumline.cluster.spec import ClusterSpec, find_cluster
from drumline.cluster.ssh.fleet import Fleet, connected, run_on
from drumline.core.errors import ClusterError, HostError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.node.job import JOB_ID


def pull_command(job: str | None, which: str | None, *, into: Path | None, watch: bool) -> None:
    """Run `drumline pull`: bring a job's results here."""
    spec, home = find_cluster(which)
    console = Console(stderr=True, highlight=False)
    with NodeRows(console, f"{home.name}: pull") as rows:
        work = partial(_pull, spec, home, rows.report, job=job, into=into, watch=watch)
        found = run_on(connected(spec, home, note=print_note), work)
    for job_id, (folder, pulled) in found.items():
        news = f"{counted(pulled.files, 'file')} with news, {format_bytes(pulled.bytes)}"
        print(f"{job_id} ({_phase(pulled)}): {news}, in {folder}")
        for why in pulled.silent:
            print(f"  {why}", file=sys.stderr)


def pull_all(spec: ClusterSpec, home: ClusterHome, report: Reporter, among: Container[str]) -> None:
    """Pull all jobs' results from the nodes before `drumline down` removes these.

    Raises:
        ClusterError: not all of it is here.
    """
    work = partial(_pull, spec, home, report, must=False)
    found = run_on(connected(spec, home, among=among), work)
    if silent := [why for _, pulled in found.values() for why in pulled.silent]:
        raise ClusterError("; ".join(dict.fromkeys(silent)))


async def _pull(
    spec: ClusterSpec,
    home: ClusterHome,
    report: Reporter,
    fleet: Fleet,
    *,
    job: str | None = None,
    into: Path | None = None,
    watch: bool = False,
    must: bool = True,
) -> dict[str, tuple[Path, Pulled]]:
    jobs = [_trusted(str(each["id"])) for each in await status(fleet.remotes)]
    if job is not None and job not in jobs:
        known = f"there are {', '.join(jobs)}" if jobs else "there is none yet"
        raise UsageError(f"no job {job}; {known}")
    wanted = jobs if job is None else [job]
    if not wanted and must:
        raise UsageError("there is no job yet; start one with: drumline submit -- train.py")
    if into is not None and len(wanted) > 1:
        raise UsageError(f"--into is for one job; name one of {', '.join(wanted)}")

    async def pull_one(job_id: str) -> tuple[Path, Pulled]:
        folder = into or home.results(job_id)

        def tell(pulled: Pulled) -> None:
            files = counted(pulled.files, "file")
            report(job_id, f"{files}, {format_bytes(pulled.bytes)} ({_phase(pulled)})")

        report(job_id, f"to {folder}")
        async with Puller(fleet.remotes, job_id, folder) as puller:
            pulled = await (puller.watch(tell) if watch else puller.pull())
        tell(pulled)
        home.note_pulled(job_id, folder)
        if spec.storage is not None and (folder / "run").is_dir():
            stored = stored_by_nodes(folder, nodes=len(fleet.remotes))
            store_run(spec.storage, job_id, folder, report, stored=stored, ended=pulled.ended)
        return folder, pulled

    return dict(zip(wanted, await asyncio.gather(*map(pull_one, wanted)), strict=True))


def _phase(pulled: Pulled) -> str:
    return pulled.phase or "no word from its leader"


def _trusted(job_id: str) -> str:
    """Refuse an id that leads out of the folder for results: it comes from a node."""
    if not JOB_ID.fullmatch(job_id):
        raise HostError(f"a node tells of a job {job_id!r}, which no job is called; look at it")
    return job_id
