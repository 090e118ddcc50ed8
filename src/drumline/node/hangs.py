"""A hang of a job's ranks is found by the leader, wherever the ranks are.

    follower   looks at its ranks; once a second, while none of them makes progress:   "idle"
    leader     (1) the ranks of all nodes are idle for long enough: it asks for        "stacks"
               (2) has those of all nodes, or has waited long enough for them
               (3) names who the others wait for: in the job's state, and as an event

Ranks are looked at by their status files, which only scripts' ranks have. What decides whether they
hang is told each second, in some hundred bytes; all their last calls come with the stacks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from drumline.core.json_lines import Message
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.status import RankStatus
from drumline.launcher.activity import (
    ActivityWatch,
    RankActivity,
    look_at_ranks,
    with_statuses,
)
from drumline.launcher.hang import Hang, HangWatch
from drumline.launcher.stacks import Stacks, ask_stacks, stacks_from_json, stacks_to_json
from drumline.node.job import Job
from drumline.node.peer import PeerConnection

_TELL_S = 1.0
_FRESH_S = 3.0
"""a node that was idle and has not said so for that long is taken to be at work"""
_STACKS_S = 3.0


class NodeRanks:
    """The ranks of a job on this node: whether they make progress, and where they are."""

    def __init__(self, job: Job, run: RunDir, workers: int) -> None:
        self.run = run
        self.numbers = range(job.node * workers, (job.node + 1) * workers)
        self._watch = ActivityWatch(run, self.numbers, job.hang_after_s)

    def idle(self) -> list[RankActivity] | None:
        """Return what they do; None if one is at work, or none has begun.

        Those that have ended are not at work: others may wait for them.
        """
        ranks = self._watch.look()
        at_work = any(rank.alive and rank.idle_s <= _TELL_S for rank in ranks)
        return None if at_work or not ranks else ranks

    def statuses(self) -> list[RankStatus]:
        """Return all that is known of what they do."""
        return [rank.status for rank in look_at_ranks(self.run, self.numbers)]

    def stacks(self) -> dict[int, Stacks]:
        """Ask them for their stacks."""
        return ask_stacks(self.run, self.numbers)


class IdleReporter:
    """Tells the leader of a follower's ranks while these make no progress."""

    def __init__(self, ranks: NodeRanks, peer: PeerConnection) -> None:
        self._ranks = ranks
        self._peer = peer
        self._told = 0.0
        self._was_idle = False

    def tick(self) -> None:
        """Tell it, once a second."""
        now = time.monotonic()
        if now - self._told > _TELL_S:
            self._told = now
            idle = self._ranks.idle()
            if idle is not None:
                self._peer.send("idle", ranks=[_shortened(rank).to_json() for rank in idle])
            elif self._was_idle:
                self._peer.send("idle", ranks=None)
            self._was_idle = idle is not None

    def answer(self) -> None:
        """Send the stacks that the leader has asked for, and all that the ranks have called."""
        statuses = [status.to_json() for status in self._ranks.statuses()]
        stacks = stacks_to_json(self._ranks.stacks())
        self._peer.send("stacks", stacks=stacks, statuses=statuses)


def _shortened(rank: RankActivity) -> RankActivity:
    """Leave out all calls but those that a rank waits in."""
    return replace(rank, status=replace(rank.status, calls=rank.status.waits_in))


class JobHangWatch:
    """Looks for a hang in what all nodes tell; the leader calls `tick` all the time."""

    def __init__(self, job: Job, ranks: NodeRanks, peers: Mapping[int, PeerConnection]) -> None:
        self._ranks = ranks
        self._peers = peers
        self._watch = HangWatch(job.hang_after_s)
        self._idle: dict[int, tuple[float, list[RankActivity]]] = {}
        """by node whose ranks are not at work: when it has told of them, and what"""
        self._stacks: dict[int, Stacks] | None = None
        """those that have come; None: nobody was asked"""
        self._statuses: list[RankStatus] = []
        """what came with them"""
        self._missing: set[int] = set()
        self._deadline = 0.0

    @property
    def hang(self) -> Hang | None:
        """The hang that there is; None as soon as ranks go on."""
        return self._watch.hang

    def take(self, node: int, message: Message) -> None:
        """Take what a follower tells of its ranks."""
        if message["what"] == "idle":
            self._idle.pop(node, None)
            if message["ranks"] is not None:
                ranks = [RankActivity.from_json(rank) for rank in message["ranks"]]
                self._idle[node] = time.monotonic(), ranks
        elif self._stacks is not None:
            self._stacks |= stacks_from_json(message["stacks"])
            self._statuses += map(RankStatus.from_json, message["statuses"])
            self._missing.discard(node)

    def tick(self) -> None:
        """Look whether the run hangs, or hangs no more."""
        ranks = self._all_ranks()
        if self._stacks is None:
            if self._watch.suspects(ranks):  # (1)
                self._missing = set(self._peers)
                self._deadline = time.monotonic() + _STACKS_S
                for peer in self._peers.values():
                    peer.send("stacks")
                self._stacks, self._statuses = self._ranks.stacks(), []
        elif not self._missing or time.monotonic() > self._deadline:  # (2)
            stacks, self._stacks = self._stacks, None
            ranks = with_statuses(ranks, [*self._ranks.statuses(), *self._statuses])
            hang = self._watch.find(ranks, stacks)
            if hang is not None:  # (3)
                with EventWriter(self._ranks.run.launcher_events) as events:
                    events.write("hang", **hang.to_record())

    def _all_ranks(self) -> list[RankActivity]:
        """Return what all ranks do, if those of no node make progress; else nothing."""
        found = self._ranks.idle()
        for node in self._peers:
            told, ranks = self._idle.get(node, (0.0, []))
            if found is None or time.monotonic() - told > _FRESH_S:
                return []
            found = [*found, *ranks]
        return found or []
