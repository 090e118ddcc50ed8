"""`JobFollower`: the output of all ranks of a job, from all nodes, in order of time.

Each node streams what its own ranks print (`drumline.node.control`). What was printed before we
connected is buffered until all nodes have sent theirs, and sorted; from then on lines are shown as
they arrive.

A job is followed to its end over as many connections as that takes. One that trains by a spec is
shown as a run on this machine would be: its events are pulled as they grow (`RunView`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from drumline.cluster.files.pull import LOGGED, Puller
from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import GONE
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.fleet import Fleet, connected
from drumline.cluster.ssh.remote import NodeSession, Note, Remote, node_command, revive
from drumline.core.errors import ClusterError, HostError
from drumline.core.json_lines import Message
from drumline.node.job import JobState

_MOST_HELD = 200_000  # lines
_HOLD_S = 3.0  # for a node that is slow to tell what it has
_STOP_S = 3.0
_OTHERS_S = 5.0  # for the other nodes, once the leader has told the end
_LOST_S = 15.0  # for the end of a job, once a node cannot be heard any more


@dataclass(frozen=True, kw_only=True)
class OutputLine:
    """What a rank has printed."""

    node: int
    rank: int
    """-1: not a rank, but the agent that could not start any"""
    text: str
    at: float
    """when, in seconds of the epoch, by its node's clock"""

    @property
    def prefix(self) -> str:
        """What to put in front of it."""
        return f"[{self.rank}]" if self.rank >= 0 else f"[node {self.node}]"


Show = Callable[[OutputLine], None]


@dataclass
class JobFollower:
    """Follows one job; after a lost connection `run` goes on where it was."""

    job_id: str
    show: Show
    changed: Callable[[JobState], None] = lambda _: None
    """gets the job's state, at first and whenever it changes"""
    rank: int | None = None
    """the only one to show, unless None"""
    view: RunView | None = None
    """draws the job's run while `follow_to_end` follows it"""
    _offsets: dict[int, dict[int, int]] = field(default_factory=dict, init=False)
    _held: list[OutputLine] | None = field(default=None, init=False)
    _waiting: set[int] = field(default_factory=set, init=False)
    _ends: dict[int, JobState] = field(default_factory=dict, init=False)

    async def run(self, remotes: Sequence[Remote], *, once: bool = False) -> JobState:
        """Show what there is and, unless `once`, what comes until the job has ended; return how."""
        options = ["--once"] if once else []
        if self.rank is not None:
            options += ["--rank", str(self.rank)]

        def command(remote: Remote) -> list[str]:
            offsets = json.dumps(self._offsets.get(remote.machine.node, {}))
            args = ["tail", self.job_id, "--from", offsets, *options]
            return node_command(remote.machine, "control", *args)

        return await self.listen(await NodeSession.start_all(remotes, command))

    async def listen(self, sessions: Sequence[NodeSession]) -> JobState:
        """Follow sessions that stream the job already."""
        self._held, self._ends = [], {}
        self._waiting = {session.machine.node for session in sessions}
        timer = asyncio.get_running_loop().call_later(_HOLD_S, self._release)
        listening = {asyncio.create_task(self._listen(session)): session for session in sessions}
        try:
            return await self._wait(listening)
        finally:
            timer.cancel()
            self._release()
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
            await NodeSession.stop_all(sessions, _STOP_S)

    async def _wait(self, listening: dict[asyncio.Task[None], NodeSession]) -> JobState:
        """Wait for all nodes; a bounded time only, once the leader or any connection is gone."""
        pending: set[asyncio.Task[None]] = set(listening)
        deadline: float | None = None
        clock = asyncio.get_running_loop()
        while pending:
            left = None if deadline is None else max(0.0, deadline - clock.time())
            done, pending = await asyncio.wait(
                pending, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            if deadline is None and any(task.exception() for task in done):
                deadline = clock.time() + _LOST_S
            if 0 in self._ends:
                deadline = min(deadline or float("inf"), clock.time() + _OTHERS_S)
        return self._conclude({session.machine.node: task for task, session in listening.items()})

    def _conclude(self, tasks: dict[int, asyncio.Task[None]]) -> JobState:
        if 0 in self._ends:
            return self._ends[0]
        others = [self._ends.get(node) for node in tasks if node]
        lost = [end for end in others if end is not None and end.phase == "lost"]
        if lost and len(lost) == len(others):
            return lost[0]
        for task in tasks.values():
            if task.done() and (error := task.exception()) is not None:
                raise error
        raise HostError(
            f"no node tells of job {self.job_id} any more; ask again with: drumline logs "
            f"{self.job_id}"
        )

    async def _listen(self, session: NodeSession) -> None:
        node = session.machine.node
        try:
            while (message := await session.receive()) is not None:
                self._take(node, message)
        finally:
            self._note_live(node)
        if node not in self._ends:
            complaint = (await session.process.wait()).complaint
            why = complaint.splitlines()[-1] if complaint else "the connection was lost"
            raise HostError(
                f"{session.machine.name} does not tell of job {self.job_id} any more: {why}",
                node=node,
            )

    def _take(self, node: int, message: Message) -> None:
        if "text" in message:
            rank, text, at = message["rank"], message["text"], message["at"]
            line = OutputLine(node=node, rank=rank, text=text, at=at)
            self._offsets.setdefault(node, {})[rank] = message["offset"]
            if self._held is None:
                self.show(line)
            else:
                self._held.append(line)
                if len(self._held) > _MOST_HELD:
                    self._release()
        elif "live" in message:
            self._note_live(node)
        elif "state" in message and node == 0:
            self.changed(JobState.from_json(message["state"]))
        elif "end" in message:
            self._ends[node] = JobState.from_json(message["end"])
        elif "error" in message:
            raise revive(message["error"])

    def _note_live(self, node: int) -> None:
        self._waiting.discard(node)
        if not self._waiting:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        for line in sorted(held or (), key=lambda line: line.at):
            self.show(line)


_RETRY_S, _PAUSE_S = 180.0, 2.0


async def follow_to_end(
    spec: ClusterSpec,
    home: ClusterHome,
    fleet: Fleet,
    follower: JobFollower,
    note: Note,
    sessions: Sequence[NodeSession] = (),
) -> JobState:
    """Follow a submitted job, also where connections are lost: the job does not need us.

    `sessions` stream the job already.
    """
    try:
        return await _follow(fleet, follower, sessions)
    except HostError as error:
        lost, told, until = error, "", time.monotonic() + _RETRY_S
    while time.monotonic() < until:
        if not home.read_facts().machines:
            raise HostError(
                f"the cluster {home.name} was removed meanwhile, and {follower.job_id} with it; "
                f"what was pulled of it shows: drumline logs {follower.job_id}",
                reason=GONE,
            )
        if lost.message != told:
            note(f"{lost.message}; connecting again")
        told = lost.message
        try:
            async with connected(spec, home, note=note) as again:
                return await _follow(again, follower)
        except HostError as error:
            if error.fields.get("reason") == GONE:
                raise
            lost = error
            await asyncio.sleep(_PAUSE_S)
    raise lost


async def _follow(
    fleet: Fleet, follower: JobFollower, sessions: Sequence[NodeSession] = ()
) -> JobState:
    view, remotes = follower.view, fleet.remotes
    async with live_view(view, remotes, follower.job_id) if view else contextlib.nullcontext():
        return await (follower.listen(sessions) if sessions else follower.run(remotes))


_EVERY_S = 0.5
_SMALL = ("state.json", "run/spec.yaml", "run/manifest.json", "run/summary.json")


def is_logged(name: str) -> bool:
    """Whether a job's file tells what its run does, and is no result of it."""
    return name in _SMALL or name.startswith(LOGGED)


class RunView(Protocol):
    """Draws a job's run, as far as it is on this machine."""

    folder: Path
    """the job's, where its results are pulled to"""
    results: bool
    """whether at the run's end all else that it has left is pulled, too"""

    def update(self) -> None:
        """Draw what is new."""

    def close(self) -> None:
        """End the drawing; another `update` begins anew."""


@contextlib.asynccontextmanager
async def live_view(view: RunView, remotes: Sequence[Remote], job_id: str) -> AsyncIterator[None]:
    """Pull a job's run and draw it while the context lasts."""
    async with Puller(remotes, job_id, view.folder) as puller:
        over = asyncio.Event()
        drawing = asyncio.create_task(_draw(view, puller, over))
        with contextlib.closing(view):
            try:
                yield
            finally:
                over.set()  # a pull that was cut short could not be continued
                await drawing


async def _draw(view: RunView, puller: Puller, over: asyncio.Event) -> None:
    """Pull what is drawn, and draw it, until it is over; an ended run's other files then.

    Checkpoints of a run that goes on stay on the nodes: they may be large, and change.
    """
    last = False
    while not last:
        last = over.is_set()
        with contextlib.suppress(ClusterError):  # the job's own connection tells of that
            pulled = await puller.pull(is_logged)
            if last and pulled.ended and view.results:
                await puller.pull()
        view.update()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _EVERY_S)
