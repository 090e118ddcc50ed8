"""Jobs of a cluster: submit, cancel, list, pull. One command per node, on all nodes at once.

A `JobSubmission` is all of `drumline submit`: files, checkpoints, the job, following it to its end.
A `ResultsPuller` brings results to this machine, and copies them on to the storage.
What happens on the nodes is `drumline.node.submit` and its neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drumline.cluster.files import storage
from drumline.cluster.files.pull import Pulled, Puller
from drumline.cluster.files.sync import push_package, sync_folder
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.follow import JobFollower, RunView, Show, follow_to_end
from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.fleet import Fleet, connected, run_on
from drumline.cluster.ssh.remote import (
    Done,
    NodeSession,
    Note,
    Remote,
    all_of,
    node_command,
    raise_for_all,
    revive,
)
from drumline.core.errors import DrumlineError, HostError, UsageError
from drumline.core.formatting import counted, format_bytes
from drumline.core.json_lines import Message
from drumline.launcher.activity import RankActivity
from drumline.launcher.stacks import Stacks, stacks_from_json
from drumline.node.job import JOB_ID, Job, JobState, Request
from drumline.node.storage import shown_url

_ANSWER_S = 60.0
_TAKE_S = 300.0  # for a node to take a job: it copies the code first
_QUEUED_S = 3.0
_ANSWERS = {"cancel": "state", "stacks": "stacks"}
"""what a node's answer has, where the question is none for all jobs"""


@dataclass
class JobSubmission:
    """One job on its way to the nodes of a cluster, and to its end."""

    spec: ClusterSpec
    home: ClusterHome
    request: Request
    note: Note
    started: bool = False

    def __post_init__(self) -> None:
        self.job_id = make_job_id(self.request)
        self.folder = self.home.results(self.job_id)
        """where its results are pulled to"""

    def run(
        self, show: Show, *, view: RunView | None, detach: bool, resume: str | None
    ) -> JobState | None:
        """Start the job, and follow it to its end; None where it is to go on alone (`detach`).

        `view`: draws the job's run.
        `resume`: a job whose checkpoints it goes on from.
        """

        async def work(fleet: Fleet) -> JobState | None:
            request = replace(self.request, code=await self._sync(fleet))
            if resume is not None:
                place = await storage.offer_checkpoints(
                    fleet.leader,
                    resume,
                    pulled=self.home.pulled().get(resume),
                    storage=self.spec.storage,
                    note=self.note,
                )
                request = replace(request, resume=place)
            if detach:
                await submit(fleet.remotes, request, job_id=self.job_id)
                self.started = True
                await self._keep_copies(fleet, check=False)
                return None
            sessions = await start_job(fleet.remotes, request, self.job_id, follow=True)
            self.started = True
            if view is not None:
                self.home.note_pulled(self.job_id, view.folder)
            keeping = asyncio.create_task(self._keep_copies(fleet))
            notice = StateNotice(self.note)
            follower = JobFollower(self.job_id, show, changed=notice, view=view)
            try:
                state = await follow_to_end(
                    self.spec, self.home, fleet, follower, self.note, sessions
                )
                await keeping
            finally:
                keeping.cancel()
            return state

        return run_on(connected(self.spec, self.home), work)

    async def _sync(self, fleet: Fleet) -> str:
        """Bring the folder to all nodes; returns what its content is known by."""
        await fleet.all(push_package)
        apart, remotes = self.spec.storage_folder, fleet.remotes
        found = await sync_folder(remotes, Path.cwd(), self.home, note=self.note, apart=apart)
        sent = format_bytes(max(each.sent_bytes for each in found))
        files, nodes = counted(found[0].files, "file"), counted(len(found), "node")
        self.note(f"{self.job_id}: {files} on {nodes}, {sent} of them new")
        return found[0].hash

    async def _keep_copies(self, fleet: Fleet, *, check: bool = True) -> None:
        """Let the nodes copy the run to the storage; where they may not, `pull` does it."""
        url = self.spec.storage
        if url is None:
            return
        try:
            await storage.keep_copies(fleet.remotes, url, self.job_id, check=check)
        except HostError as error:
            self.note(
                f"{error.message}; drumline pull copies it from here instead, and so does down"
            )
        else:
            if not check:
                self.note(
                    f"nodes that may write to {shown_url(url)} copy the run there as it grows; "
                    f"drumline pull and drumline down copy what they may not"
                )


class StateNotice:
    """Says that a job waits for others, and that its ranks hang, where they do."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._timer: asyncio.TimerHandle | None = None
        self._hang: str | None = None

    def __call__(self, state: JobState) -> None:
        """Take the job's new state."""
        if state.hang not in (None, self._hang):
            self._note(state.hang or "")
        self._hang = state.hang
        if self._timer is not None:
            self._timer.cancel()
        if state.phase == "queued":
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_QUEUED_S, self._note, "waits for the job before it")


def make_job_id(request: Request) -> str:
    """Make up a job's id: the script's name or the title, and a few digits."""
    args = [arg for arg in request.argv if arg != "-m"]
    name = request.title or (args[0] if args else "train")
    stem = re.sub(r"[^A-Za-z0-9]+", "-", name.rpartition("/")[2].removesuffix(".py"))
    return f"{stem.strip('-')[:40] or 'job'}-{secrets.token_hex(3)}".lower()


async def submit(remotes: Sequence[Remote], request: Request, *, job_id: str | None = None) -> str:
    """Submit a job to all nodes of a cluster, and return its id; it runs on without the laptop.

    The first of `remotes` leads.

    Raises:
        ClusterError: it could not be started; holds what each node says. Nothing runs then.
    """
    job_id = job_id or make_job_id(request)
    sessions = await start_job(remotes, request, job_id)
    await all_of(session.finish() for session in sessions)
    return job_id


async def status(remotes: Sequence[Remote]) -> list[Message]:
    """Return all jobs of a cluster, oldest first, as the first node that answers knows them."""
    done = await _ask_any(remotes, "status")
    return [json.loads(line) for line in done.stdout.splitlines()]


async def cancel(remotes: Sequence[Remote], job_id: str) -> JobState:
    """Cancel a job on all nodes of a cluster, and return the state that it then has."""
    answer = (await _ask_any(remotes, "cancel", job_id)).message or {}
    return JobState.from_json(answer["state"])


async def ask_job_stacks(
    remotes: Sequence[Remote], job_id: str
) -> tuple[list[RankActivity], dict[int, Stacks]]:
    """Ask the ranks of a cluster's job what they do, and where they are.

    Raises:
        DrumlineError: a node does not answer, or does not know the job.
    """
    asked = await all_of(_ask_any([remote], "stacks", job_id) for remote in remotes)
    ranks: list[RankActivity] = []
    stacks: dict[int, Stacks] = {}
    for answer in (done.message or {} for done in asked):
        ranks += [RankActivity.from_json(rank) for rank in answer["ranks"]]
        stacks |= stacks_from_json(answer["stacks"])
    return ranks, stacks


async def newest_job(remotes: Sequence[Remote]) -> str:
    """Return the id of the job that was submitted to the cluster last."""
    jobs = await status(remotes)
    if not jobs:
        raise UsageError("there is no job yet; start one with: drumline submit -- train.py")
    return str(max(jobs, key=lambda job: float(job["submitted"]))["id"])


async def _ask_any(remotes: Sequence[Remote], *args: str) -> Done:
    """Ask node by node, until one answers: any can, but the leader knows best."""
    lost: list[HostError] = []
    for remote in remotes:
        try:
            argv = node_command(remote.machine, "control", *args)
            done = await remote.run(argv, timeout_s=_ANSWER_S)
        except HostError as error:
            lost.append(error)
            continue
        answer = done.message or {}
        if done.code == 0 and (args[0] == "status" or _ANSWERS[args[0]] in answer):
            return done
        if "error" in answer:
            raise revive(answer["error"])
        lost.append(_unfit(remote.machine, done))
    raise_for_all(lost)
    raise HostError("the cluster has no nodes; make it with: drumline up")


async def start_job(
    remotes: Sequence[Remote], request: Request, job_id: str, *, follow: bool = False
) -> list[NodeSession]:
    """Start a job on all nodes, one command each; with `follow`, these go on and stream the job."""
    options = ["--follow"] if follow else []
    sessions = await NodeSession.start_all(
        remotes, lambda remote: node_command(remote.machine, "submit", *options)
    )
    try:
        title = request.title or " ".join(request.argv) or "train"
        job = Job(
            **{**vars(request), "title": title},
            id=job_id,
            node=0,
            addresses=tuple(session.machine.address for session in sessions),
            submitted=time.time(),
            user=getpass.getuser(),
        )
        secret = secrets.token_hex(32)
        await all_of(
            _send(session, job=replace(job, node=node).to_json(), secret=secret)
            for node, session in enumerate(sessions)
        )
        leader, *followers = sessions
        answer = await _answer(leader)
        port, first = answer["port"], not answer["ahead"]
        await all_of(_send(session, port=port, first=first) for session in followers)
        await all_of(_answer(session) for session in sessions)
    except BaseException:
        for session in sessions:
            session.process.stop()
        with contextlib.suppress(DrumlineError):
            await cancel(remotes[:1], job_id)
        raise
    return sessions


async def _send(session: NodeSession, **fields: Any) -> None:
    """Send a message to one that may have failed: it says why in its own next message."""
    with contextlib.suppress(HostError):
        await session.send(**fields)


async def _answer(session: NodeSession) -> Message:
    try:
        answer = await asyncio.wait_for(session.receive(), _TAKE_S)
    except TimeoutError:
        raise HostError(
            f"{session.machine.name} has not answered within {_TAKE_S:g} s; is it alive? "
            f"drumline ssh {session.machine.name}",
            node=session.machine.node,
        ) from None
    if answer is None:
        raise _unfit(session.machine, await session.process.wait())
    if "error" in answer:
        raise revive(answer["error"], f"{session.machine.name}: ")
    return answer


def _unfit(machine: Machine, done: Done) -> HostError:
    why = done.last_complaint or "it says nothing"
    return HostError(
        f"{machine.name} cannot run drumline ({why}); provision it again with: drumline up",
        node=machine.node,
    )


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
        if (url := self.spec.storage) is not None and (folder / "run").is_dir():
            stored = storage.stored_by_nodes(folder, nodes=len(self.remotes))
            storage.store_run(url, job_id, folder, self.report, stored=stored, ended=pulled.ended)
        return pulled


def check_job_id(job_id: str) -> str:
    """Refuse a job's id that leads out of the folder for results: it comes from a node."""
    if not JOB_ID.fullmatch(job_id):
        raise HostError(f"a node tells of a job {job_id!r}, which no job is called; look at it")
    return job_id
