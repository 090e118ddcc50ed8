"""`drumline bench aggregation`: strategies on even nodes, and on the same with a bottleneck.

Each situation is a start of its own: nodes without a bottleneck, with a slow CPU, with a slow link.
The steps that ranks log are put together by the ledger of training, so wait and transfer mean the
same here: before the last rank has arrived at a bucket, and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.bench.case_runner import BenchResult, describe_machine
from drumline.bench.specs import AggregationSpec
from drumline.core.nodes import NodePlan
from drumline.core.rundir import Event
from drumline.launcher.probe import Watch, launched_probe, watch_part
from drumline.report.intervals import quartiles
from drumline.report.ledger.accounts import compute_ledger
from drumline.spec.run_spec import TEXT_MODELS

_BUDGET_S = 8.0
"""for the rounds of one situation, where the user does not say how many"""


@dataclass(frozen=True, kw_only=True)
class AggregationRow:
    """What a step of a strategy is made of on one rank, in one situation; means over steps."""

    situation: str
    kind: str
    rank: int
    node: int
    compute_ms: float
    wait_ms: float
    """at a bucket, while another rank had not arrived"""
    transfer_ms: float
    """after the last rank had arrived"""
    step_ms: float
    """median of the slowest rank's step, the same for all ranks, as are the quartiles"""
    step_ms_low: float | None = None
    step_ms_high: float | None = None
    """None: the row is of an older version"""
    over_even: float | None = None
    """this rank's wait and transfer over those without a bottleneck"""


@dataclass(frozen=True, kw_only=True)
class AggregationResult(BenchResult[AggregationRow]):
    """All that a bench of aggregation found out."""

    bench = "aggregation"
    spec: AggregationSpec
    situations: Mapping[str, Sequence[NodePlan]]
    bucket_bytes: list[int]
    steps: dict[str, int]
    """how many steps of each strategy were counted, by situation"""
    rows: list[AggregationRow]
    machine: Mapping[str, object]


def run_aggregation(spec: AggregationSpec, *, out: Path | None, watch: Watch) -> AggregationResult:
    """Run `bench aggregation`; blocks. `out` keeps the run directory of each situation.

    Raises:
        DrumlineError: a rank failed, or a strategy gave a wrong average.
    """
    rows: list[AggregationRow] = []
    buckets: list[int] = []
    steps: dict[str, int] = {}
    keys = {"model", "batch", "bucket_bytes", "kinds", "rounds", "timeout_s"}
    request = {
        **spec.model_dump(mode="json", include=keys),
        "text": spec.model.name in TEXT_MODELS,
        "budget_s": _BUDGET_S,
    }
    for number, (name, plans) in enumerate(spec.situations.items()):
        with launched_probe(
            "drumline.probe.aggregation",
            request,
            ranks=spec.nodes * spec.workers,
            out=None if out is None else out / name.replace(" ", "-"),
            plans=plans,
            watch=watch_part(watch, name, number=number, of=len(spec.situations)),
        ) as answers:
            logs = [answer["steps"] for answer in answers]
            rows += build_rank_rows(name, logs, plans)
            buckets = answers[0]["buckets"]
            steps[name] = len(logs[0][spec.kinds[0]]) - 1
    return AggregationResult(
        spec=spec,
        situations=spec.situations,
        bucket_bytes=buckets,
        steps=steps,
        rows=compare_with_even(rows),
        machine=describe_machine(),
    )


def build_rank_rows(
    situation: str, logs: Sequence[Mapping[str, Sequence[Event]]], plans: Sequence[NodePlan]
) -> list[AggregationRow]:
    """Build `bench aggregation`'s rows: what each rank's steps are made of, by strategy."""
    rows = []
    for kind in logs[0]:
        steps = [log[kind] for log in logs]
        ledger = compute_ledger(steps)
        counted = [[step["total"] for step in log[1:] or log] for log in steps]
        slowest = [max(totals) / 1e6 for totals in zip(*counted, strict=True)]  # all begin at once
        low, median, high = quartiles(slowest)
        per_step = 1000 / max(1, ledger.steps)
        rows += [
            AggregationRow(
                situation=situation,
                kind=kind,
                rank=row.rank,
                node=row.rank * max(1, len(plans)) // len(logs),
                compute_ms=row.compute_s * per_step,
                wait_ms=row.wait_s * per_step,
                transfer_ms=row.transfer_s * per_step,
                step_ms=median,
                step_ms_low=low,
                step_ms_high=high,
            )
            for row in ledger.ranks
        ]
    return rows


def compare_with_even(rows: Sequence[AggregationRow]) -> list[AggregationRow]:
    """Add to `bench aggregation`'s rows how much longer ranks communicate than on even nodes."""
    even = {
        (row.kind, row.rank): row.wait_ms + row.transfer_ms
        for row in rows
        if row.situation == "even"
    }
    found = []
    for row in rows:
        before = even.get((row.kind, row.rank), 0.0)
        ratio = (row.wait_ms + row.transfer_ms) / before if before else None
        found.append(replace(row, over_even=ratio))
    return found
