"""`drumline runs`, `show` and `trace`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drumline.cli.app import print_json, print_text
from drumline.core.errors import DrumlineError, UsageError
from drumline.core.formatting import counted, format_bytes, format_metric
from drumline.core.rundir import EventLog, RunDir, list_runs
from drumline.core.task import MODULE
from drumline.launcher.runs import RUNS, state_of
from drumline.report.ledger.perfetto import build_trace
from drumline.report.runs.record import RunRecord, read_record
from drumline.report.tables import (
    Accounts,
    coverage_table,
    metrics_of,
    narrow_table,
    summary_table,
)
from drumline.spec.load import read_run_spec

_SHOWN = 20  # steps of a trace, where the user does not say which


def runs_command(*, as_json: bool) -> None:
    """Run `drumline runs`: list the runs under ./runs."""
    rows = [_describe(run) for run in list_runs(RUNS)]
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    console = Console()
    if not rows:
        console.print(f"no runs in {RUNS.absolute()}; make one with: drumline train")
        return
    console.print(_runs_table(rows))
    for row in rows:
        if row.state.startswith("unreadable: "):
            console.print(f"{row.run} is {row.state}", markup=False, highlight=False)


def _runs_table(rows: list[RunListing]) -> Table:
    """Make the list fit a narrow terminal: long names are folded, numbers never.

    The last column is the first metric of a run that has one, else its state.
    """
    table = narrow_table(gap=1)
    table.add_column("run", overflow="fold")
    table.add_column("started", no_wrap=True)
    table.add_column("model, data", overflow="fold")
    table.add_column("strategy", no_wrap=True)
    for name in ("ranks", "steps", "result"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = (
            row.run,
            row.started[len("2025-") :],
            ", ".join(filter(None, (row.model, row.data))),
            row.strategy,
            str(row.world_size or ""),
            str(row.steps or ""),
            row.result or row.state.partition(":")[0],
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def show_command(name: str, *, as_json: bool) -> None:
    """Run `drumline show`: show one run from its directory."""
    run = RunDir.open(name, root=RUNS)
    record = read_record(run)
    if record.spec is None and not record.script:
        read_run_spec(run)  # what is wrong with it is its error
    for document in ("summary.json", "coverage.json"):
        run.read_json(document)  # likewise
    accounts = Accounts.of(record)
    if as_json:
        print_json(_document(record, accounts))
        return
    console = Console()
    if accounts.told:
        console.print(accounts.table())
    if record.coverage is not None:
        console.print(coverage_table(record.coverage), "")
    if record.done:
        console.print(summary_table(record.result, str(run.path)))
    else:
        state, why = state_of(run)
        did = f" ran {' '.join(record.script)}" if record.script else ""
        said = f" ({why})" if why else ""
        text = f"{run.path.name}{did}: {state}{said}; its logs are in {run.logs}"
        console.print(text, markup=False, highlight=False)


def _document(record: RunRecord, accounts: Accounts) -> dict[str, Any]:
    """Return all of a run that `drumline show --json` prints."""
    what: dict[str, Any]
    if record.spec is not None:
        what = {"spec": record.spec.model_dump(mode="json")}
    else:
        what = {"script": record.script, "state": state_of(RunDir(record.path))[0]}
    return {
        **(record.result or {"name": record.name, "world_size": len(record.logs)}),
        **what,
        **accounts.to_json(),
        "collectives": [asdict(kind) for kind in record.collectives],
        "coverage": record.coverage,
        "run_dir": str(record.path),
    }


@dataclass
class RunListing:
    """A run in the list, as far as its directory tells."""

    run: str
    started: str = ""
    model: str = ""
    """or the script that ran"""
    data: str = ""
    strategy: str = ""
    world_size: int | None = None
    steps: int | None = None
    accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: str = ""

    @property
    def result(self) -> str:
        """The first metric, with its name unless it is the accuracy; empty without any."""
        name, value = next(iter(self.metrics.items()), ("", None))
        if value is None:
            return ""
        return format_metric(name, value) + ("" if name == "accuracy" else f" {name}")


def _name_script(script: list[str]) -> str:
    """Name what ran without its folder and arguments: `train.py`, or `-m package.train`."""
    return " ".join(script[:2]) if script[0] == MODULE else Path(script[0]).name


def _describe(run: RunDir) -> RunListing:
    row = RunListing(run.path.name)
    try:
        manifest = run.read_json("manifest.json") or {}
        row.started = manifest.get("started", "")[:16].replace("T", " ")
        if "script" in manifest:
            row.model, row.world_size = _name_script(manifest["script"]), run.count_ranks() or None
        else:
            spec = read_run_spec(run)
            row.model, row.data = spec.model.name, spec.data.name
            row.strategy, row.world_size = spec.strategy.kind, spec.world_size
        summary = run.read_json("summary.json") or {}
        row.state = state_of(run)[0]
    except DrumlineError as error:
        row.state = f"unreadable: {error.message.splitlines()[0]}"
        return row
    row.steps, row.accuracy = summary.get("steps"), summary.get("accuracy")
    row.metrics = metrics_of(summary)
    row.world_size = summary.get("world_size", row.world_size)
    return row


def trace_command(name: str, *, steps: str | None, out: Path | None) -> None:
    """Run `drumline trace`: write the trace of some steps of a run."""
    run = RunDir.open(name, root=RUNS)
    logs = run.rank_logs(run.count_ranks())
    rank_0 = (event for log in logs[:1] for event in log.outlines())
    numbers = [event["step"] for event in rank_0 if event["event"] == "step"]
    if numbers:
        first, last = _parse(steps) if steps else (numbers[0], numbers[0] + _SHOWN - 1)
        shown = _say_steps(run, numbers, first, last)
        trace = build_trace(logs, first=first, last=last)
    else:
        trace, shown = _trace_without_steps(run, logs, steps)
    path, text = out or run.path / "trace.json", json.dumps(trace)
    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give --out FILE") from None
    print_text(
        Console(),
        f"{path} ({format_bytes(len(text))}): {shown} of {counted(len(logs), 'rank')} on one "
        f"clock; open it in Perfetto (ui.perfetto.dev) or chrome://tracing",
    )


def _say_steps(run: RunDir, numbers: list[int], first: int, last: int) -> str:
    """Say which of a run's steps are in the trace; a UsageError if none is."""
    if not any(first <= number <= last for number in numbers):
        raise UsageError(
            f"{run.path.name} has the steps {numbers[0]} to {numbers[-1]}, not {first} to {last}; "
            f"give --steps {numbers[0]}-{min(numbers[-1], numbers[0] + _SHOWN - 1)}"
        )
    return f"steps {max(first, numbers[0])} to {min(last, numbers[-1])}"


def _trace_without_steps(
    run: RunDir, logs: list[EventLog], steps: str | None
) -> tuple[dict[str, object], str]:
    """Trace the first seconds of a script that makes no steps."""
    if not any(event["event"] == "collectives" for log in logs for event in log.outlines()):
        raise UsageError(f"{run.path.name} has made no step yet; start it, or name another run")
    if steps:
        raise UsageError(f"{run.path.name} has no steps, only collectives; leave --steps out")
    return build_trace(logs, seconds=_SHOWN), f"the collectives of the first {_SHOWN} s"


def _parse(steps: str) -> tuple[int, int]:
    first, _, last = steps.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(first) > int(last or first):
        raise UsageError(f"--steps {steps} is not a range; write e.g. --steps 5-10")
    return int(first), int(last or first)
