"""`drumline trace`."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.launch.creation import RUNS
from drumline.report.trace import build_trace
from drumline.spec.load import read_run_spec

_SHOWN = 20


def trace_command(name: str, *, steps: str | None, out: Path | None) -> None:
    """Write the trace of some steps of a run."""
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
    Console(soft_wrap=True).print(
        f"{path}: steps {max(first, numbers[0])} to {min(last, numbers[-1])} of {len(events)} "
        f"ranks on one clock; open it in Perfetto (ui.perfetto.dev) or chrome://tracing",
        markup=False,
        highlight=False,
    )


def _parse(steps: str) -> tuple[int, int]:
    first, _, last = steps.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(first) > int(last or first):
        raise UsageError(f"--steps {steps} is not a range; write e.g. --steps 5-10")
    return int(first), int(last or first)
