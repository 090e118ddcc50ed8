"""How a run ended: the failing rank first, the others' noise folded.

When one rank dies the others lose their connections and die too, often louder. Ranks write an error
event each; agents note exit codes of those that could not. The cause is the earliest error that is
not itself the consequence of a lost peer.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from drumline.core.errors import ERRORS, DrumlineError, WorkerError
from drumline.core.events import Event, read_events
from drumline.core.nodes import name_rank
from drumline.core.rundir import RunDir

_TRACEBACK_LINES = 40
Name = Callable[[int], str]
"""names a rank, with its node where there are several"""


def check_outcome(
    run: RunDir,
    *,
    world_size: int,
    exit_codes: list[int | None],
    last_words: Path | None = None,
    since: float = 0.0,
) -> None:
    """Return if every agent ended well.

    Args:
        run: the run.
        world_size: how many ranks it had.
        exit_codes: of the agents.
        last_words: where ranks left errors that they could not write to the run directory.
        since: when this launch began; what an earlier session has logged does not count.

    Raises:
        DrumlineError: what went wrong first, told by rank.
    """
    if all(code == 0 for code in exit_codes):
        return
    errors = _last_attempt_errors(run.read_rank_events(world_size))
    if last_words is not None:
        told = {error["rank"] for error in errors}
        elsewhere = [read_events(file) for file in last_words.glob("rank-*.jsonl")]
        errors += [e for e in _last_attempt_errors(elsewhere) if e["rank"] not in told]
    errors = sorted((e for e in errors if e["time"] >= since), key=lambda e: float(e["time"]))
    exits = _worker_exits(run, len(exit_codes))
    causes = [error for error in errors if not error["consequence"]]
    name = partial(name_rank, nodes=len(exit_codes), world_size=world_size)
    if causes:
        raise _explain(run, causes[0], name, others=len(errors) - len(causes))
    if any((code or 0) < 0 for code in exit_codes):
        raise _explain_agent(run, exit_codes, others=len(errors))
    reported = {error["rank"] for error in errors}
    silent = [event for event in exits if event["rank"] not in reported]
    if silent:
        raise _explain_exit(run, silent[0], name, others=len(errors))
    cut_off = _find_cut_off(errors)
    if cut_off is not None:
        raise _explain_cut(run, errors[0], cut_off, nodes=len(exit_codes), world_size=world_size)
    missing = sorted(set(range(world_size)) - reported)
    if errors and missing and errors[0].get("timed_out"):
        raise _explain_silence(run, errors[0], missing, name)
    if errors and missing:
        ranks = " or ".join(name(rank) for rank in missing)
        raise WorkerError(
            f"rank {ranks} ended without a word; {_fold(run, len(errors))}"
            f"its log is {run.rank_log(missing[0])}",
            rank=missing[0],
        )
    if errors:
        raise _explain(run, errors[0], name, others=len(errors) - 1)
    raise _explain_agent(run, exit_codes, others=0)


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


def _explain(run: RunDir, error: Event, name: Name, *, others: int) -> DrumlineError:
    rank = error["rank"]
    if error.get("expected"):
        return ERRORS.get(error["type"], DrumlineError)(error["message"], rank=rank)
    trace = error.get("traceback", "").rstrip().splitlines()
    if len(trace) > _TRACEBACK_LINES:
        trace = [trace[0], "  …", *trace[-_TRACEBACK_LINES:]]
    shown = "\n".join(f"  {line}" for line in trace)
    return WorkerError(
        f"rank {name(rank)} failed:\n{shown}\n{_fold(run, others)}its log is {run.rank_log(rank)}",
        rank=rank,
    )


def _explain_agent(run: RunDir, exit_codes: list[int | None], *, others: int) -> WorkerError:
    """Tell of an agent that ended: the one that was killed, or else failed."""
    ended = [(code, node) for node, code in enumerate(exit_codes) if code]
    code, node = min(ended, default=(None, 0))
    where = f" of node {node}" if len(exit_codes) > 1 else ""
    return WorkerError(
        f"the process that starts the ranks{where} ended with code {code} before any rank "
        f"failed; {_fold(run, others)}the logs are in {run.logs}"
    )


def _explain_exit(run: RunDir, event: Event, name: Name, *, others: int) -> WorkerError:
    rank, code = event["rank"], event["exit_code"]
    how = f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return WorkerError(
        f"rank {name(rank)} {how}{hint}; {_fold(run, others)}its log is {run.rank_log(rank)}",
        rank=rank,
    )


def _explain_silence(run: RunDir, error: Event, missing: list[int], name: Name) -> WorkerError:
    ranks = ", ".join(name(rank) for rank in missing)
    return WorkerError(
        f"rank {ranks} stopped answering: rank {error['rank']} waited for it until timeout_s was "
        f"over; its log is {run.rank_log(missing[0])}; raise timeout_s if it was only slow",
        rank=missing[0],
    )


def _find_cut_off(errors: list[Event]) -> int | None:
    """The simulated node that most ranks cannot reach; who is cut off reaches nobody else."""
    votes = Counter(node for error in errors for node in error.get("unreachable", ()))
    first = sorted(errors, key=lambda error: int(error["rank"]))
    order = [node for error in first for node in error.get("unreachable", ())]
    return max(order, key=lambda node: (votes[node], -order.index(node)), default=None)


def _explain_cut(
    run: RunDir, error: Event, node: int, *, nodes: int, world_size: int
) -> WorkerError:
    workers = world_size // nodes
    ranks = ", ".join(str(rank) for rank in range(node * workers, (node + 1) * workers))
    return WorkerError(
        f"node {node} (rank {ranks}) cannot be reached any more: its link is cut; the others "
        f"waited until timeout_s was over; the logs are in {run.logs}",
        rank=node * workers,
        node=node,
        seen_by=error["rank"],
    )


def _fold(run: RunDir, others: int) -> str:
    if others < 1:
        return ""
    ranks = "one other rank" if others == 1 else f"{others} other ranks"
    return f"{ranks} then lost the connection (logs in {run.logs}); "


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
