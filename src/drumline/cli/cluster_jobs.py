"""What `status`, `logs` and `cancel` do, and print."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from drumline.cli.cluster_connection import connected
from drumline.cli.cluster_life import describe_limits, machine_table
from drumline.cli.printing import print_json
from drumline.cluster.choice import FILE, find_cluster, read_cluster
from drumline.cluster.following import Following, Line
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs import cancel, newest, status
from drumline.cluster.receipt import bill
from drumline.cluster.up import read_machines
from drumline.core.errors import DrumlineError, HostError, UsageError
from drumline.core.units import format_seconds
from drumline.node.job import JobState


def status_command(which: str | None, *, as_json: bool) -> None:
    """Show nodes, costs and jobs."""
    spec, home = find_cluster(which)
    machines = read_machines(home)
    deadline = home.read_facts().get("deadline")
    jobs, trouble = asyncio.run(_ask(home))
    cost = sum(line.usd for line in bill(machines, time.time(), deadline))
    if as_json:
        nodes = [machine.to_json() for machine in machines]
        facts = {"cluster": spec.name, "provider": spec.provider, "nodes": nodes}
        print_json({**facts, "deadline": deadline, "usd": cost, "jobs": jobs, "trouble": trouble})
        return
    console = Console(highlight=False)
    console.print(machine_table(machines))
    price = sum(machine.price_usd for machine in machines)
    so_far = f"; {cost:.2f} USD so far" if price else ""
    console.print(f"{describe_limits(spec, deadline, price)}{so_far}", soft_wrap=True)
    if trouble is not None:
        console.print(trouble, soft_wrap=True, markup=False)
    elif not jobs:
        console.print("no job yet: drumline submit -- train.py")
    else:
        console.print(_job_table(jobs))


async def _ask(home: ClusterHome) -> tuple[list[dict[str, Any]], str | None]:
    try:
        async with connected(home, some=True) as fleet:
            return await status(fleet.remotes), None
    except HostError as error:
        return [], error.message


def logs_command(job: str | None, which: str | None, *, follow: bool, rank: int | None) -> None:
    """Print a job's output."""
    try:
        _, home = find_cluster(which)
    except UsageError:
        if not FILE.exists() and which is None:
            raise
        home = ClusterHome.of(which or read_cluster(None).name)
        _print_pulled(home, job, rank)
        return
    try:
        code = asyncio.run(_logs(home, job, follow=follow, rank=rank))
    except HostError as error:
        if follow or not list(home.jobs.glob("*/pulled")):
            raise
        say(f"{error.message}; this is what was pulled")
        _print_pulled(home, job, rank)
        return
    if code:
        sys.exit(code)


async def _logs(home: ClusterHome, job: str | None, *, follow: bool, rank: int | None) -> int:
    async with connected(home, some=True) as fleet:
        job_id = job or await newest(fleet.remotes)
        following = Following(job_id, Printer())
        state = await following.run(fleet.remotes, rank=rank, once=not follow)
    if follow:
        return tell_end(job_id, state)
    return 0


def cancel_command(job: str | None, which: str | None) -> None:
    """End a job."""
    _, home = find_cluster(which)

    async def end() -> tuple[str, JobState]:
        async with connected(home, some=True) as fleet:
            job_id = job or await newest(fleet.remotes)
            return job_id, await cancel(fleet.remotes, job_id)

    job_id, state = asyncio.run(end())
    print(f"{job_id} is {state.phase}")


def say(line: str) -> None:
    """Tell a person something that is not a job's output."""
    print(line, file=sys.stderr, flush=True)


class Printer:
    """Prints what ranks print, with the rank in front."""

    def __call__(self, line: Line) -> None:
        """Print one."""
        print(f"{line.prefix} {line.text}", flush=True)


def tell_end(job_id: str, state: JobState) -> int:
    """Say how a job ended; returns the exit code to pass on."""
    took = ""
    if state.started is not None and state.ended is not None:
        took = f" after {format_seconds(state.ended - state.started)}"
    say(f"{job_id} is {state.phase}{took}")
    if state.phase == "done":
        return 0
    if state.error:
        raise _JobError(state.error, code=state.code or 1)
    return state.code or 1


class _JobError(DrumlineError):
    """A job that failed, with its own exit code."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]


def _job_table(jobs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("job", "state", "code", "took", "what"):
        table.add_column(name, overflow="fold")
    for job in jobs:
        state = JobState(**job["state"])
        took = ""
        if state.started is not None:
            took = format_seconds((state.ended or time.time()) - state.started)
        code = "" if state.code is None else str(state.code)
        table.add_row(str(job["id"]), state.phase, code, took, str(job["title"]))
    return table


def _print_pulled(home: ClusterHome, job: str | None, rank: int | None) -> None:
    """Print what `pull` has kept of a job whose nodes are gone."""
    kept = {path.parent.name: Path(path.read_text()) for path in home.jobs.glob("*/pulled")}
    kept = {name: folder for name, folder in kept.items() if (folder / "run" / "logs").is_dir()}
    if job is None and kept:
        job = max(kept, key=lambda name: kept[name].stat().st_mtime)
    if job not in kept:
        known = f"kept are {', '.join(sorted(kept))}" if kept else "and no job was pulled from it"
        raise UsageError(f"the cluster {home.name} is not up, {known}")
    pattern = "rank-*.log" if rank is None else f"rank-{rank}.log"
    for log in sorted((kept[job] / "run" / "logs").glob(pattern)):
        number = log.stem.partition("-")[2]
        for line in log.read_text(errors="replace").splitlines():
            print(f"[{number}] {line}")
