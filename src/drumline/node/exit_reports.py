"""Exit reports: how a node's ranks and agent ended, carried to the leader.

Ranks write their errors into the run directory of their own node. The leader collects them into its
own, so that `drumline.launch.outcome` finds the first failing rank among all.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drumline.core.errors import DrumlineError
from drumline.core.rundir import Event, EventWriter, RunDir, read_events
from drumline.launch.outcome import check_outcome

_TOLD = frozenset({"start", "error", "agent", "worker_exit", "stopped"})
ExitReports = dict[str, list[Event]]
"""by file: `rank-3` or `node-1`"""


def collect(run: RunDir, *, node: int, workers: int, last_words: Path | None) -> ExitReports:
    """Read what happened on a node.

    `last_words`: where ranks left errors that they could not write to the run directory.
    """
    names = [f"rank-{rank}" for rank in range(node * workers, (node + 1) * workers)]
    folders = [run.events, *filter(None, [last_words])]
    told: ExitReports = {}
    for name in (*names, f"node-{node}"):
        events = [e for folder in folders for e in read_events(folder / f"{name}.jsonl")]
        told[name] = [event for event in events if event["event"] in _TOLD]
    return told


def note(run: RunDir, told: ExitReports, *, ahead_s: float) -> None:
    """Write another node's exit reports into the leader's run directory, on the leader's clock."""
    for name, events in told.items():
        if name.partition("-")[0] in ("rank", "node") and name.partition("-")[2].isdecimal():
            with EventWriter(run.events / f"{name}.jsonl") as writer:
                for event in events:
                    fields = {key: value for key, value in event.items() if key != "event"}
                    if "time" in fields:
                        fields["time"] -= ahead_s
                    writer.write(event["event"], **fields)


def judge(
    run: RunDir,
    *,
    nodes: int,
    workers: int,
    exit_codes: list[int | None],
    last_words: Path,
    script: bool,
) -> DrumlineError | None:
    """Tell what went wrong first, over all nodes; None where nothing did.

    `run`: the leader's run directory, with what the others have told.
    `last_words`: where the leader's ranks left what they could not write there.
    `script`: whether ranks ran a script of the user's.
    """
    try:
        check_outcome(
            run,
            world_size=nodes * workers,
            exit_codes=exit_codes,
            last_words=last_words,
            timeout="the script's own timeout" if script else "timeout_s",
        )
    except DrumlineError as error:
        return error
    return None


def is_explained(run: RunDir, world_size: int) -> bool:
    """Whether a rank has told of an error that is no other rank's doing."""
    logs = run.read_rank_events(world_size)
    return any(e["event"] == "error" and not e["consequence"] for log in logs for e in log)


def exit_code_of(run: RunDir, error: DrumlineError, nodes: int) -> int:
    """Return what the job exits with: what the failing rank did, 128 + n for a signal n."""
    rank: Any = error.fields.get("rank")
    for event in _exits(run, nodes):
        if event["rank"] == rank and event["exit_code"]:
            code = int(event["exit_code"])
            return code if code > 0 else 128 - code
    return error.exit_code


def _exits(run: RunDir, nodes: int) -> Iterable[Event]:
    for node in range(nodes):
        for event in read_events(run.node_events(node)):
            if event["event"] == "worker_exit":
                yield event
