"""Printing a run's result, for people and as JSON; all of it read back from the run directory."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console

from drumline.core.errors import RunDirError
from drumline.core.rundir import RunDir
from drumline.report.ledger.accounts import compute_ledger
from drumline.report.ledger.bubble import measure_bubble
from drumline.report.tables import ledger_table, summary_table
from drumline.spec.run_spec import RunSpec


def print_result(run: RunDir, spec: RunSpec, *, as_json: bool) -> None:
    """Print summary and ledger of a finished run, for people or as JSON."""
    summary = run.read_json("summary.json")
    if summary is None:
        raise RunDirError(f"{run.path} has no summary.json: the run has not finished")
    events = run.read_rank_events(spec.world_size)
    ledger, bubble = compute_ledger(events), measure_bubble(events, spec.axes)
    if as_json:
        more = {} if bubble is None else {"bubble": asdict(bubble)}
        print_json({**summary, "ledger": ledger.to_json(), **more, "run_dir": str(run.path)})
        return
    console = Console()
    console.print(ledger_table(ledger, nodes=spec.nodes))
    if bubble is not None:
        console.print(str(bubble), highlight=False)
    console.print()
    console.print(summary_table(summary, str(run.path)))


def print_json(document: Any) -> None:
    """Print a command's result as one JSON document on stdout."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_text(console: Console, text: str) -> None:
    """Print text to the console as it is: not marked up, not highlighted, not broken."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
