"""The process of another node than the first: connects to the leader, and does what that says."""

from __future__ import annotations

import select
import time

from drumline.core.errors import ClusterError
from drumline.core.json_lines import Message
from drumline.node.agent import JobAgent, Terms, build_task
from drumline.node.hangs import IdleReporter
from drumline.node.job import JobFolder
from drumline.node.peer import PeerConnection, connect_to_leader
from drumline.node.runner import TICK_S, Over, Runner, explain_failure

_CONNECT_S = 20.0
_LOST_GRACE_S = 1.5  # nobody waits for what these ranks have to say any more
_WIND_DOWN_S = 10.0


class Follower(Runner):
    """Runs a job as another node than the first."""

    def __init__(self, folder: JobFolder, *, first: bool, agent: JobAgent | None = None) -> None:
        super().__init__(folder, agent)
        self._first = first
        """whether no other job comes before, so that the agent may start at once"""
        self._peer: PeerConnection | None = None
        self._due: Message | None = None
        """the message to start, until this node is free of the job before"""
        self._idle: IdleReporter | None = None
        self._reported = False
        self._stopping = False

    def run(self) -> None:
        """Run this node's part to its end."""
        self.handle_signals()
        try:
            if self._first:
                self.warm_up()
            self._connect()
            over = self._serve()
        except BaseException as error:
            over = explain_failure(error, self.folder.log)
            if self._peer is not None:
                self._peer.send("broken", error=over.error, code=over.code)
        self._conclude(over)

    def _connect(self) -> None:
        """Connect to the leader; it listens already, but the network may need a moment."""
        deadline = time.monotonic() + _CONNECT_S
        while True:
            try:
                self._peer = connect_to_leader(
                    self.job.addresses[0],
                    self.job.port,
                    job=self.job.id,
                    node=self.job.node,
                    secret=self.folder.read_secret(),
                )
            except ClusterError:
                if time.monotonic() > deadline or self.is_cancelled():
                    raise
                time.sleep(0.2)
            else:
                self._peer.send("here", workers=self.workers)
                return

    def _serve(self) -> Over:
        """Do what the leader says, until it says that the job is over."""
        peer = self._peer
        assert peer is not None
        asked = False
        while True:
            select.select([] if peer.lost else [peer], [], [], TICK_S)
            for message in peer.tick():
                if message["what"] == "final":
                    error, code = message["error"] or "", message["code"]
                    return Over(message["phase"], error, code, rank=message["rank"])
                self._handle(message)
            if self._due is not None and self.take_node():
                self._start(self._due, peer)
            if self._idle is not None and not self._stopping:
                self._idle.tick()
            self.maintain()
            self._report_end(peer)
            if peer.lost is not None:
                leader = f"the leader, node 0 ({self.job.addresses[0]}),"
                raise Over("lost", f"{leader} was lost: it {peer.lost}")
            if self.is_cancelled() and not asked:
                asked = True
                peer.send("cancel")

    def _handle(self, message: Message) -> None:
        match message["what"]:
            case "turn":
                self.folder.note(phase="starting")
                self.warm_up()
            case "start":
                self._due = message
                self.warm_up()
            case "stacks" if self._idle is not None:
                self._idle.answer()
            case "stop":
                self._stopping = True
                self._due = None
                self.agent.stop()

    def _start(self, message: Message, peer: PeerConnection) -> None:
        """Leave the note that this node's agent looks for, and start it."""
        self._due = None
        terms = Terms.from_json(message)
        self.workers = terms.workers
        self.make_run(terms.spec)
        self.run_dir.rendezvous.mkdir()
        (self.run_dir.rendezvous / "agents").write_text(str(message["port"]))
        self.folder.note(phase="running", started=time.time(), workers=terms.workers)
        self.agent.start(build_task(self.job, self.folder, terms))
        if (ranks := self.watched_ranks()) is not None:
            self._idle = IdleReporter(ranks, peer)

    def _report_end(self, peer: PeerConnection) -> None:
        """Report to the leader how this node's agent ended, and what its ranks said."""
        over = self.agent.ended if self._stopping else self.agent.exit_code is not None
        if self._reported or not over:
            return
        self._reported = True
        code = self.agent.exit_code
        peer.send("ended", code=1 if code is None else code, told=self.agent.read_reports())

    def _conclude(self, over: Over) -> None:
        self.agent.stop(_LOST_GRACE_S)
        deadline = time.monotonic() + _WIND_DOWN_S
        while not self.agent.ended and time.monotonic() < deadline:
            self.agent.tick()
            time.sleep(TICK_S)
        self.note_times()
        self.agent.close()
        if self._peer is not None:
            self._peer.close()
        self.end_with(over.to_record())
