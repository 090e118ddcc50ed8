"""`Following`: what all ranks of a job print, from all nodes, in the order of time.

Each node tells what its own ranks print (`drumline.node.tail`). What was printed before we came is
held back until all nodes have told theirs, and put in order; what comes then is shown as it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.cluster.ssh.remote import Flow, Remote, node_python, start_all
from drumline.core.errors import ERRORS, DrumlineError, HostError
from drumline.node.job import JobState

_MOST_HELD = 200_000  # lines
_HOLD_S = 3.0  # for a node that is slow to tell what it has
_STOP_S = 3.0
_FINISH_S = 10.0
_OTHERS_S = 5.0  # for the other nodes, once the leader has told the end
_LOST_S = 15.0  # for the end of a job, once a node cannot be heard any more


@dataclass(frozen=True, kw_only=True)
class Line:
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


Show = Callable[[Line], None]


class Talk:
    """A command on a node that speaks JSON lines."""

    def __init__(self, remote: Remote, flow: Flow) -> None:
        self.remote = remote
        self.flow = flow
        self._lines: AsyncIterator[bytes] = flow.lines()

    @classmethod
    async def start_all(
        cls, remotes: Sequence[Remote], command: Callable[[Remote], Sequence[str]]
    ) -> list[Talk]:
        """Start a command on all nodes, or on none.

        Raises:
            HostError: a node cannot start it.
        """
        flows = await start_all(remotes, command)
        return [cls(remote, flow) for remote, flow in zip(remotes, flows, strict=True)]

    async def send(self, words: dict[str, Any]) -> None:
        """Say something to it; one that does not listen any more says why in its own next words."""
        with contextlib.suppress(HostError):
            await self.flow.write(json.dumps(words).encode() + b"\n")

    async def hear(self) -> dict[str, Any] | None:
        """Return what it says next; None where it has ended."""
        async for line in self._lines:
            with contextlib.suppress(ValueError):
                words = json.loads(line)
                if isinstance(words, dict):
                    return words
        return None

    async def finish(self) -> None:
        """Let it end, and wait for that for a while: it has said all that matters."""
        try:
            await self.flow.end_input()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.flow.wait(), _FINISH_S)
        finally:
            self.flow.stop()


class Following:
    """Follows one job; after a lost connection `run` goes on where it was."""

    def __init__(
        self,
        job_id: str,
        show: Show,
        *,
        changed: Callable[[JobState], None] | None = None,
        rank: int | None = None,
    ) -> None:
        """Prepare to follow.

        Args:
            job_id: the job.
            show: called with each line.
            changed: called with the job's state, at first and whenever it changes.
            rank: show this one only.
        """
        self.job_id = job_id
        self._show = show
        self._changed = changed
        self._rank = rank
        self._offsets: dict[int, dict[int, int]] = {}
        self._held: list[Line] | None = []
        self._waiting: set[int] = set()
        self._ends: dict[int, JobState] = {}

    async def run(self, remotes: Sequence[Remote], *, once: bool = False) -> JobState:
        """Show what there is and what comes until the job has ended; returns how.

        Args:
            remotes: the nodes, in node order.
            once: show what there is, and no more.

        Raises:
            HostError: a connection was lost.
            UsageError: there is no such job.
        """
        words = ["--once"] if once else []
        if self._rank is not None:
            words += ["--rank", str(self._rank)]
        talks = await Talk.start_all(remotes, lambda remote: self._command(remote, words))
        return await self.listen(talks)

    async def listen(self, talks: Sequence[Talk]) -> JobState:
        """Hear nodes that tell of the job already."""
        self._held, self._ends = [], {}
        self._waiting = {talk.remote.machine.node for talk in talks}
        timer = asyncio.get_running_loop().call_later(_HOLD_S, self._release)
        hearing = {asyncio.create_task(self._hear(talk)): talk for talk in talks}
        try:
            return await self._wait(hearing)
        finally:
            timer.cancel()
            self._release()
            for task, talk in hearing.items():
                talk.flow.stop()
                task.cancel()
            await asyncio.gather(*hearing, return_exceptions=True)
            with contextlib.suppress(TimeoutError):
                ends = (talk.flow.wait() for talk in talks)
                await asyncio.wait_for(asyncio.gather(*ends, return_exceptions=True), _STOP_S)

    async def _wait(self, hearing: dict[asyncio.Task[None], Talk]) -> JobState:
        """Wait for all nodes; a bounded time only, once the leader or any connection is gone."""
        pending: set[asyncio.Task[None]] = set(hearing)
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
        return self._conclude({talk.remote.machine.node: task for task, talk in hearing.items()})

    def _conclude(self, tasks: dict[int, asyncio.Task[None]]) -> JobState:
        if 0 in self._ends:
            return self._ends[0]
        ended = (task.exception() for task in tasks.values() if task.done())
        errors = [error for error in ended if error is not None]
        others = [self._ends.get(node) for node in tasks if node != 0]
        if others and all(end is not None and end.phase == "lost" for end in others):
            end = others[0]
            assert end is not None
            return end
        raise (
            errors[0]
            if errors
            else HostError(
                f"no node tells of job {self.job_id} any more; ask again with: drumline logs "
                f"{self.job_id}"
            )
        )

    async def _hear(self, talk: Talk) -> None:
        node = talk.remote.machine.node
        try:
            while (words := await talk.hear()) is not None:
                self._take(node, words)
        finally:
            self._note_live(node)
        if node not in self._ends:
            complaint = (await talk.flow.wait()).stderr.decode(errors="replace").strip()
            why = complaint.splitlines()[-1] if complaint else "the connection was lost"
            raise HostError(
                f"{talk.remote.machine.name} does not tell of job {self.job_id} any more: {why}",
                node=node,
            )

    def _take(self, node: int, words: dict[str, Any]) -> None:
        if "text" in words:
            line = Line(node=node, rank=words["rank"], text=words["text"], at=words["at"])
            self._offsets.setdefault(node, {})[line.rank] = words["offset"]
            if self._held is None:
                self._show(line)
            else:
                self._held.append(line)
                if len(self._held) > _MOST_HELD:
                    self._release()
        elif "live" in words:
            self._note_live(node)
        elif "state" in words and node == 0 and self._changed is not None:
            self._changed(JobState.from_json(words["state"]))
        elif "end" in words:
            self._ends[node] = JobState.from_json(words["end"])
        elif "error" in words:
            raise revive(words["error"])

    def _note_live(self, node: int) -> None:
        self._waiting.discard(node)
        if not self._waiting:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        for line in sorted(held or (), key=lambda line: line.at):
            self._show(line)

    def _command(self, remote: Remote, words: Sequence[str]) -> list[str]:
        machine = remote.machine
        offsets = json.dumps(self._offsets.get(machine.node, {}))
        module = [node_python(machine), "-m", "drumline.node.tail"]
        return [*module, machine.root, self.job_id, "--from", offsets, *words]


def revive(record: Mapping[str, Any], where: str = "") -> DrumlineError:
    """Return the error that a node tells of (`DrumlineError.to_record`)."""
    return ERRORS.get(record["type"], DrumlineError)(f"{where}{record['message']}")
