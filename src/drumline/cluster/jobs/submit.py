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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drumline.cluster.jobs.follow import Talk, revive
from drumline.cluster.ssh.remote import Remote, all_of, last_line, node_python, raise_for_all
from drumline.core.errors import DrumlineError, HostError, UsageError
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
        words = [word for word in self.argv if word != "-m"]
        name = self.title or (words[0] if words else "train")
        stem = re.sub(r"[^A-Za-z0-9]+", "-", name.rpartition("/")[2].removesuffix(".py"))
        return f"{stem.strip('-')[:40] or 'job'}-{secrets.token_hex(3)}".lower()


async def submit(remotes: Sequence[Remote], request: Request, *, job_id: str | None = None) -> str:
    """Start a job on all nodes, and return its id; it goes on without us.

    Args:
        remotes: the nodes, in node order: the first leads.
        request: what to run.
        job_id: its id; None: make one up.

    Raises:
        ClusterError: it could not be started; holds what each node says. Nothing runs then.
    """
    job_id = job_id or request.job_id()
    talks = await _start(remotes, request, job_id, follow=False)
    await all_of(talk.finish() for talk in talks)
    return job_id


async def submit_and_hear(remotes: Sequence[Remote], request: Request, job_id: str) -> list[Talk]:
    """Start a job on all nodes by commands that go on to tell of it, for `Following.listen`.

    Raises:
        ClusterError: it could not be started.
    """
    return await _start(remotes, request, job_id, follow=True)


async def status(remotes: Sequence[Remote]) -> list[dict[str, Any]]:
    """Return all jobs, oldest first, as the first node that answers knows them.

    Raises:
        HostError: no node answers.
    """
    lost: list[HostError] = []
    for remote in remotes:
        try:
            done = await remote.run(_command(remote, "control", "status"), timeout_s=_ANSWER_S)
        except HostError as error:
            lost.append(error)
            continue
        if done.code == 0:
            return [json.loads(line) for line in done.stdout.splitlines()]
        lost.append(_complain(remote, done.stderr))
    raise_for_all(lost)
    raise HostError(_NO_NODES)


async def cancel(remotes: Sequence[Remote], job_id: str) -> JobState:
    """End a job on all nodes, and return the state that it then has.

    Raises:
        UsageError: there is no such job.
        HostError: no node answers.
    """
    lost: list[HostError] = []
    for remote in remotes:  # any node passes it on; the leader knows best
        try:
            done = await remote.run(
                _command(remote, "control", "cancel", job_id), timeout_s=_ANSWER_S
            )
        except HostError as error:
            lost.append(error)
            continue
        answer = _read(done.stdout)
        if "state" in answer:
            return JobState.from_json(answer["state"])
        if "error" in answer:
            raise revive(answer["error"])
        lost.append(_complain(remote, done.stderr))
    raise_for_all(lost)
    raise HostError(_NO_NODES)


async def newest(remotes: Sequence[Remote]) -> str:
    """Return the id of the job that was submitted last.

    Raises:
        UsageError: there is none.
    """
    jobs = await status(remotes)
    if not jobs:
        raise UsageError("there is no job yet; start one with: drumline submit -- train.py")
    return str(max(jobs, key=lambda job: float(job["submitted"]))["id"])


async def _start(
    remotes: Sequence[Remote], request: Request, job_id: str, *, follow: bool
) -> list[Talk]:
    words = ["--follow"] if follow else []
    talks = await Talk.start_all(remotes, lambda remote: _command(remote, "submit", *words))
    try:
        await all_of(
            talk.send({"job": job.to_json(), "secret": secret})
            for talk, job, secret in _parts(talks, request, job_id)
        )
        leader, *followers = talks
        answer = await _answer(leader)
        told = {"port": answer["port"], "first": not answer["ahead"]}
        await all_of(talk.send(told) for talk in followers)
        await all_of(_answer(talk) for talk in talks)
    except BaseException:
        for talk in talks:
            talk.flow.stop()
        with contextlib.suppress(DrumlineError):
            await cancel(remotes[:1], job_id)
        raise
    return talks


def _parts(talks: Sequence[Talk], request: Request, job_id: str) -> list[tuple[Talk, Job, str]]:
    """Return what each node is told (`drumline.node.submit`)."""
    secret = secrets.token_hex(32)
    submitted = time.time()
    addresses = tuple(talk.remote.machine.address for talk in talks)
    return [
        (
            talk,
            Job(
                id=job_id,
                title=request.title or " ".join(request.argv) or "train",
                node=node,
                addresses=addresses,
                argv=request.argv,
                spec=request.spec,
                resume=request.resume,
                code=request.code,
                workers=request.workers,
                timeout_s=request.timeout_s,
                restarts=request.restarts,
                keep_warm=request.keep_warm,
                submitted=submitted,
                user=getpass.getuser(),
            ),
            secret,
        )
        for node, talk in enumerate(talks)
    ]


async def _answer(talk: Talk) -> dict[str, Any]:
    """Wait for a node's next word.

    Raises:
        HostError: none comes.
        DrumlineError: it refuses; says why.
    """
    try:
        answer = await asyncio.wait_for(talk.hear(), _TAKE_S)
    except TimeoutError:
        raise HostError(
            f"{talk.remote.machine.name} has not answered within {_TAKE_S:g} s; is it alive? "
            f"drumline ssh {talk.remote.machine.name}",
            node=talk.remote.machine.node,
        ) from None
    if answer is None:
        raise _complain(talk.remote, (await talk.flow.wait()).stderr)
    if "error" in answer:
        raise revive(answer["error"], f"{talk.remote.machine.name}: ")
    return answer


def _command(remote: Remote, module: str, *words: str) -> list[str]:
    machine = remote.machine
    return [node_python(machine), "-m", f"drumline.node.{module}", machine.root, *words]


def _read(output: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(output)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _complain(remote: Remote, stderr: bytes) -> HostError:
    why = last_line(stderr) or "it says nothing"
    name = remote.machine.name
    return HostError(
        f"{name} cannot run drumline ({why}); provision it again with: drumline up",
        node=remote.machine.node,
    )
