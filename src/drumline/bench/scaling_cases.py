"""The cases of `drumline bench scaling`: training runs that differ in how many ranks share them.

    series              counts of workers 1, 2, 4
    strong, ddp          ╭─ 2   4
    strong, ring     1 ──┼─ 2   4        one rank averages with nobody: all series begin with
    weak, ddp            ├─ 2   4        the same run, of the plain loop
    weak, ring           ╰─ 2   4

Where the smallest count has several ranks, each strategy has its own; strong and weak share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drumline.core.scaling_bench import Count, Mode, ScalingSpec
from drumline.spec.load import validate_spec
from drumline.spec.run_spec import RunSpec

ALONE = "alone"
"""instead of a strategy, where one rank has nobody to average with"""


@dataclass(frozen=True, kw_only=True)
class ScalingCase:
    """One configuration: so many ranks with so large a batch, by one strategy."""

    kind: str
    """the strategy, or ALONE"""
    mode: Mode | None
    """None: at the smallest count strong and weak are the same"""
    count: Count
    spec: RunSpec

    @property
    def label(self) -> str:
        """What people call it: `strong ddp ×4`, `alone`."""
        ranks = None if self.kind == ALONE else f"×{self.count.ranks}"
        return " ".join(word for word in (self.mode, self.kind, ranks) if word)

    def serves(self, mode: Mode, kind: str) -> bool:
        """Whether it belongs to a series."""
        return self.mode in (mode, None) and self.kind in (kind, ALONE)


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A case in one of the rounds: a run of its own."""

    case: ScalingCase
    round: int

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.case.label}, round {self.round + 1}"

    @property
    def slug(self) -> str:
        """What its run directory is called: `strong-ddp-x4-round-1`."""
        return self.label.replace(",", "").replace(" ", "-").replace("×", "x")

    @property
    def spec(self) -> RunSpec:
        """The run that it is."""
        return self.case.spec


def plan_scaling(spec: ScalingSpec) -> list[ScalingCase]:
    """Lay out the configurations, each once: by count, then mode, then strategy.

    Raises:
        SpecError: the words make no run.
    """
    alone = spec.base.ranks == 1
    cases = [_case(spec, kind, None, spec.base) for kind in ((ALONE,) if alone else spec.kinds)]
    for count in spec.counts[1:]:
        cases += [_case(spec, kind, mode, count) for mode in spec.mode for kind in spec.kinds]
    return cases


def plan_rounds(cases: Sequence[ScalingCase], repeats: int) -> list[Repeat]:
    """Put the runs in order: round by round, each round beginning elsewhere.

    So what disturbs the machine for a while hits all configurations alike, and none is always the
    first or always behind the same other one.
    """
    runs = []
    for number in range(repeats):
        first = number * len(cases) // repeats
        turn = [*cases[first:], *cases[:first]]
        runs += [Repeat(case=case, round=number) for case in turn]
    return runs


def _case(spec: ScalingSpec, kind: str, mode: Mode | None, count: Count) -> ScalingCase:
    strategy: dict[str, Any] = {"kind": kind}
    if kind == ALONE:  # nothing is put into buckets, since nothing will be sent
        strategy = {"kind": "allreduce", "bucketed": False}
    batch = spec.batch_of(mode or "strong", count)
    run = validate_spec(
        {
            "name": kind,
            "model": spec.model.model_dump(mode="json"),
            "data": {**spec.data.model_dump(mode="json"), "batch": batch},
            "strategy": strategy,
            "max_steps": spec.steps,
            "checkpoint": {"every_steps": spec.steps},  # none between the steps that are timed
            "evaluate": False,
            "threads": spec.threads,
            "timeout_s": spec.timeout_s,
            "device": spec.device,
            "backend": "auto" if kind == ALONE else spec.backend,
            "workers": count.workers,
            **_nodes(spec, count.nodes),
        }
    )
    return ScalingCase(kind=kind, mode=mode, count=count, spec=run)


def _nodes(spec: ScalingSpec, nodes: int) -> dict[str, Any]:
    """Where a case runs: one node has no link, and only nodes that are there can be slow."""
    if nodes == 1:
        return {"nodes": 1}
    return {
        "nodes": nodes,
        "link": spec.link.model_dump(mode="json"),
        "slow_nodes": {
            node: slow.model_dump(mode="json")
            for node, slow in spec.slow_nodes.items()
            if node < nodes
        },
    }
