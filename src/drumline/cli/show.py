"""`drumline runs`, `show` and `trace`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drumline.cli.app import print_json, print_text
from drumline.core.errors import DrumlineError, UsageError
from drumline.core.rundir import RunDir, list_runs
from drumline.launch.runs import RUNS, state_of
from drumline.report.ledger.perfetto import build_trace
from drumline.report.tables import Accounts, coverage_table, narrow_table, summary_table
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

    The last column is the test accuracy of a run that has one, else its state.
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
            row.state.partition(":")[0] if row.accuracy is None else f"{row.accuracy:.2%}",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def show_command(name: str, *, as_json: bool) -> None:
    """Run `drumline show`: show one run from its directory."""
    run = RunDir.open(name, root=RUNS)
    if not run.spec_file.exists():
        _show_script(run, as_json=as_json)
        return
    spec = read_run_spec(run)
    summary = run.read_json("summary.json")
    coverage = run.read_json("coverage.json")
    accounts = Accounts.read(run, spec)
    if as_json:
        print_json(
            {
                **(summary or {"name": run.path.name, "world_size": spec.world_size}),
                "spec": spec.model_dump(mode="json"),
                **accounts.to_json(),
                "coverage": coverage,
                "run_dir": str(run.path),
            }
        )
        return
    console = Console()
    if accounts.ledger.steps:
        console.print(accounts.table())
    if coverage is not None:
        console.print(coverage_table(coverage), "")
    if summary is not None:
        console.print(summary_table(summary, str(run.path)))
    else:
        state, why = state_of(run)
        said = f" ({why})" if why else ""
        text = f"{run.path.name}: {state}{said}; its logs are in {run.logs}"
        console.print(text, markup=False, highlight=False)


def _show_script(run: RunDir, *, as_json: bool) -> None:
    state, why = state_of(run)
    manifest, summary = run.read_json("manifest.json") or {}, run.read_json("summary.json") or {}
    if as_json:
        script = {"script": manifest.get("script"), "state": state, "run_dir": str(run.path)}
        print_json({**summary, **script})
        return
    shown = " ".join(manifest.get("script", []))
    said = f": {why}" if why else ""
    text = f"{run.path.name} ran {shown}: {state}{said}; its logs are in {run.logs}"
    Console().print(text, markup=False, highlight=False)


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
    state: str = ""


def _describe(run: RunDir) -> RunListing:
    row = RunListing(run.path.name)
    try:
        manifest = run.read_json("manifest.json") or {}
        row.started = manifest.get("started", "")[:16].replace("T", " ")
        if "script" in manifest:
            row.model = Path(manifest["script"][0]).name
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
    row.world_size = summary.get("world_size", row.world_size)
    return row


def trace_command(name: str, *, steps: str | None, out: Path | None) -> None:
    """Run `drumline trace`: write the trace of some steps of a run."""
    run = RunDir.open(name, root=RUNS)
    if not run.spec_file.exists():
        raise UsageError(f"{run.path.name} ran a script of its own, which notes no steps")
    events = run.read_rank_events(read_run_spec(run).world_size)
    numbers = [event["step"] for event in events[0] if event["event"] == "step"]
    if not numbers:
        raise UsageError(f"{run.path.name} has made no step yet; start it, or name another run")
    first, last = _parse(steps) if steps else (numbers[0], numbers[0] + _SHOWN - 1)
    if not any(first <= number <= last for number in numbers):
        raise UsageError(
            f"{run.path.name} has the steps {numbers[0]} to {numbers[-1]}, not {first} to {last}; "
            f"give --steps {numbers[0]}-{min(numbers[-1], numbers[0] + _SHOWN - 1)}"
        )
    path = out or run.path / "trace.json"
    try:
        path.write_text(json.dumps(build_trace(events, first=first, last=last)))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; give --out FILE") from None
    print_text(
        Console(),
        f"{path}: steps {max(first, numbers[0])} to {min(last, numbers[-1])} of {len(events)} "
        f"ranks on one clock; open it in Perfetto (ui.perfetto.dev) or chrome://tracing",
    )


def _parse(steps: str) -> tuple[int, int]:
    first, _, last = steps.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(first) > int(last or first):
        raise UsageError(f"--steps {steps} is not a range; write e.g. --steps 5-10")
    return int(first), int(last or first)
