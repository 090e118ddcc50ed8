"""What `pull` does, and prints: results from all nodes to this machine, and on to the storage."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Container
from functools import partial
from pathlib import Path

from rich.console import Console

from drumline.cli.cluster_display import NodeRows, print_note
from drumline.cluster.files.pull import Pulled, Puller
from drumline.cluster.files.storage import seen_here, upload_run
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.submit import status
from drumline.cluster.providers import Reporter
from drumline.cluster.spec import ClusterSpec, find_cluster
from drumline.cluster.ssh.fleet import Fleet, connected, run_on
from drumline.core.errors import ClusterError, HostError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.node.job import JOB_ID
from drumline.node.storage import shown_url


def pull_command(job: str | None, which: str | None, *, into: Path | None, watch: bool) -> None:
    """Run `drumline pull`: bring a job's results here."""
    spec, home = find_cluster(which)
    console = Console(stderr=True, highlight=False)
    with NodeRows(console, f"{home.name}: pull") as rows:
        work = partial(_pull, spec, home, rows.report, job=job, into=into, watch=watch)
        found = run_on(connected(spec, home, note=print_note), work)
    for job_id, (folder, pulled) in found.items():
        size = format_bytes(pulled.bytes)
        news = counted(pulled.files, "file")
        print(f"{job_id} ({_phase(pulled)}): {news} with news, {size}, in {folder}")
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
    work = (
        _pull_one(spec, home, fleet, report, each, into or home.results(each), watch)
        for each in wanted
    )
    return dict(zip(wanted, await asyncio.gather(*work), strict=True))


async def _pull_one(
    spec: ClusterSpec,
    home: ClusterHome,
    fleet: Fleet,
    report: Reporter,
    job_id: str,
    into: Path,
    watch: bool,
) -> tuple[Path, Pulled]:
    def tell(pulled: Pulled) -> None:
        files = counted(pulled.files, "file")
        report(job_id, f"{files}, {format_bytes(pulled.bytes)} ({_phase(pulled)})")

    report(job_id, f"to {into}")
    async with Puller(fleet.remotes, job_id, into) as puller:
        pulled = await (puller.watch(tell) if watch else puller.pull())
    tell(pulled)
    home.note_pulled(job_id, into)
    if spec.storage is not None and (into / "run").is_dir():
        stored = stored_by_nodes(into, nodes=len(fleet.remotes))
        store_run(spec.storage, job_id, into, report, stored=stored, ended=pulled.ended)
    return into, pulled


def store_run(
    url: str, job_id: str, folder: Path, report: Reporter, *, stored: bool, ended: bool
) -> None:
    """Copy a pulled job's run from here to the storage, unless its nodes have done so.

    Raises:
        ClusterError: the storage refuses, and the nodes have not stored it either.
    """
    try:
        if stored and seen_here(url, job_id):
            return
        report(job_id, f"to {shown_url(url)}")
        upload_run(folder / "run", url, job_id, ended=ended)
    except ClusterError as error:
        if not stored:
            raise
        report(job_id, f"the nodes have stored it, but from here: {error.message}")


def _phase(pulled: Pulled) -> str:
    return pulled.phase or "no word from its leader"


def _trusted(job_id: str) -> str:
    """Refuse an id that leads out of the folder for results: it comes from a node.

    Raises:
        HostError: the node is not to be trusted.
    """
    if not JOB_ID.fullmatch(job_id):
        raise HostError(f"a node tells of a job {job_id!r}, which no job is called; look at it")
    return job_id


def stored_by_nodes(folder: Path, *, nodes: int) -> bool:
    """Whether as many nodes say in a pulled job that they brought all of it to the storage."""
    notes = [folder / "storage.json", *folder.glob("nodes/*/storage.json")]
    try:
        told = [json.loads(note.read_text()) for note in notes]
    except (OSError, ValueError):
        return False
    return len(told) >= nodes and all(note["ended"] and not note["error"] for note in told)
