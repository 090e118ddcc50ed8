"""`Runner`: the process that runs a node's part of a job: that of the leader, or of a follower.

It is detached from the SSH session that started it, so that a job survives the laptop. Its agent
ends with it, whatever happens to it (`drumline.core.processes`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.core.json_lines import Message
from drumline.core.lock import FileLock
from drumline.core.manifest import build_manifest
from drumline.core.processes import exit_at_once
from drumline.launcher.preflight import list_gpus
from drumline.node.agent import JobAgent, preloads_for, variables_for
from drumline.node.folder import BusySign
from drumline.node.hangs import NodeRanks
from drumline.node.job import Job, JobFolder, Phase

TICK_S = 0.05
NODE_FREE_S = 20.0
"""how long the ranks of the job before may take to go"""
TIMES = "times.jsonl"
"""in the logs' folder: which log had grown to what size when"""
_TIMES_EVERY_S = 0.25
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
            manifest |= {"script": list(self.job.argv), "nodes": self.job.nodes}
        else:
            self.run_dir.spec_file.write_text(spec, encoding="utf-8")
        self.run_dir.write_json("manifest.json", {**manifest, "job": self.job.id})

    def watched_ranks(self) -> NodeRanks | None:
        """Return this node's ranks; None where nobody looks whether they hang."""
        job = self.job
        if not (job.argv and job.observed and job.hang_after_s > 0):
            return None
        return NodeRanks(job, self.run_dir, self.workers)

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
        self.folder.note(**ending, hang=None)


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
        exit_at_once(code)


def print_to(log: Path) -> None:
    """Redirect the output of a job's process on the node to a log, and its input to /dev/null."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)
