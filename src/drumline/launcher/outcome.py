"""How a run ended: the failing rank first, the others' noise folded.

When one rank dies the others lose their connections and die too, often louder. Ranks write an error
event each; agents note exit codes of those that could not. The cause is the earliest error that is
not itself the consequence of a lost peer.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import ERRORS, DrumlineError, WorkerError
from drumline.core.formatting import name_ranks
from drumline.core.nodes import name_rank
from drumline.core.rundir import Event, EventKind, RunDir, read_events
from drumline.launcher.hang import explain_end, missed_call

_TRACEBACK_LINES = 40
_LOG_LINES = 10
_VOTE = 5040  # can be shared equally among up to ten
_KEEP = "give --out DIR to keep the logs"


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What is left of a run that has ended: its events, and how its agents ended."""

    run: RunDir
    world_size: int
    exit_codes: list[int | None]
    """of the agents, in node order"""
    fallback_events: Path
    """where ranks left errors that they could not write to the run directory"""
    since: float = 0.0
    """when this launch began; what an earlier session has logged does not count"""
    kept: bool = True
    """whether the run directory stays; else what a log says must be said now"""
    elsewhere: str = ""
    """where people have seen what it says, if it does not stay"""
    timeout: str | None = "timeout_s"
    """what limits how long a rank waits for others, if anything that a person can set"""

    def check(self) -> None:
        """Return if every agent ended well; else raise what went wrong first, told by rank."""
        if all(code == 0 for code in self.exit_codes):
            return
        errors = self._read_errors()
        exits = worker_exits(self.run, len(self.exit_codes))
        causes = [error for error in errors if not error["consequence"]]
        if causes:
            raise self._explain(causes[0], others=len(errors) - len(causes))
        if (mismatch := explain_end(self.run, self.world_size)) is not None:
            raise WorkerError(f"{mismatch[0]}; {self._logs()}", rank=mismatch[1])
        reported = {error["rank"] for error in errors}
        silent = [event for event in exits if event["rank"] not in reported]
        left = [event for event in silent if event["exit_code"] > 0]  # by itself: nobody ended it
        if any((code or 0) < 0 for code in self.exit_codes) and not left:
            raise self._explain_agent(others=len(errors))
        if silent:
            raise self._explain_exit((left or silent)[0], others=len(errors))
        cut_off = _find_cut_off(errors)
        if cut_off is not None:
            raise self._explain_cut(errors[0], cut_off)
        missing = sorted(set(range(self.world_size)) - reported)
        waited = [error for error in errors if error.get("timed_out")]
        if waited and missing:
            # others may only not have come to say that they, too, wait for the one that is lost
            lost = [rank for rank in waited[0].get("lost", ()) if rank in missing]
            raise self._explain_silence(waited[0], lost or missing)
        if errors and missing:
            ranks = " or ".join(self._name(rank) for rank in missing)
            logs = self._log(missing[0]) if len(missing) == 1 else self._logs()
            call = missed_call(self.run, self.world_size, missing)
            without = "a word" if call is None else f"calling {call}"
            raise WorkerError(
                f"rank {ranks} ended without {without}; {self._fold(len(errors))}{logs}",
                rank=missing[0],
            )
        if errors:
            raise self._explain(errors[0], others=len(errors) - 1)
        raise self._explain_agent(others=0)

    def _read_errors(self) -> list[Event]:
        """The errors of all ranks, earliest first."""
        logs = self.run.rank_logs(self.world_size)
        errors = [error for log in logs for error in _since(log.outlines(), "start", "error")]
        reported = {error["rank"] for error in errors}
        for file in self.fallback_events.glob("rank-*.jsonl"):
            told = _since(read_events(file), "start", "error")
            errors += [error for error in told if error["rank"] not in reported]
        late = (error for error in errors if error["time"] >= self.since)
        return sorted(late, key=lambda error: float(error["time"]))

    def _name(self, rank: int) -> str:
        return name_rank(rank, nodes=len(self.exit_codes), world_size=self.world_size)

    def _log(self, rank: int) -> str:
        """Say where a rank's log is, or what its last lines are."""
        if self.kept:
            return f"its log is {self.run.rank_log(rank)}"
        if self.elsewhere:
            return self.elsewhere
        return f"{_last_lines(self.run.rank_log(rank), f'rank {self._name(rank)}')}{_KEEP}"

    def _logs(self, node: int | None = None) -> str:
        """Say where all logs are, or what the last lines of an agent's are."""
        if self.kept:
            return f"the logs are in {self.run.logs}"
        if self.elsewhere and node is None:
            return self.elsewhere
        return _KEEP if node is None else f"{_last_lines(self.run.node_log(node), 'it')}{_KEEP}"

    @property
    def _until(self) -> str:
        """How long the others waited."""
        return "in vain" if self.timeout is None else f"until {self.timeout} was over"

    def _fold(self, others: int) -> str:
        """Speak of the ranks that then failed, too."""
        if others < 1:
            return ""
        ranks = "one other rank" if others == 1 else f"{others} other ranks"
        where = f" (logs in {self.run.logs})" if self.kept else ""
        return f"{ranks} then lost the connection{where}; "

    def _explain(self, error: Event, *, others: int) -> DrumlineError:
        rank = error["rank"]
        if error.get("expected"):
            return ERRORS.get(error["type"], DrumlineError)(error["message"], rank=rank)
        trace = error.get("traceback", "").rstrip().splitlines()
        if len(trace) > _TRACEBACK_LINES:
            trace = [trace[0], "  …", *trace[-_TRACEBACK_LINES:]]
        shown = "\n".join(f"  {line}" for line in trace)
        log = (
            self._log(rank) if self.kept else self.elsewhere or _KEEP
        )  # its last lines are the same
        return WorkerError(
            f"rank {self._name(rank)} failed:\n{shown}\n{self._fold(others)}{log}", rank=rank
        )

    def _explain_agent(self, *, others: int) -> WorkerError:
        """Tell of an agent that ended: the one that was killed, or else failed."""
        ended = [(code, node) for node, code in enumerate(self.exit_codes) if code]
        code, node = min(ended, default=(None, 0))
        for event in read_events(self.run.node_events(node)):
            if event["event"] == "error" and event["time"] >= self.since:
                return WorkerError(event["message"])
        where = f" of node {node}" if len(self.exit_codes) > 1 else ""
        return WorkerError(
            f"the process that starts the ranks{where} ended with code {code} before any rank "
            f"failed; {self._fold(others)}{self._logs(node)}"
        )

    def _explain_exit(self, event: Event, *, others: int) -> WorkerError:
        rank, code = event["rank"], event["exit_code"]
        hint = " (out of memory?)" if code == -signal.SIGKILL else _limit_hint(self.run, code)
        return WorkerError(
            f"rank {self._name(rank)} {describe_exit(code)}{hint}; "
            f"{self._fold(others)}{self._log(rank)}",
            rank=rank,
        )

    def _explain_silence(self, error: Event, missing: list[int]) -> WorkerError:
        one = len(missing) == 1
        them, they_were = ("it", "it was") if one else ("them", "they were")
        way_out = "" if self.timeout is None else f"; raise {self.timeout} if {they_were} only slow"
        logs = self._log(missing[0]) if one else self._logs()
        return WorkerError(
            f"{name_ranks(map(self._name, missing))} stopped answering: rank {error['rank']} "
            f"waited for {them} {self._until}{way_out}; {logs}",
            rank=missing[0],
        )

    def _explain_cut(self, error: Event, node: int) -> WorkerError:
        workers = self.world_size // len(self.exit_codes)
        ranks = name_ranks(range(node * workers, (node + 1) * workers))
        return WorkerError(
            f"node {node} ({ranks}) cannot be reached any more: its link is cut; the others waited "
            f"{self._until}; {self._logs()}",
            rank=node * workers,
            node=node,
            seen_by=error["rank"],
        )


def worker_exits(run: RunDir, nodes: int) -> list[Event]:
    """Return how a launch's ranks exited, as agents have noted since they were last started."""
    logs = [read_events(run.node_events(node)) for node in range(nodes)]
    return [exit_ for events in logs for exit_ in _since(events, "agent", "worker_exit")]


def _since(events: Iterable[Event], start: EventKind, kind: EventKind) -> list[Event]:
    """The events of one kind since the last start."""
    found: list[Event] = []
    for event in events:
        if event["event"] == start:
            found = []
        elif event["event"] == kind:
            found.append(event)
    return found


def _limit_hint(run: RunDir, code: int) -> str:
    """Name the limit on memory: what a C library cannot get makes it abort, without a word."""
    if code not in (-signal.SIGABRT, -signal.SIGSEGV) or not run.spec_file.exists():
        return ""
    from drumline.spec.load import read_run_spec

    limit = read_run_spec(run).memory_bytes
    return "" if limit is None else f" (memory_bytes={limit} may be too little for it)"


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


def describe_exit(code: int) -> str:
    """Say how a process has ended: `exited with code 3`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
