"""The leader's process: waits for its turn and for the followers, starts, watches, judges.

    (1) its turn has come      no job that was submitted before is left
    (2) all nodes are here     each follower has connected, and proved that it belongs to the job
    (3) it starts its agent    which opens the store of the agents, and notes the port
    (4) it tells the followers the port; their agents start
    (5) it watches             the first failure, lost node or cancellation ends the job on all;
                               a hang is told, or ends it, too (`hangs`)
    (6) it judges              from what all nodes tell of their ranks; that is the job's state

`submit` starts it, or hands the job to one that waits (`handoff`).
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable

from drumline.core.errors import DrumlineError, RunDirError
from drumline.core.json_lines import Message
from drumline.core.rundir import FAILURE
from drumline.core.task import OnHang
from drumline.launcher.hang import say_hang
from drumline.launcher.outcome import RunOutcome
from drumline.node.agent import JobAgent, build_task, exit_code_of, settle_terms, write_reports
from drumline.node.hangs import JobHangWatch
from drumline.node.job import JobFolder, Ticket
from drumline.node.peer import PeerConnection, accept_follower
from drumline.node.runner import CANCELLED, TICK_S, Over, Runner, explain_failure
from drumline.node.snapshot import bring_checkpoints

COME_S = 60.0
"""how long a follower may take to connect"""
_EXPLAIN_S = 2.0  # for the rank that caused it to be heard, where only its victims were so far
_WIND_DOWN_S = 14.0  # followers give their agents half of it
_MOST_HANDSHAKES = 80


class Leader(Runner):
    """Runs a job as its first node."""

    def __init__(
        self,
        folder: JobFolder,
        listener: socket.socket | None,
        ticket: Ticket,
        agent: JobAgent | None = None,
    ) -> None:
        super().__init__(folder, agent)
        self._listener = listener
        self._ticket = ticket
        self._born = time.monotonic()
        self._came: queue.SimpleQueue[PeerConnection] = queue.SimpleQueue()
        self._peers: dict[int, PeerConnection] = {}
        self._here: set[int] = set()
        self._codes: dict[int, int] = {}
        self._hangs: JobHangWatch | None = None
        self._ending = False
        self._started = 0.0

    def run(self) -> None:
        """Run the job to its end."""
        self.handle_signals()
        over: Over | None = None
        try:
            self._wait_for_turn()
            self._start()
            self._watch()
        except BaseException as error:
            over = explain_failure(error, self.folder.log)
        try:
            self._wind_down()
            over = self._judge() if over is None else over
        except BaseException as error:
            over = explain_failure(error, self.folder.log)
        self._conclude(over)

    def _wait_for_turn(self) -> None:
        if not self._ticket.ahead():  # torch takes longer to load than anything else here
            self.warm_up()
        self._until(lambda: not self._ticket.ahead())  # (1)
        self.folder.note(phase="starting")
        for peer in self._peers.values():
            peer.send("turn")
        self.warm_up()
        self._until(lambda: len(self._here) == self.job.nodes - 1)  # (2)
        self._until(self.take_node)

    def _start(self) -> None:
        """Start the agents of all nodes."""
        terms = settle_terms(self.job, self.workers)
        self.make_run(terms.spec)
        if self.job.resume:
            bring_checkpoints(self.folder.root, self.job.resume, self.run_dir.checkpoints)
        port_file = self.run_dir.rendezvous / "agents"
        self.agent.start(build_task(self.job, self.folder, terms))  # (3)
        self._until(lambda: self.agent.ended or port_file.exists())
        self.folder.note(phase="running", started=time.time(), workers=self.workers)
        self._started = time.monotonic()
        port = int(port_file.read_text()) if port_file.exists() else 0
        for peer in self._peers.values():
            peer.send("start", port=port, **terms.to_json())  # (4)
        if (ranks := self.watched_ranks()) is not None:
            self._hangs = JobHangWatch(self.job, ranks, self._peers)

    def _watch(self) -> None:
        """Wait until all agents have ended well, or one has not (5)."""
        while not any(codes := self._exit_codes()):
            if None not in codes:
                return
            self._tick()
        deadline = time.monotonic() + _EXPLAIN_S
        known = -1
        while None in (codes := self._exit_codes()) and time.monotonic() < deadline:
            if (ended := len(codes) - codes.count(None)) != known:
                known = ended
                logs = self.run_dir.rank_logs(self._world_size)
                every = (event for log in logs for event in log.outlines())
                errors = (event for event in every if event["event"] == "error")
                if any(not error["consequence"] for error in errors):
                    return
            self._tick()

    def _wind_down(self) -> None:
        """End what still runs, on all nodes, within bounds."""
        self._ending = True
        for peer in self._peers.values():
            peer.send("stop")
        self.agent.stop()
        deadline = time.monotonic() + _WIND_DOWN_S
        while time.monotonic() < deadline:
            waiting = [t for n, t in self._peers.items() if n not in self._codes and not t.lost]
            if self.agent.ended and not waiting:
                break
            self._tick()
        self.note_times()

    def _judge(self) -> Over:
        """Find out how the job has ended: what went wrong first, over all nodes (6)."""
        try:
            RunOutcome(
                run=self.run_dir,
                world_size=self._world_size,
                exit_codes=self._exit_codes(),
                fallback_events=self.agent.scratch.path,
                timeout="the script's own timeout" if self.job.argv else "timeout_s",
            ).check()
        except DrumlineError as error:
            with contextlib.suppress(RunDirError):
                self.run_dir.write_json(FAILURE, error.to_record())
            code = exit_code_of(self.run_dir, error, self.job.nodes)
            return Over("failed", error.message, code, rank=error.fields.get("rank"))
        return Over("done", "", 0)

    def _conclude(self, over: Over) -> None:
        self.agent.close()
        with contextlib.suppress(OSError, DrumlineError):
            if over.phase == "done" and self.job.argv:
                time_s = time.monotonic() - self._started
                summary = {"world_size": self._world_size, "time_s": time_s}
                self.run_dir.write_json("summary.json", summary)
            elif over.phase != "done" and not (self.run_dir.path / FAILURE).exists():
                self.run_dir.write_json(FAILURE, DrumlineError(over.error).to_record())
        ending = over.to_record()
        self.end_with(ending)
        for peer in self._peers.values():
            peer.send("final", **ending)
            peer.close()
        if self._listener is not None:
            self._listener.close()
        self._ticket.drop()

    @property
    def _world_size(self) -> int:
        return self.job.nodes * self.workers

    def _exit_codes(self) -> list[int | None]:
        followers = (self._codes.get(node) for node in range(1, self.job.nodes))
        return [self.agent.exit_code, *followers]

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._tick()

    def _tick(self) -> None:
        """Hear the followers, and do what is due; `Over` at a cancellation or a lost node."""
        living = [peer for peer in self._peers.values() if peer.lost is None]
        sources: list[socket.socket | PeerConnection] = [*living]
        if self._listener is not None:
            sources.append(self._listener)
        if self._listener in select.select(sources, [], [], TICK_S)[0]:
            self._accept()
        while not self._came.empty():
            peer = self._came.get_nowait()
            if peer.node in self._peers or peer.node not in range(1, self.job.nodes):
                peer.close()
            else:
                self._peers[peer.node] = peer
        for peer in list(self._peers.values()):
            for message in peer.tick():
                self._handle(peer, message)
        self.maintain()
        if not self._ending:
            self._check()

    def _check(self) -> None:
        if self.is_cancelled():
            raise Over("cancelled", "the job was cancelled", CANCELLED)
        if self._hangs is not None:
            self._look_for_hang(self._hangs)
        for node, peer in self._peers.items():
            if peer.lost is not None:
                raise Over(
                    "failed",
                    f"node {node} ({self.job.addresses[node]}) was lost: it {peer.lost}; the job "
                    f"was ended on the other nodes",
                )
        missing = [n for n in range(1, self.job.nodes) if n not in self._peers]
        if missing and time.monotonic() - self._born > COME_S:
            names = ", ".join(f"{node} ({self.job.addresses[node]})" for node in missing)
            raise Over(
                "failed",
                f"node{'' if len(missing) == 1 else 's'} {names} did not connect to the leader at "
                f"{self.job.addresses[0]} within {COME_S:g} s; can the nodes reach each other?",
            )

    def _look_for_hang(self, watch: JobHangWatch) -> None:
        """Note in the job's state that its ranks hang, or do no more; `Over` if that ends it."""
        before = watch.hang
        watch.tick()
        hang = watch.hang
        if hang is before:
            return
        said = None if hang is None else say_hang(hang)
        if hang is not None and self.job.on_hang == OnHang.STOP:
            raise Over("failed", f"{said}\nthe job was ended", rank=hang.rank)
        self.folder.note(hang=said)

    def _accept(self) -> None:
        """Find out who is there, beside the loop: somebody may say nothing."""
        assert self._listener is not None
        connection, _ = self._listener.accept()
        if threading.active_count() > _MOST_HANDSHAKES:
            connection.close()
            return
        secret = self.folder.read_secret()

        def ask() -> None:
            peer = accept_follower(connection, job=self.job.id, secret=secret)
            if peer is not None:
                self._came.put(peer)

        threading.Thread(target=ask, daemon=True).start()

    def _handle(self, peer: PeerConnection, message: Message) -> None:
        match message["what"]:
            case "here":
                self._here.add(peer.node)
                if self.job.workers is None:
                    self.workers = min(self.workers, int(message["workers"]))
            case "ended":
                self._codes[peer.node] = int(message["code"])
                write_reports(self.run_dir, message["told"], ahead_s=peer.ahead_s)
            case "idle" | "stacks" if self._hangs is not None:
                self._hangs.take(peer.node, message)
            case "broken" if not self._ending:
                raise Over("failed", f"node {peer.node}: {message['error']}", message["code"])
            case "cancel" if not self._ending:
                raise Over("cancelled", "the job was cancelled", CANCELLED)
