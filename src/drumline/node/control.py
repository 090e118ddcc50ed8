"""What the laptop asks a node about its jobs, answered in JSON lines.

    python -m drumline.node.control R status               all jobs that it knows, a line each
    python -m drumline.node.control R cancel ID            end a job on all nodes; its last state
    python -m drumline.node.control R tail ID [OPTIONS]    what its ranks print, as it comes
    python -m drumline.node.control R stacks ID            where each of its ranks here is

`cancel` works on any node of the job: a follower forwards it to the leader. `tail` ends when the
job has:

    {"state": {…}}                                       whenever it changes, and at first
    {"rank": 3, "text": "…", "at": …, "offset": …}       a line, when it was printed, where it ends
    {"live": true}                                       what there was already has been told
    {"beat": …}                                          nothing new; ends us if nobody listens
    {"end": {…}}                                         the last state

`--from '{"3": 120}'` continues at those offsets, `--rank N` leaves the others out, `--once` tells
what there is and ends.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.core.files import GrowingFile
from drumline.core.json_lines import JsonStream, Message
from drumline.launcher.activity import look_at_ranks
from drumline.launcher.stacks import ask_stacks, observed_ranks, stacks_to_json
from drumline.node.job import JobFolder, JobState, all_jobs
from drumline.node.runner import TIMES

_CANCEL_S, _CANCEL_POLL_S = 30.0, 0.05
_LEFT_OUT = ("env", "spec")  # may be long, and may hold what is nobody's business
_POLL_S = 0.04
_HEARTBEAT_S = 5.0
_CHUNK = 1 << 20


def _cancel_job(folder: JobFolder) -> JobState:
    """Ask for the end of a job, and wait for it; returns the state that it then has."""
    folder.read_job()
    state = folder.read_state()
    if not state.over:
        folder.cancel.touch()
    deadline = time.monotonic() + _CANCEL_S
    while not state.over and time.monotonic() < deadline:
        time.sleep(_CANCEL_POLL_S)
        state = folder.read_state()
    return state


@dataclass
class _Times:
    """When a log had which size."""

    file: GrowingFile
    known: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)

    def read(self) -> None:
        for line in self.file.read().splitlines():
            at, name, size = json.loads(line)
            sizes, times = self.known.setdefault(name, ([], []))
            sizes.append(size)
            times.append(at)

    def at(self, log: str, offset: int) -> float:
        """Return when a line that ends there was printed; now, where nobody has noted it yet."""
        sizes, times = self.known.get(log, ([], []))
        index = bisect_left(sizes, offset)
        return times[index] if index < len(times) else time.time()


@dataclass
class Tail:
    """What a job's ranks print on this node."""

    folder: JobFolder
    offsets: Mapping[int, int] = field(default_factory=dict)
    """where to begin, by rank"""
    rank: int | None = None
    """the only one to follow, unless None"""

    def __post_init__(self) -> None:
        self._node = self.folder.read_job().node
        self._logs: dict[int, GrowingFile] = {}
        self._times = _Times(GrowingFile(self.folder.run.logs / TIMES))

    def follow(self, *, once: bool = False) -> Iterator[Message]:
        """Give what there is, and what comes, until the job ends."""
        told: JobState | None = None
        live = False
        spoke = time.monotonic()
        while True:
            state = self.folder.read_state()  # before the logs: what was printed by then is there
            if state != told:
                told, spoke = state, time.monotonic()
                yield {"state": state.to_json()}
            for line in self._new_lines(to_the_end=state.over or once):
                spoke = time.monotonic()
                yield line
            if not live:
                live = True
                yield {"live": True}
            if state.over or once:
                yield {"end": state.to_json()}
                return
            if time.monotonic() - spoke > _HEARTBEAT_S:
                spoke = time.monotonic()
                yield {"beat": time.time()}
            time.sleep(_POLL_S)

    def _new_lines(self, *, to_the_end: bool) -> list[Message]:
        folder = self.folder.run.logs
        for path in folder.glob("rank-*.log"):
            rank = int(path.stem.removeprefix("rank-"))
            if rank not in self._logs and self.rank in (None, rank):
                self._logs[rank] = GrowingFile(path, self.offsets.get(rank, 0))
        logs = self._logs
        if to_the_end and not logs and self.rank is None:  # the agent may lack torch
            log = folder / f"node-{self._node}.log"
            logs = {-1: GrowingFile(log, self.offsets.get(-1, 0))}
        lines = [line for rank in logs for line in self._read(rank, logs[rank], to_the_end)]
        return sorted(lines, key=lambda line: float(line["at"]))

    def _read(self, rank: int, log: GrowingFile, to_the_end: bool) -> Iterator[Message]:
        end = log.offset
        while chunk := log.read(to_the_end=to_the_end, most=_CHUNK):
            self._times.read()
            for line in io.BytesIO(chunk):  # ends lines at \n alone
                end += len(line)
                at = self._times.at(log.path.name, end)
                text = line.decode(errors="replace").rstrip("\r\n")
                text = text.rpartition("\r")[2]  # a progress bar draws over itself
                yield {"rank": rank, "text": text, "at": at, "offset": end}


def send_tail(tail: Tail, stream: JsonStream, *, once: bool = False) -> None:
    """Send a job's output from the node to the laptop as JSON lines, while the laptop reads."""
    try:
        for message in tail.follow(once=once):
            stream.send(**message)
    except BrokenPipeError:
        sys.stderr.close()


def main(argv: list[str]) -> int:
    """Answer one question of the laptop's about the jobs on this node."""
    parser = argparse.ArgumentParser(prog="python -m drumline.node.control")
    parser.add_argument("root", type=Path)
    parser.add_argument("command", choices=("status", "cancel", "tail", "stacks"))
    parser.add_argument("job", nargs="?", default="")
    parser.add_argument("--from", dest="offsets", type=json.loads, default={})
    parser.add_argument("--rank", type=int)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args(argv)
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    if options.command == "status":
        for folder in all_jobs(options.root):
            if (folder.path / "job.json").exists():  # else it is being made
                job, state = folder.read_job().to_json(), folder.read_state().to_json()
                kept = {key: value for key, value in job.items() if key not in _LEFT_OUT}
                stream.send(**kept, trains=bool(job["spec"]), state=state)
        return 0
    try:
        folder = JobFolder(options.root, options.job)
        if options.command == "cancel":
            stream.send(state=_cancel_job(folder).to_json())
        elif options.command == "stacks":
            folder.read_job()
            ranks = observed_ranks(folder.run)
            activities = [rank.to_json() for rank in look_at_ranks(folder.run, ranks)]
            stream.send(ranks=activities, stacks=stacks_to_json(ask_stacks(folder.run, ranks)))
        else:
            offsets = {int(rank): int(offset) for rank, offset in options.offsets.items()}
            tail = Tail(folder, offsets=offsets, rank=options.rank)
            send_tail(tail, stream, once=options.once)
    except DrumlineError as error:
        stream.send(error=error.to_record())
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
