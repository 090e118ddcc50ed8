"""Connecting to a cluster that is up, and what a person is told of its nodes and jobs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Collection, Container, Sequence

from drumline.cluster.home import ClusterHome
from drumline.cluster.jobs.follow import OutputLine
from drumline.cluster.life.limits import GONE, cluster_gone, find_gone
from drumline.cluster.providers import Machine
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.fleet import Fleet
from drumline.cluster.ssh.remote import raise_for_all
from drumline.core.errors import DrumlineError, HostError, UsageError
from drumline.core.formatting import format_seconds, name_ranks
from drumline.node.job import JobState


def print_note(line: str) -> None:
    """Print a line for the person at the CLI that is not a job's output, on stderr."""
    print(line, file=sys.stderr, flush=True)


class Printer:
    """Prints what ranks print, with the rank in front."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, line: OutputLine) -> None:
        """Print one."""
        self.lines += 1
        print(f"{line.prefix} {line.text}", flush=True)


def print_end(job_id: str, state: JobState) -> int:
    """Print how a cluster's job ended; returns the exit code of the CLI."""
    took = ""
    if state.started is not None and state.ended is not None:
        took = f" after {format_seconds(state.ended - state.started)}"
    print_note(f"{job_id} is {state.phase}{took}")
    if state.phase == "done":
        return 0
    if state.error:
        raise _JobError(state.error, code=state.code or 1)
    return state.code or 1


def refuse_rank(job_id: str, rank: int | None, ranks: Collection[int]) -> None:
    """Refuse a `--rank` that a cluster's job does not have.

    Raises:
        UsageError: names those that it has.
    """
    if rank is None or rank in ranks:
        return
    if isinstance(ranks, range) and len(ranks) > 2:
        has = f"has ranks 0 to {len(ranks) - 1}"
    else:
        has = f"has {name_ranks(sorted(ranks))}" if ranks else "never had any"
    raise UsageError(f"no rank {rank}: {job_id} {has}")


class _JobError(DrumlineError):
    """A job that failed, with its own exit code."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]


_CONNECT_S = 30.0
_TRY_S = 10.0
_LOOK_S = 3.0  # after so long without all nodes the provider is asked whether they are there


@contextlib.asynccontextmanager
async def connected(
    spec: ClusterSpec,
    home: ClusterHome,
    *,
    among: Container[str] | None = None,
    some: bool = False,
) -> AsyncIterator[Fleet]:
    """Connect a CLI command to the cluster's nodes of the last `up`, or to those `among` these.

    `some`: be content with those that answer, and say which do not.

    Raises:
        UsageError: there are none yet.
        HostError: some do not answer, or none does, or they have ended: then `reason` is gone.
    """
    machines = [one for one in home.read_facts().machines if among is None or one.identity in among]
    if not machines:
        raise no_nodes(home)
    timeout_s = _TRY_S if some and len(machines) > 1 else _CONNECT_S
    async with reached(spec, home, machines, timeout_s=timeout_s) as (fleet, lost):
        if lost and not (some and fleet.remotes):
            if all(error.fields.get("reason") == GONE for error in lost) and not fleet.remotes:
                raise cluster_gone(home)
            raise_for_all(lost)
        for error in lost:
            print_note(f"drumline: {error.message}")
        yield fleet


@contextlib.asynccontextmanager
async def reached(
    spec: ClusterSpec,
    home: ClusterHome,
    machines: Sequence[Machine],
    *,
    timeout_s: float = _TRY_S,
) -> AsyncIterator[tuple[Fleet, list[HostError]]]:
    """Connect a CLI command to the nodes that let us in; gives what keeps us from the others.

    The provider is asked only where not all are there at once: it may be slow to answer.
    """
    lost: list[HostError] = []
    async with contextlib.AsyncExitStack() as stack:

        def opening(some: Sequence[Machine]) -> asyncio.Task[Fleet]:
            fleet = Fleet.open(some, home, timeout_s=timeout_s, lost=lost)
            return asyncio.create_task(stack.enter_async_context(fleet))

        task = opening(machines)
        try:
            await asyncio.wait([task], timeout=_LOOK_S)
            if lost or not task.done():
                asking = asyncio.create_task(find_gone(spec, home, machines))
                if not task.done():
                    await asyncio.wait([task, asking], return_when=asyncio.FIRST_COMPLETED)
                gone = await asking if lost or not task.done() else []
                asking.cancel()  # where all have come meanwhile
                nodes = {error.fields["node"] for error in gone}
                if gone and not task.done():  # do not wait for those
                    task.cancel()
                    await asyncio.wait([task])
                    lost.clear()
                    task = opening([one for one in machines if one.node not in nodes])
                await asyncio.wait([task])
                lost[:] = [error for error in lost if error.fields["node"] not in nodes] + gone
            yield await task, sorted(lost, key=lambda error: int(error.fields["node"]))
        finally:
            task.cancel()
            await asyncio.wait([task])


def no_nodes(home: ClusterHome) -> UsageError:
    """Return the error of CLI commands for a cluster whose `up` has made no nodes yet."""
    return UsageError(f"{home.name} has no nodes yet; make them with: drumline up")
