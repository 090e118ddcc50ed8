"""Following a job to its end, over as many connections as that takes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from drumline.cli.cluster_connection import connected
from drumline.cli.cluster_training import TrainingView
from drumline.cli.job_words import say
from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.follow import JobFollower
from drumline.cluster.life.limits import GONE
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.remote import NodeSession
from drumline.core.errors import HostError
from drumline.node.job import JobState

_AGAIN_S, _PAUSE_S = 180.0, 2.0


async def follow_to_end(
    spec: ClusterSpec,
    home: ClusterHome,
    fleet: Fleet,
    following: JobFollower,
    *,
    sessions: Sequence[NodeSession] = (),
    view: TrainingView | None = None,
) -> JobState:
    """Follow a job, also where connections are lost meanwhile: the job does not need us.

    Args:
        spec: of the cluster.
        home: of the cluster.
        fleet: its nodes.
        following: of the job.
        sessions: of nodes that stream the job already.
        view: draws its training.

    Raises:
        HostError: the cluster is gone, or cannot be reached any more.
    """
    try:
        if sessions:
            return await following.listen(sessions)
        return await _follow(fleet, following, view)
    except HostError as error:
        lost, told, until = error, "", time.monotonic() + _AGAIN_S
    while time.monotonic() < until:
        if not home.read_facts().machines:
            raise HostError(
                f"the cluster {home.name} was removed meanwhile, and {following.job_id} with it; "
                f"what was pulled of it shows: drumline logs {following.job_id}",
                reason=GONE,
            )
        if lost.message != told:
            say(f"{lost.message}; connecting again")
        told = lost.message
        try:
            async with connected(spec, home, some=True) as again:
                return await _follow(again, following, view)
        except HostError as error:
            if error.fields.get("reason") == GONE:
                raise
            lost = error
            await asyncio.sleep(_PAUSE_S)
    raise lost


async def _follow(fleet: Fleet, following: JobFollower, view: TrainingView | None) -> JobState:
    shown = contextlib.nullcontext() if view is None else view.shown(fleet.remotes)
    async with shown:
        return await following.run(fleet.remotes)
