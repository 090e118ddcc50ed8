"""What `status`, `logs`, `cancel`, `pull`, `ssh`, `jupyter` and `tensorboard` do and print."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
import webbrowser
from collections.abc import Container
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from drumline.cli.app import print_json
from drumline.cli.cluster import describe_limits
from drumline.cli.cluster_display import (
    NodeRows,
    Printer,
    print_end,
    print_machines,
    print_note,
    refuse_rank,
)
from drumline.cluster.files.pull import Pulled
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs import services
from drumline.cluster.jobs.follow import JobFollower, follow_to_end
from drumline.cluster.jobs.submit import (
    ResultsPuller,
    StateNotice,
    cancel,
    newest_job,
    status,
    submit,
)
from drumline.cluster.life.limits import GONE, cluster_gone
from drumline.cluster.life.receipt import bill
from drumline.cluster.providers import Reporter
from drumline.cluster.provision.provision import Provisioner
from drumline.cluster.spec import FILE, ClusterSpec, find_cluster, read_cluster
from drumline.cluster.ssh.fleet import Fleet, connected, no_nodes, reachable, refuse_silent, run_on
from drumline.core.errors import ClusterError, HostError, UsageError
from drumline.core.formatting import counted, format_bytes, format_seconds, listed
from drumline.core.json_lines import Message
from drumline.node.job import JobState

_NARROW = 60


def status_command(which: str | None, *, as_json: bool) -> None:
    """Run `drumline status`: show the cluster's nodes, costs and jobs."""
    spec, home = find_cluster(which)
    facts = home.read_facts()
    machines, deadline = facts.machines, facts.deadline
    if not machines:
        raise no_nodes(home)
    jobs, lost = run_on(reachable(spec, home, machines), _ask)
    states = {machine.node: "alive" for machine in machines}
    for error in lost:
        gone = error.fields.get("reason") == GONE
        states[error.fields["node"]] = GONE if gone else "silent"
    over = set(states.values()) == {GONE}
    troubles = [cluster_gone(home).message] if over else [error.message for error in lost]
    cost = sum(line.usd for line in bill([*facts.former, *machines], time.time(), deadline))
    if as_json:
        nodes = [{**machine.to_json(), "state": states[machine.node]} for machine in machines]
        made = {"cluster": spec.name, "provider": spec.provider, "nodes": nodes}
        trouble = "; ".join(troubles) or None
        print_json({**made, "deadline": deadline, "usd": cost, "jobs": jobs, "trouble": trouble})
        return
    console = Console(highlight=False)
    print_machines(console, machines, states)
    price = sum(machine.price_usd for machine in machines)
    so_far = f"; {cost:.2f} USD so far" if price else ""
    if not over:
        console.print(f"{describe_limits(spec, deadline, price)}{so_far}", soft_wrap=True)
    for trouble in troubles:
        console.print(trouble, soft_wrap=True, markup=False)
    if jobs:
        console.print(_job_table(jobs, narrow=console.width < _NARROW))
    elif "alive" in states.values():
        console.print("no job yet: drumline submit -- train.py")
    elif kept := _kept_jobs(home):
        console.print(f"logs that were pulled: drumline logs {' | '.join(kept)}", soft_wrap=True)


async def _ask(nodes: tuple[Fleet, list[HostError]]) -> tuple[list[Message], list[HostError]]:
    """Return the jobs, and why nodes do not tell of any."""
    fleet, lost = nodes
    for remote in fleet.remotes:  # the first that answers knows them all
        try:
            return await status([remote]), lost
        except HostError as error:
            lost.append(error)
    return [], lost


def logs_command(job: str | None, which: str | None, *, follow: bool, rank: int | None) -> None:
    """Run `drumline logs`: print a job's output."""
    printer = Printer()

    async def print_logs(fleet: Fleet) -> int:
        job_id = job or await newest_job(fleet.remotes)
        if rank is not None:
            for each in await status(fleet.remotes):
                workers = each["state"]["workers"] or each["workers"]
                if each["id"] == job_id and workers is not None:  # else it is not known yet
                    refuse_rank(job_id, rank, range(len(each["addresses"]) * int(workers)))
        follower = JobFollower(job_id, printer, changed=StateNotice(print_note), rank=rank)
        if not follow:
            await follower.run(fleet.remotes, once=True)
            return 0
        return print_end(job_id, await follow_to_end(spec, home, fleet, follower, print_note))

    try:
        spec, home = find_cluster(which)
    except UsageError:
        if not FILE.exists() and which is None:
            raise
        home = ClusterHome.of(which or read_cluster(None).name)
        code = _print_kept(home, job, follow=follow, rank=rank)
    else:
        try:
            code = run_on(connected(spec, home, note=print_note), print_logs)
        except HostError as error:
            kept = _kept_jobs(home)
            if printer.lines or not kept or job not in (None, *kept):
                raise
            job = job or next(reversed(kept))
            print_note(f"{error.message}; this is what was pulled of {job}")
            code = _print_kept(home, job, follow=follow, rank=rank)
    if code:
        sys.exit(code)


def cancel_command(job: str | None, which: str | None) -> None:
    """Run `drumline cancel`: end a job."""
    spec, home = find_cluster(which)

    async def end(fleet: Fleet) -> tuple[str, JobState]:
        job_id = job or await newest_job(fleet.remotes)
        return job_id, await cancel(fleet.remotes, job_id)

    job_id, state = run_on(connected(spec, home, note=print_note), end)
    early = "" if state.phase == "cancelled" else ": it has ended by itself"
    print(f"{job_id} is {state.phase}{early}")


def _job_table(jobs: list[Message], *, narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("job", "state", "code", "took", *(() if narrow else ("what",))):
        table.add_column(name, overflow="fold", no_wrap=name != "what")
    for job in jobs:
        state = JobState.from_json(job["state"])
        seconds = (state.ended or time.time()) - (state.started or 0.0)
        took = "" if state.started is None else format_seconds(seconds)
        code = "" if state.code is None else str(state.code)
        title = () if narrow else (str(job["title"]),)
        phase = "hangs" if state.hang else state.phase
        table.add_row(str(job["id"]), phase, code, took, *title)
    return table


def _kept_jobs(home: ClusterHome) -> dict[str, Path]:
    """Return the jobs whose logs are here, and in which folder, the newest last."""
    logs = {job: folder / "run" / "logs" for job, folder in home.pulled().items()}
    kept = [(job, folder) for job, folder in logs.items() if folder.is_dir()]
    return dict(sorted(kept, key=lambda item: item[1].stat().st_mtime))


def _print_kept(home: ClusterHome, job: str | None, *, follow: bool, rank: int | None) -> int:
    """Print what was pulled of a job; returns the exit code: the job's own where it is followed."""
    kept = _kept_jobs(home)
    if job is None:
        job = next(reversed(kept), None)
    if job not in kept:
        known = f"kept are {', '.join(sorted(kept))}" if kept else "and no job was pulled from it"
        raise UsageError(f"the cluster {home.name} is not up, {known}; drumline up makes it")
    logs = {int(path.stem.partition("-")[2]): path for path in kept[job].glob("rank-*.log")}
    refuse_rank(job, rank, logs)
    for number, log in sorted(logs.items()):
        if rank in (None, number):
            for line in log.read_text(errors="replace").splitlines():
                print(f"[{number}] {line}")
    if not follow:
        return 0
    try:
        state = JobState.from_json(json.loads((kept[job].parents[1] / "state.json").read_text()))
    except (OSError, ValueError):
        state = JobState()
    if not state.over:
        raise ClusterError(
            f"{job} was {state.phase} when it was pulled last; the nodes are gone, and nobody "
            f"knows how it ended"
        )
    return print_end(job, state)


def pull_command(job: str | None, which: str | None, *, into: Path | None, watch: bool) -> None:
    """Run `drumline pull`: bring a job's results here."""
    spec, home = find_cluster(which)
    console = Console(stderr=True, highlight=False)
    with NodeRows(console, f"{home.name}: pull") as rows:

        async def pull(fleet: Fleet) -> dict[str, Pulled]:
            puller = ResultsPuller(spec=spec, home=home, remotes=fleet.remotes, report=rows.report)
            wanted = _choose(await puller.list_jobs(), job)
            if into is not None and len(wanted) > 1:
                raise UsageError(f"--into is for one job; name one of {', '.join(wanted)}")
            pulls = (puller.pull(job_id, into=into, watch=watch) for job_id in wanted)
            return dict(zip(wanted, await asyncio.gather(*pulls), strict=True))

        found = run_on(connected(spec, home, note=print_note), pull)
    for job_id, pulled in found.items():
        news = f"{counted(pulled.files, 'file')} that changed, {format_bytes(pulled.bytes)}"
        print(f"{job_id} ({pulled.state}): {news}, in {into or home.results(job_id)}")
        for why in pulled.silent:
            print(f"  {why}", file=sys.stderr)


def _choose(jobs: list[str], job: str | None) -> list[str]:
    """Return the job that was named, or all of them where none was."""
    if job is not None and job not in jobs:
        known = f"there are {', '.join(jobs)}" if jobs else "there is none yet"
        raise UsageError(f"no job {job}; {known}")
    if not jobs:
        raise UsageError("there is no job yet; start one with: drumline submit -- train.py")
    return jobs if job is None else [job]


def pull_all(spec: ClusterSpec, home: ClusterHome, report: Reporter, among: Container[str]) -> None:
    """Pull all jobs' results from the nodes before `drumline down` removes these, or raise."""

    async def pull(fleet: Fleet) -> list[Pulled]:
        puller = ResultsPuller(spec=spec, home=home, remotes=fleet.remotes, report=report)
        return await asyncio.gather(*map(puller.pull, await puller.list_jobs()))

    found = run_on(connected(spec, home, among=among), pull)
    if silent := [why for pulled in found for why in pulled.silent]:
        raise ClusterError("; ".join(dict.fromkeys(silent)))


def ssh_command(node: str, command: list[str], which: str | None) -> None:
    """Run `drumline ssh`: become OpenSSH, with the cluster's own configuration."""
    spec, home = find_cluster(which)
    machines = {machine.name: machine for machine in home.read_facts().machines}
    if not machines:
        raise no_nodes(home)
    if node not in machines:
        are = "is" if len(machines) == 1 else "are"
        raise UsageError(f"no node {node}; there {are} {listed(list(machines))}")
    program = shutil.which("ssh")
    if program is None:
        raise UsageError("ssh is not here; install it (apt-get install openssh-client)")
    refuse_silent(spec, home, machines[node])
    os.execv(program, [program, "-F", str(home.ssh_config), node, *command])


def jupyter_command(which: str | None, *, browser: bool) -> None:
    """Run `drumline jupyter`: open the leader's JupyterLab, start what notebooks ask for."""
    _serve(which, "jupyter", browser=browser)


def tensorboard_command(which: str | None, *, browser: bool) -> None:
    """Run `drumline tensorboard`: open TensorBoard of the leader."""
    _serve(which, "tensorboard", browser=browser)


def _serve(which: str | None, name: services.ServiceName, *, browser: bool) -> None:
    spec, home = find_cluster(which)
    console = Console(stderr=True, highlight=False)

    async def serve(fleet: Fleet) -> None:
        with NodeRows(console, name) as rows:
            try:
                service = await services.open_service(fleet.leader, name, rows.report)
            except services.MissingServiceError as error:
                folder, packages = Path(home.read_facts().folder), [str(error.fields["package"])]
                provisioner = Provisioner(spec=spec, folder=folder, home=home)
                await provisioner.install_services(fleet.remotes, packages, rows.report)
                service = await services.open_service(fleet.leader, name, rows.report)
        print(service.url, flush=True)
        console.print("the tunnel is open until you press Ctrl-C")
        if browser:
            _show(home, service.url)
        tasks = [services.stay_busy(fleet.remotes)]
        if name == "jupyter":  # its notebooks may ask for runs
            tasks.append(services.serve_requests(fleet.remotes, partial(submit, fleet.remotes)))
        await asyncio.gather(*tasks)

    run_on(connected(spec, home), serve)


def _show(home: ClusterHome, url: str) -> None:
    """Open a page in the browser by a file that leads there: a token is not for process lists."""
    page = home.path / "open.html"
    page.unlink(missing_ok=True)
    with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={url}">\n')
    webbrowser.open(page.as_uri())
