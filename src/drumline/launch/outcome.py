"""How a run ended: the failing rank first, the others' noise folded.

When one rank dies the others lose their connections and die too, often louder. Ranks write an error
event each; agents note exit codes of those that could not. The cause is the earliest error that is
not itself the consequence of a lost peer.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import ERRORS, DrumlineError, WorkerError
from drumline.core.formatting import name_ranks
from drumline.core.nodes import name_rank
from drumline.core.rundir import Event, RunDir, read_events

_TRACEBACK_LINES = 40
_LOG_LINES = 10
_VOTE = 5040  # can be shared equally among up to ten
_KEEP = "give --out DIR to keep the logs"


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """Where a run was, and how to speak of it."""

    run: RunDir
    world_size: int
    nodes: int
    kept: bool
    """whether the run directory stays; else what a log says must be said now"""
    timeout: str | None
    """what a person sets who wants ranks to wait longer"""

    def name(self, rank: int) -> str:
        """Name a rank, with its node where there are several."""
        return name_rank(rank, nodes=self.nodes, world_size=self.world_size)

    def log(self, rank: int) -> str:
        """Say where a rank's log is, or what its last lines are."""
        if self.kept:
            return f"its log is {self.run.rank_log(rank)}"
        return f"{_last_lines(self.run.rank_log(rank), f'rank {self.name(rank)}')}{_KEEP}"

    def logs(self, node: int | None = None) -> str:
        """Say where all logs are, or what the last lines of an agent's are."""
        if self.kept:
            return f"the logs are in {self.run.logs}"
        log = self.run.logs / f"node-{node}.log"
        return _KEEP if node is None else f"{_last_lines(log, 'it')}{_KEEP}"

    def fold(self, others: int) -> str:
        """Speak of the ranks that then failed, too."""
        if others < 1:
            return ""
        ranks = "one other rank" if others == 1 else f"{others} other ranks"
        where = f" (logs in {self.run.logs})" if self.kept else ""
        return f"{ranks} then lost the connection{where}; "


def check_outcome(
    run: RunDir,
    *,
    world_size: int,
    exit_codes: list[int | None],
    last_words: Path | None = None,
    since: float = 0.0,
    kept: bool = True,
    timeout: str | None = "timeout_s",
) -> None:
    """Return if every agent ended well.

    Args:
        run: the run.
        world_size: how many ranks it had.
        exit_codes: of the agents.
        last_words: where ranks left errors that they could not write to the run directory.
        since: when this launch began; what an earlier session has logged does not count.
        kept: whether the run directory stays.
        timeout: what limits how long a rank waits for others, if anything that a person can set.

    Raises:
        DrumlineError: what went wrong first, told by rank.
    """
    if all(code == 0 for code in exit_codes):
        return
    scene = _Scene(
        run=run, world_size=world_size, nodes=len(exit_codes), kept=kept, timeout=timeout
    )
    errors = _last_attempt_errors(run.read_rank_events(world_size))
    if last_words is not None:
        told = {error["rank"] for error in errors}
        elsewhere = [read_events(file) for file in last_words.glob("rank-*.jsonl")]
        errors += [e for e in _last_attempt_errors(elsewhere) if e["rank"] not in told]
    errors = sorted((e for e in errors if e["time"] >= since), key=lambda e: float(e["time"]))
    exits = _worker_exits(run, len(exit_codes))
    causes = [error for error in errors if not error["consequence"]]
    if causes:
        raise _explain(scene, causes[0], others=len(errors) - len(causes))
    reported = {error["rank"] for error in errors}
    silent = [event for event in exits if event["rank"] not in reported]
    left = [event for event in silent if event["exit_code"] > 0]  # by itself: nobody ended it
    if any((code or 0) < 0 for code in exit_codes) and not left:
        raise _explain_agent(scene, exit_codes, others=len(errors))
    if silent:
        raise _explain_exit(scene, (left or silent)[0], others=len(errors))
    cut_off = _find_cut_off(errors)
    if cut_off is not None:
        raise _explain_cut(scene, errors[0], cut_off)
    missing = sorted(set(range(world_size)) - reported)
    waited = [error for error in errors if error.get("timed_out")]
    if waited and missing:
        # others may only not have come to say that they, too, wait for the one that is lost
        lost = [rank for rank in waited[0].get("lost", ()) if rank in missing]
        raise _explain_silence(scene, waited[0], lost or missing)
    if errors and missing:
        ranks = " or ".join(scene.name(rank) for rank in missing)
        logs = scene.log(missing[0]) if len(missing) == 1 else scene.logs()
        raise WorkerError(
            f"rank {ranks} ended without a word; {scene.fold(len(errors))}{logs}",
            rank=missing[0],
        )
    if errors:
        raise _explain(scene, errors[0], others=len(errors) - 1)
    raise _explain_agent(scene, exit_codes, others=0)


def _last_attempt_errors(logs: list[list[Event]]) -> list[Event]:
    """The error events since each rank last started, earliest first."""
    errors = []
    for events in logs:
        latest: list[Event] = []
        for event in events:
            if event["event"] == "start":
                latest = []
            elif event["event"] == "error":
                latest.append(event)
        errors += latest
    return sorted(errors, key=lambda event: float(event["time"]))


def _worker_exits(run: RunDir, nodes: int) -> list[Event]:
    """The exits that agents have noted since they were last started."""
    exits: list[Event] = []
    for node in range(nodes):
        latest: list[Event] = []
        for event in read_events(run.node_events(node)):
            if event["event"] == "agent":
                latest = []
            elif event["event"] == "worker_exit":
                latest.append(event)
        exits += latest
    return exits


def _explain(scene: _Scene, error: Event, *, others: int) -> DrumlineError:
    rank = error["rank"]
    if error.get("expected"):
        return ERRORS.get(error["type"], DrumlineError)(error["message"], rank=rank)
    trace = error.get("traceback", "").rstrip().splitlines()
    if len(trace) > _TRACEBACK_LINES:
        trace = [trace[0], "  …", *trace[-_TRACEBACK_LINES:]]
    shown = "\n".join(f"  {line}" for line in trace)
    log = scene.log(rank) if scene.kept else _KEEP  # its last lines are the same
    return WorkerError(
        f"rank {scene.name(rank)} failed:\n{shown}\n{scene.fold(others)}{log}", rank=rank
    )


def _explain_agent(scene: _Scene, exit_codes: list[int | None], *, others: int) -> WorkerError:
    """Tell of an agent that ended: the one that was killed, or else failed."""
    ended = [(code, node) for node, code in enumerate(exit_codes) if code]
    code, node = min(ended, default=(None, 0))
    where = f" of node {node}" if len(exit_codes) > 1 else ""
    return WorkerError(
        f"the process that starts the ranks{where} ended with code {code} before any rank "
        f"failed; {scene.fold(others)}{scene.logs(node)}"
    )


def _explain_exit(scene: _Scene, event: Event, *, others: int) -> WorkerError:
    rank, code = event["rank"], event["exit_code"]
    how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else _limit_hint(scene.run, code)
    return WorkerError(
        f"rank {scene.name(rank)} {how}{hint}; {scene.fold(others)}{scene.log(rank)}", rank=rank
    )


def _limit_hint(run: RunDir, code: int) -> str:
    """Name the limit on memory: what a C library cannot get makes it abort, without a word."""
    if code not in (-signal.SIGABRT, -signal.SIGSEGV) or not run.spec_file.exists():
        return ""
    from drumline.spec.load import read_run_spec

    limit = read_run_spec(run).memory_bytes
    return "" if limit is None else f" (memory_bytes={limit} may be too little for it)"


def _explain_silence(scene: _Scene, error: Event, missing: list[int]) -> WorkerError:
    one = len(missing) == 1
    them, they_were = ("it", "it was") if one else ("them", "they were")
    until, way_out = "in vain", ""
    if scene.timeout is not None:
        until = f"until {scene.timeout} was over"
        way_out = f"; raise {scene.timeout} if {they_were} only slow"
    logs = scene.log(missing[0]) if one else scene.logs()
    return WorkerError(
        f"{name_ranks(map(scene.name, missing))} stopped answering: rank {error['rank']} waited "
        f"for {them} {until}{way_out}; {logs}",
        rank=missing[0],
    )


def _find_cut_off(errors: list[Event]) -> int | None:
    """The simulated node that most ranks cannot reach; who is cut off reaches nobody else.

    So a rank that names many counts for little: it is rather its own link that is cut.
    """
    votes: Counter[int] = Counter()
    for error in errors:
        named = error.get("unreachable", ())
        votes.update({node: _VOTE // len(named) for node in named})
    first = sorted(errors, key=lambda error: int(error["rank"]))
    order = [node for error in first for node in error.get("unreachable", ())]
    return max(order, key=lambda node: (votes[node], -order.index(node)), default=None)


def _explain_cut(scene: _Scene, error: Event, node: int) -> WorkerError:
    workers = scene.world_size // scene.nodes
    ranks = name_ranks(range(node * workers, (node + 1) * workers))
    until = "in vain" if scene.timeout is None else f"until {scene.timeout} was over"
    return WorkerError(
        f"node {node} ({ranks}) cannot be reached any more: its link is cut; the others waited "
        f"{until}; {scene.logs()}",
        rank=node * workers,
        node=node,
        seen_by=error["rank"],
    )


def _last_lines(log: Path, who: str) -> str:
    """Quote the end of a log that will be gone."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"{who} printed nothing; "
    shown = "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])
    return f"{who} printed last:\n{shown}\n"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
