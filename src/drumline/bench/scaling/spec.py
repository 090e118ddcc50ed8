"""`drumline bench scaling`: one model, how many ranks train it by which strategies, and the runs.

    strong    the batch of all ranks together stays       each rank has less and less to do
    weak      the batch of each rank stays                all ranks together do more and more

At the smallest count both are the same, so it is measured once, and the others are held against it.

    series              counts of workers 1, 2, 4
    strong, ddp          ╭─ 2   4
    strong, ring     1 ──┼─ 2   4        one rank averages with nobody: all series begin with
    weak, ddp            ├─ 2   4        the same run, of the plain loop
    weak, ring           ╰─ 2   4

Where the smallest count has several ranks, each strategy has its own; strong and weak share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator

from drumline.bench.case_runner import RunCase
from drumline.bench.specs import Each, Listed, Nodes, TrainingBench, Workers, check_names
from drumline.core.processes import count_cores
from drumline.spec.parts import ClashError, check_slow_nodes
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import DATA_KINDS, SPLIT_KINDS

Mode = Literal["strong", "weak"]
MODES: tuple[Mode, ...] = get_args(Mode)
ALONE = "alone"
"""instead of a strategy, where one rank has nobody to average with"""
_MOST_BY_ITSELF = 8
"""ranks, where the user does not say how many"""
Rising = AfterValidator(lambda counts: tuple(sorted(set(counts))))


@dataclass(frozen=True, order=True)
class Count:
    """So many ranks, and where."""

    nodes: int
    workers: int
    """on each node"""

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return self.nodes * self.workers


class ScalingSpec(TrainingBench):
    """`drumline bench scaling`: how many ranks, what stays the same, by which strategies."""

    workers: Annotated[Listed[Workers], Rising] = (1, 2)
    """processes per node, e.g. 1,2,4 (default: 1, 2, 4, 8 as far as there are cores; with several
    nodes, 1 on each)"""
    nodes: Annotated[Listed[Nodes], Rising] = (1,)
    """simulated nodes, e.g. 1,2,4; each gets an address and a link of its own"""
    mode: Each[Mode] = MODES
    """strong: the batch of all ranks together stays. weak: the batch of each rank stays"""
    kinds: Each[str] = ("ddp", "chunked_ring")
    """the strategies"""
    batch: int = Field(default=128, ge=1, le=65536)
    """samples per step over all ranks together, at the smallest count"""
    repeats: int = Field(default=3, ge=1, le=100)
    """how often each is measured; all are, before any is measured again"""
    threads: int = Field(default=1, ge=1, le=1024)
    """CPU threads of a rank, the same at every count"""

    @property
    def counts(self) -> tuple[Count, ...]:
        """All that are measured, the smallest first."""
        return tuple(Count(nodes, workers) for nodes in self.nodes for workers in self.workers)

    @property
    def base(self) -> Count:
        """The smallest, which all others are held against."""
        return self.counts[0]

    @property
    def varies(self) -> Literal["workers", "nodes"]:
        """What there are more and more of."""
        return "nodes" if len(self.nodes) > 1 else "workers"

    @classmethod
    def _default_workers(cls) -> object:
        """1, 2, 4, … as far as there are cores, but 2 in any case."""
        cores = min(count_cores(), _MOST_BY_ITSELF)
        return [2**power for power in range(max(2, cores.bit_length()))]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.workers) > 1 and len(self.nodes) > 1:
            workers, nodes = (",".join(map(str, counts)) for counts in (self.workers, self.nodes))
            message = (
                f"workers and nodes both have several counts ({workers} and {nodes}), and one "
                f"study varies one of them; give the other one number, e.g. workers=1"
            )
            raise ClashError(message, "nodes", "workers")
        for kind in self.kinds:
            if kind in SPLIT_KINDS:
                raise ClashError(
                    f"{kind} splits the model, but scaling is about ranks that each have all of "
                    f"it; compare it with drumline bench model-parallel, and leave it out here",
                    "kinds",
                )
        check_names(self.kinds, DATA_KINDS, "strategy", "kinds")
        check_slow_nodes(max(self.nodes), self.link, self.slow_nodes)
        self._check_trained()
        self._check_batch()
        return self

    def _check_batch(self) -> None:
        base = self.base.ranks
        most = max(count.ranks for count in self.counts) if "strong" in self.mode else base
        self._check_samples(most, fewer=self.varies)
        if "weak" in self.mode and self.batch % base:
            message = (
                f"in weak scaling all ranks have as much to do at every count, but a batch of "
                f"{self.batch} does not share out to {base} ranks; set "
                f"batch={-(-self.batch // base) * base}, or mode=strong"
            )
            raise ClashError(message, "batch", "mode", "workers", "nodes")


@dataclass(frozen=True, kw_only=True)
class ScalingCase(RunCase):
    """One configuration in one round: so many ranks with so large a batch, by one strategy."""

    kind: str
    """the strategy, or ALONE"""
    mode: Mode | None
    """None: at the smallest count strong and weak are the same"""
    count: Count
    spec: RunSpec
    round: int = 0

    @property
    def name(self) -> str:
        """What people call the configuration: `strong ddp ×4`, `alone`."""
        ranks = None if self.kind == ALONE else f"×{self.count.ranks}"
        return " ".join(part for part in (self.mode, self.kind, ranks) if part)

    @property
    def label(self) -> str:
        """What people call the run: `strong ddp ×4, round 1`."""
        return f"{self.name}, round {self.round + 1}"


def plan_scaling(spec: ScalingSpec) -> list[ScalingCase]:
    """Lay out `bench scaling`'s configurations: by count, then mode, then strategy.

    Raises:
        SpecError: the keys make no run.
    """
    first = (ALONE,) if spec.base.ranks == 1 else spec.kinds
    cases = [_build_case(spec, kind, None, spec.base) for kind in first]
    for count in spec.counts[1:]:
        cases += [_build_case(spec, kind, mode, count) for mode in spec.mode for kind in spec.kinds]
    return cases


def plan_rounds(cases: Sequence[ScalingCase], repeats: int) -> list[ScalingCase]:
    """Put `bench scaling`'s runs in order: round by round, each round beginning elsewhere.

    So what disturbs the machine for a while hits all configurations alike, and none is always the
    first or always behind the same other one.
    """
    runs = []
    for number in range(repeats):
        first = number * len(cases) // repeats
        turn = [*cases[first:], *cases[:first]]
        runs += [replace(case, round=number) for case in turn]
    return runs


def _build_case(spec: ScalingSpec, kind: str, mode: Mode | None, count: Count) -> ScalingCase:
    strategy: dict[str, object] = {"kind": kind}
    if kind == ALONE:  # nothing is put into buckets, since nothing will be sent
        strategy = {"kind": "allreduce", "bucketed": False}
    weak_batch = spec.batch * count.ranks // spec.base.ranks
    run = spec.build_run(
        name=kind,
        batch=weak_batch if mode == "weak" else spec.batch,
        strategy=strategy,
        checkpoint={"every_steps": spec.steps},  # none between the steps that are timed
        threads=spec.threads,
        nodes=count.nodes,
        workers=count.workers,
    )
    return ScalingCase(kind=kind, mode=mode, count=count, spec=run)
