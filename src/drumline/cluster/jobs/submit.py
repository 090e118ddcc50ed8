"""Jobs of a cluster: submit, cancel, list. One command per node, on all nodes at once.

The files are on the nodes already. What happens there is `drumline.node.submit` and its neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drumline.cluster.providers import Machine
from drumline.cluster.ssh.remote import (
    Done,
    NodeSession,
    Remote,
    all_of,
    last_line,
    node_command,
    raise_for_all,
    revive,
)
from drumline.core.errors import DrumlineError, HostError, UsageError
from drumline.core.json_lines import Message
from drumline.node.job import Job, JobState

_ANSWER_S = 60.0
_TAKE_S = 300.0
"""for a node to take a job: it copies the code first"""
_NO_NODES = "the cluster has no nodes; make it with: drumline up"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What somebody wants to run on all nodes."""

    argv: tuple[str, ...] = ()
    """a script below the synced folder, or -m and a module, with arguments"""
    spec: str = ""
    """or a spec to train by, as YAML; its nodes and workers are set to the cluster's"""
    resume: str = ""
    """a run directory on the leader, below machine.root (jobs/train-3f9a/run): a spec's training
    goes on from its newest checkpoint"""
    code: str = ""
    """the hash of the code that was synced for it (`Synced.hash`): nodes that have other code by
    then refuse the job; "": whatever is there"""
    title: str = ""
    workers: int | None = None
    """ranks on each node; None: one for each GPU, or one"""
    timeout_s: float = 300.0
    """how long nodes wait for each other at the start (a spec has its own)"""
    restarts: int = 0
    keep_warm: bool = True
    """leave a process on each node that has loaded torch, for the next job"""

    def job_id(self) -> str:
        """Make up an id: the script's name or the title, and a few digits."""
        args = [arg for arg in self.argv if arg != "-m"]
        name = self.title or (args[0] if args else "train")
        stem = re.sub(r"[^A-Za-z0-9]+", "-", name.rpartition("/")[2].removesuffix(".py"))
        return f"{stem.strip('-')[:40] or 'job'}-{secrets.token_hex(3)}".lower()


async def submit(remotes: Sequence[Remote], request: Request, *, job_id: str | None = None) -> str:
    """Submit a job to all nodes of a cluster, and return its id; it runs on without the laptop.

    `remotes`: the nodes, in node order: the first leads.
    `job_id`: its id; None: make one up.

    Raises:
        ClusterError: it could not be started; holds what each node says. Nothing runs then.
    """
    job_id = job_id or request.job_id()
    sessions = await start_job(remotes, request, job_id)
    await all_of(session.finish() for session in sessions)
    return job_id


async def status(remotes: Sequence[Remote]) -> list[Message]:
    """Return all jobs of a cluster, oldest first, as the first node that answers knows them."""
    done = await _ask_any(remotes, lambda done: done.code == 0, "status")
    return [json.loads(line) for line in done.stdout.splitlines()]


async def cancel(remotes: Sequence[Remote], job_id: str) -> JobState:
    """Cancel a job on all nodes of a cluster, and return the state that it then has.

    Raises:
        UsageError: there is no such job.
        HostError: no node answers.
    """

    def is_answer(done: Done) -> bool:
        return bool((done.message or {}).keys() & {"state", "error"})

    answer = (await _ask_any(remotes, is_answer, "cancel", job_id)).message or {}
    if "error" in answer:
        raise revive(answer["error"])
    return JobState.from_json(answer["state"])


async def newest_job(remotes: Sequence[Remote]) -> str:
    """Return the id of the job that was submitted to the cluster last."""
    jobs = await status(remotes)
    if not jobs:
        raise UsageError("there is no job yet; start one with: drumline submit -- train.py")
    return str(max(jobs, key=lambda job: float(job["submitted"]))["id"])


async def _ask_any(
    remotes: Sequence[Remote], is_answer: Callable[[Done], bool], *args: str
) -> Done:
    """Ask node by node, until one answers: any can, but the leader knows best."""
    lost: list[HostError] = []
    for remote in remotes:
        try:
            argv = node_command(remote.machine, "control", *args)
            done = await remote.run(argv, timeout_s=_ANSWER_S)
        except HostError as error:
            lost.append(error)
            continue
        if is_answer(done):
            return done
        lost.append(_complain(remote.machine, done.stderr))
    raise_for_all(lost)
    raise HostError(_NO_NODES)


async def start_job(
    remotes: Sequence[Remote], request: Request, job_id: str, *, follow: bool = False
) -> list[NodeSession]:
    """Start a submitted job on all nodes of a cluster, one command per node; returns these.

    `follow`: they go on, and stream the job for `JobFollower.listen`.
    """
    options = ["--follow"] if follow else []
    sessions = await NodeSession.start_all(
        remotes, lambda remote: node_command(remote.machine, "submit", *options)
    )
    try:
        secret, jobs = secrets.token_hex(32), _parts(sessions, request, job_id)
        await all_of(
            _send(session, job=job.to_json(), secret=secret)
            for session, job in zip(sessions, jobs, strict=True)
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


def _parts(sessions: Sequence[NodeSession], request: Request, job_id: str) -> list[Job]:
    """Return what each node is told (`drumline.node.submit`)."""
    title = request.title or " ".join(request.argv) or "train"
    first = Job(
        **{**vars(request), "title": title},
        id=job_id,
        node=0,
        addresses=tuple(session.machine.address for session in sessions),
        submitted=time.time(),
        user=getpass.getuser(),
    )
    return [replace(first, node=node) for node in range(len(sessions))]


async def _send(session: NodeSession, **fields: Any) -> None:
    """Send a message to one that may have failed: it says why in its own next message."""
    with contextlib.suppress(HostError):
        await session.send(**fields)


async def _answer(session: NodeSession) -> Message:
    """Wait for a node's next message."""
    try:
        answer = await asyncio.wait_for(session.receive(), _TAKE_S)
    except TimeoutError:
        raise HostError(
            f"{session.machine.name} has not answered within {_TAKE_S:g} s; is it alive? "
            f"drumline ssh {session.machine.name}",
            node=session.machine.node,
        ) from None
    if answer is None:
        raise _complain(session.machine, (await session.process.wait()).stderr)
    if "error" in answer:
        raise revive(answer["error"], f"{session.machine.name}: ")
    return answer


def _complain(machine: Machine, stderr: bytes) -> HostError:
    why = last_line(stderr) or "it says nothing"
    return HostError(
        f"{machine.name} cannot run drumline ({why}); provision it again with: drumline up",
        node=machine.node,
    )
