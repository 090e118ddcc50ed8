"""`Runner`: the process that runs a node's part of a job; the `Follower` of a leader (`lead`).

It is detached from the SSH session that started it, so that a job survives the laptop. Its agent
ends with it, whatever happens to it (`drumline.core.processes`).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from drumline.core.errors import ClusterError, DrumlineError
from drumline.core.json_lines import Message
from drumline.core.lock import FileLock
from drumline.launch.preflight import list_gpus
from drumline.launch.runs import build_manifest
from drumline.node.agent import (
    ExitReports,
    JobAgent,
    build_task,
    preloads_for,
    read_reports,
    variables_for,
)
from drumline.node.folder import BusySign
from drumline.node.job import SETTLED, Job, JobFolder, Phase
from drumline.node.peer import PeerConnection, connect_to_leader

TICK_S = 0.05
NODE_FREE_S = 20.0
"""how long the ranks of the job before may take to go"""
TIMES = "times.jsonl"
"""in the logs' folder: which log had grown to what size when"""
_TIMES_EVERY_S = 0.25
_CONNECT_S = 20.0
_LOST_GRACE_S = 1.5  # nobody waits for what these ranks have to say any more
_WIND_DOWN_S = 10.0
CANCELLED = 130
"""what a job exits with that somebody has cancelled, as after Ctrl-C"""


class Over(Exception):  # noqa: N818  an end is no error
    """The job ends, and this is why."""

    def __init__(self, phase: Phase, error: str, code: int = 1, *, rank: int | None = None) -> None:
        super().__init__(error)
        self.phase = phase
        self.error = error
        self.code = code
        self.rank = rank

    def to_record(self) -> Message:
        """Return how the job has ended, just now: what its state says of that."""
        ending = {"phase": self.phase, "code": self.code, "rank": self.rank}
        return {**ending, "error": self.error or None, "ended": time.time()}


class Runner:
    """Runs one node's part of a job."""

    def __init__(self, folder: JobFolder, agent: JobAgent | None = None) -> None:
        self.folder = folder
        self.job: Job = folder.read_job()
        self.run_dir = folder.run
        self.agent = agent or JobAgent()
        gpus = sum(line.startswith("GPU ") for line in list_gpus() or ())
        self.workers = self.job.workers or max(1, gpus)
        self.preload: tuple[str, ...] = ()
        self._asked_to_end = False
        self._busy = BusySign(folder.root)
        self._times_at = 0.0
        self._sizes: dict[str, int] = {}
        self._node_lock = FileLock(folder.path.parent / ".running")
        self._node_asked_at: float | None = None

    def warm_up(self) -> None:
        """Start this node's agent, unless a warm one waits already; it loads torch meanwhile."""
        self.preload = preloads_for(self.job)
        if not self.agent.warm:
            self.agent.warm_up(self.preload, variables_for(self.job, self.workers))

    def make_run(self, spec: str) -> None:
        """Make this node's run directory."""
        for path in (self.run_dir.path, self.run_dir.events, self.run_dir.logs):
            path.mkdir()
        manifest = build_manifest(list(self.job.argv) or ["spec"])
        if self.job.argv:
            manifest["script"] = list(self.job.argv)
        else:
            self.run_dir.spec_file.write_text(spec, encoding="utf-8")
        self.run_dir.write_json("manifest.json", {**manifest, "job": self.job.id})

    def take_node(self) -> bool:
        """Take the node, once no other job's ranks are on it; `Over` if they do not go."""
        now = time.monotonic()
        self._node_asked_at = self._node_asked_at or now
        if self._node_lock.acquire(0):
            return True
        if now - self._node_asked_at > NODE_FREE_S:
            raise Over(
                "failed",
                f"another job still runs on node {self.job.node} after {NODE_FREE_S:g} s (it holds "
                f"{self._node_lock.path}); end it with drumline cancel, and submit this one again",
            )
        return False

    def maintain(self) -> None:
        """Do what is due: SIGKILL after the grace period, the busy sign, the times of logs."""
        self.agent.tick()
        if self.agent.warm:
            self._busy.tick()
        now = time.monotonic()
        if now - self._times_at > _TIMES_EVERY_S:
            self._times_at = now
            self.note_times()

    def note_times(self) -> None:
        """Note which logs have grown, so that lines of all ranks can be put in order later."""
        lines = []
        for log in self.run_dir.logs.glob("rank-*"):
            size = log.stat().st_size
            if size != self._sizes.get(log.name):
                self._sizes[log.name] = size
                lines.append([time.time(), log.name, size])
        if lines:
            with (self.run_dir.logs / TIMES).open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def is_cancelled(self) -> bool:
        """Whether somebody wants the job to end."""
        return self._asked_to_end or self.folder.cancel.exists()

    def handle_signals(self) -> None:
        """Take SIGTERM as the wish to end the job, and a hang-up as none of our business."""

        def ask(*_: object) -> None:
            self._asked_to_end = True

        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, ask)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end_with(self, ending: Message) -> None:
        """Leave nothing of the agents' rendezvous, and write the job's last state."""
        shutil.rmtree(self.run_dir.rendezvous, ignore_errors=True)
        self.folder.note(**ending)


class Follower(Runner):
    """Runs a job as another node than the first."""

    def __init__(self, folder: JobFolder, *, first: bool, agent: JobAgent | None = None) -> None:
        super().__init__(folder, agent)
        self._first = first
        """whether no other job comes before, so that the agent may start at once"""
        self._peer: PeerConnection | None = None
        self._started = False
        self._due: Message | None = None
        """the message to start, until this node is free of the job before"""
        self._reported = False
        self._stopping = False

    def run(self) -> None:
        """Run this node's part to its end."""
        self.handle_signals()
        over: Over | None = None
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
                self._start(self._due)
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
            case "stop":
                self._stopping = True
                self._due = None
                self.agent.stop()

    def _start(self, message: Message) -> None:
        """Leave the note that this node's agent looks for, and start it."""
        self._due = None
        job = replace(self.job, **{key: message[key] for key in SETTLED})
        self.workers, self._started = message["workers"], True
        self.make_run(job.spec)
        self.run_dir.rendezvous.mkdir()
        (self.run_dir.rendezvous / "agents").write_text(str(message["port"]))
        self.folder.note(phase="running", started=time.time(), workers=self.workers)
        self.agent.start(build_task(job, self.folder))

    def _report_end(self, peer: PeerConnection) -> None:
        """Report to the leader how this node's agent ended, and what its ranks said."""
        over = self.agent.ended if self._stopping else self.agent.exit_code is not None
        if self._reported or not over:
            return
        self._reported = True
        reports: ExitReports = {}
        if self._started:
            reports = read_reports(
                self.run_dir,
                node=self.job.node,
                workers=self.workers,
                fallback_events=self.agent.scratch.path,
            )
        code = self.agent.exit_code
        peer.send("ended", code=1 if code is None else code, told=reports)

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


def explain_failure(error: BaseException, log: Path) -> Over:
    """Turn what a job's leader or follower process on a node failed with into the job's end."""
    if isinstance(error, Over):
        return error
    if isinstance(error, DrumlineError):
        return Over("failed", error.message, error.exit_code)
    traceback.print_exception(error)
    kind = type(error).__name__
    return Over("failed", f"running the job failed ({kind}: {error}); the whole story is in {log}")


def detach(folder: JobFolder, run: Callable[[], None]) -> None:
    """Run a node's part of a job in a process that outlives the laptop's connection."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    code = 1
    try:
        os.setsid()
        print_to(folder.log)
        run()
        code = 0
    except BaseException as error:
        traceback.print_exception(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def print_to(log: Path) -> None:
    """Redirect the output of a job's process on the node to a log, and its input to /dev/null."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
