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
from drumline.core.json_lines import JsonStream, Message
from drumline.node.job import JobFolder, JobState
from drumline.node.runner import TIMES

_POLL_S = 0.04
_HEARTBEAT_S = 5.0
_CHUNK = 1 << 20


@dataclass
class _Log:
    """One rank's log, as far as it was told."""

    path: Path
    rank: int
    offset: int = 0

    def read(self, *, to_the_end: bool) -> list[tuple[str, int]]:
        """Return new whole lines, each with the offset of its end."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read(_CHUNK)
        except FileNotFoundError:
            return []
        whole = chunk.rfind(b"\n") + 1
        full = len(chunk) == _CHUNK
        if whole < len(chunk) and (whole > 0 if full else not to_the_end):
            chunk = chunk[:whole]
        lines = []
        for line in io.BytesIO(chunk):  # ends lines at \n alone
            self.offset += len(line)
            lines.append((_shown(line), self.offset))
        return lines


def _shown(line: bytes) -> str:
    """Return what a terminal would show: a progress bar draws over itself."""
    return line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]


@dataclass
class _Times:
    """When a log had which size."""

    path: Path
    offset: int = 0
    known: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)

    def read(self) -> None:
        """Read what was noted since."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            at, name, size = json.loads(line)
            sizes, times = self.known.setdefault(name, ([], []))
            sizes.append(size)
            times.append(at)

    def at(self, log: _Log, offset: int) -> float:
        """Say when a line that ends there was printed; now, where nobody has noted it yet."""
        sizes, times = self.known.get(log.path.name, ([], []))
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
        self._logs: dict[int, _Log] = {}
        self._times = _Times(folder.run.logs / TIMES)

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
        self._find_logs()
        lines: list[Message] = []
        for log in self._logs.values():
            while found := log.read(to_the_end=to_the_end):
                self._times.read()
                lines += (
                    {"rank": log.rank, "text": text, "at": self._times.at(log, end), "offset": end}
                    for text, end in found
                )
        if to_the_end and not self._logs and self._rank is None:
            lines += self._agent_output()
        return sorted(lines, key=lambda line: float(line["at"]))

    def _find_logs(self) -> None:
        for path in self._folder.run.logs.glob("rank-*.log"):
            rank = int(path.stem.removeprefix("rank-"))
            if rank not in self._logs and self._rank in (None, rank):
                self._logs[rank] = _Log(path, rank, self._offsets.get(rank, 0))

    def _agent_output(self) -> list[Message]:
        """What the agent said, where no rank ever started: it may have failed to load torch."""
        log = _Log(self._folder.run.logs / f"node-{self._node}.log", -1, self._offsets.get(-1, 0))
        return [
            {"rank": -1, "text": text, "at": time.time(), "offset": end}
            for text, end in log.read(to_the_end=True)
        ]


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
