"""Exit reports: how a node's ranks and agent ended, carried to the leader.

Ranks write their errors into the run directory of their own node. The leader collects them into its
own, so that `drumline.launch.outcome` finds the first failing rank among all.
"""

from __future__ import annotations

from pathlib import Path

from drumline.core.errors import DrumlineError
from drumline.core.events import Event, EventWriter, read_events
from drumline.core.rundir import RunDir
from drumline.launch.outcome import worker_exits

_REPORTED = frozenset({"start", "error", "agent", "worker_exit", "stopped"})
ExitReports = dict[str, list[Event]]
"""by file: `rank-3` or `node-1`"""


def collect(run: RunDir, *, node: int, workers: int, last_words: Path | None) -> ExitReports:
    """Read what happened on a node.

    `last_words`: where ranks left errors that they could not write to the run directory.
    """
    names = [f"rank-{rank}" for rank in range(node * workers, (node + 1) * workers)]
    folders = [run.events, *filter(None, [last_words])]
    reports: ExitReports = {}
    for name in (*names, f"node-{node}"):
        events = [e for folder in folders for e in read_events(folder / f"{name}.jsonl")]
        reports[name] = [event for event in events if event["event"] in _REPORTED]
    return reports


def note(run: RunDir, reports: ExitReports, *, ahead_s: float) -> None:
    """Write another node's exit reports into the leader's run directory, on the leader's clock."""
    for name, events in reports.items():
        kind, _, number = name.partition("-")
        if kind in ("rank", "node") and number.isdecimal():
            with EventWriter(run.events / f"{name}.jsonl") as writer:
                for event in events:
                    fields = {key: value for key, value in event.items() if key != "event"}
                    if "time" in fields:
                        fields["time"] -= ahead_s
                    writer.write(event["event"], **fields)


def is_explained(run: RunDir, world_size: int) -> bool:
    """Whether a rank has reported an error that is no consequence of another rank's."""
    logs = run.read_rank_events(world_size)
    return any(e["event"] == "error" and not e["consequence"] for log in logs for e in log)


def exit_code_of(run: RunDir, error: DrumlineError, nodes: int) -> int:
    """Return what the job exits with: what the failing rank did, 128 + n for a signal n."""
    for event in worker_exits(run, nodes):
        if event["rank"] == error.fields.get("rank") and event["exit_code"]:
            code = int(event["exit_code"])
            return code if code > 0 else 128 - code
    return error.exit_code
