"""`python -m drumline.node.tail R ID [OPTIONS]`: what a node's ranks print, as it comes.

It prints JSON lines and ends when the job has:

    {"state": {…}}                                       whenever it changes, and at first
    {"rank": 3, "text": "…", "at": …, "offset": …}       a line, when it was printed, where it ends
    {"live": true}                                       what there was already has been told
    {"beat": …}                                          nothing new; who listens is there, if not
                                                         we end
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
from drumline.node.job import JobFolder, JobState
from drumline.node.runner import TIMES

_POLL_S = 0.04
_HEARTBEAT_S = 5.0
_CHUNK = 1 << 20


@dataclass
class _Times:
    """When a log had which size."""

    file: GrowingFile
    known: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)

    def read(self) -> None:
        """Read what was noted since."""
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


class Tail:
    """What a job's ranks print on this node."""

    def __init__(
        self,
        folder: JobFolder,
        *,
        offsets: Mapping[int, int] | None = None,
        rank: int | None = None,
    ) -> None:
        self._folder = folder
        self._node = folder.read_job().node
        self._offsets = dict(offsets or {})
        self._rank = rank
        self._logs: dict[int, GrowingFile] = {}
        self._times = _Times(GrowingFile(folder.run.logs / TIMES))

    def follow(self, *, once: bool = False) -> Iterator[Message]:
        """Give what there is, and what comes, until the job ends."""
        told: JobState | None = None
        live = False
        spoke = time.monotonic()
        while True:
            state = self._folder.read_state()  # before the logs: what was printed by then is there
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
        folder = self._folder.run.logs
        for path in folder.glob("rank-*.log"):
            rank = int(path.stem.removeprefix("rank-"))
            if rank not in self._logs and self._rank in (None, rank):
                self._logs[rank] = GrowingFile(path, self._offsets.get(rank, 0))
        logs = self._logs
        if to_the_end and not logs and self._rank is None:  # the agent may lack torch
            log = folder / f"node-{self._node}.log"
            logs = {-1: GrowingFile(log, self._offsets.get(-1, 0))}
        lines = [line for rank in logs for line in self._read(rank, logs[rank], to_the_end)]
        return sorted(lines, key=lambda line: float(line["at"]))

    def _read(self, rank: int, log: GrowingFile, to_the_end: bool) -> Iterator[Message]:
        end = log.offset
        while chunk := log.read(to_the_end=to_the_end, most=_CHUNK):
            self._times.read()
            for line in io.BytesIO(chunk):  # ends lines at \n alone
                end += len(line)
                at = self._times.at(log.path.name, end)
                yield {"rank": rank, "text": _shown(line), "at": at, "offset": end}


def _shown(line: bytes) -> str:
    """Return what a terminal would show: a progress bar draws over itself."""
    return line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]


def send_tail(tail: Tail, stream: JsonStream, *, once: bool = False) -> None:
    """Send it as JSON lines; ends where nobody reads them any more."""
    try:
        for message in tail.follow(once=once):
            stream.send(**message)
    except BrokenPipeError:
        sys.stderr.close()


def main(argv: list[str]) -> int:
    """Stream the output of one job."""
    parser = argparse.ArgumentParser(prog="python -m drumline.node.tail")
    parser.add_argument("root", type=Path)
    parser.add_argument("job")
    parser.add_argument("--from", dest="offsets", type=json.loads, default={})
    parser.add_argument("--rank", type=int)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args(argv)
    offsets = {int(rank): int(offset) for rank, offset in options.offsets.items()}
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    try:
        tail = Tail(JobFolder(options.root, options.job), offsets=offsets, rank=options.rank)
    except DrumlineError as error:
        stream.send(error=error.to_record())
        return error.exit_code
    send_tail(tail, stream, once=options.once)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
