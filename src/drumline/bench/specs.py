"""The specs of benches, with the keys of a `RunSpec`: where they run, and what they measure.

Those of the benches that train (`TrainingBench`), model-parallel and scaling, are in their folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from drumline.core.formatting import nearest, parse_bytes
from drumline.core.nodes import MAX_NODES, NodePlan
from drumline.core.task import MAX_WORKERS
from drumline.schedules.collectives import COMPOSED, FLOAT32_BYTES, NATIVE, PLANS
from drumline.spec.data import DataSpec
from drumline.spec.load import validate_spec
from drumline.spec.parts import (
    Bytes,
    ClashError,
    LinkSpec,
    ModelSpec,
    SlowNode,
    SpecPart,
    check_node_count,
    check_slow_nodes,
    one_word,
    plan_nodes,
)
from drumline.spec.run_spec import BUILTIN_MODELS, TEXT_MODELS, RunSpec, reads
from drumline.spec.strategy import DATA_KINDS

MAX_RANKS = 16
"""the values that ranks bring are powers of two, whose sums float32 holds exactly"""
SMALLEST, LARGEST = 4, 2**26
KINDS = tuple(kind for kind in DATA_KINDS if kind != "ddp")
"""strategies that are aggregators; ddp has its own buckets"""
_JOINS = {
    "shm": "ranks that share memory",
    "mpi": "one mpirun's ranks",
    "nccl": "ranks that have GPUs of their own",
}
_SLOW_CPU = 0.25
_SLOWER_LINK = 10
_BOTTLENECKS: dict[str, Callable[[SlowNode], SlowNode]] = {
    "slow cpu": lambda slow: SlowNode(cpu=slow.cpu),
    "slow link": lambda slow: SlowNode(rate=slow.rate, delay_ms=slow.delay_ms),
}


def _split(value: object) -> object:
    """Let a list be written with commas between its items: `sizes=64KiB,32MiB`."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return [value] if isinstance(value, int | float) else value


def _check_size(value: object) -> int:
    size = parse_bytes(value)
    if not SMALLEST <= size <= LARGEST or size % FLOAT32_BYTES:
        raise ValueError(f"{value!r}: sizes go from 4 B to 64 MiB, in whole float32 of 4 bytes")
    return size


def check_names(given: Iterable[str], known: Iterable[str], what: str, key: str) -> None:
    """Refuse names in a bench's spec that are not known.

    Raises:
        ClashError: names those that there are, and the nearest.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = nearest(name, known, "name one of them")
            raise ClashError(f"no {what} {name!r} among {', '.join(known)}; {hint}", key)


def check_model(model: ModelSpec) -> None:
    """Refuse a bench's model that is neither built in nor `package.module:factory`."""
    if ":" not in model.name:
        check_names([model.name], BUILTIN_MODELS, "model", "model.name")


def _check_kinds(kinds: tuple[str, ...]) -> tuple[str, ...]:
    check_names(kinds, KINDS, "strategy", "kinds")
    return kinds


T = TypeVar("T")
Listed = Annotated[tuple[T, ...], BeforeValidator(_split), Field(min_length=1)]
"""written with commas between the items"""
Each = Annotated[Listed[T], AfterValidator(lambda items: tuple(dict.fromkeys(items)))]
"""a list whose items count once"""
Size = Annotated[int, BeforeValidator(_check_size, json_schema_input_type=int | str)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Nodes = Annotated[int, AfterValidator(check_node_count)]
Link = Annotated[LinkSpec, one_word(LinkSpec, "rate")]
Model = Annotated[ModelSpec, one_word(ModelSpec, "name")]
Data = Annotated[DataSpec, one_word(DataSpec, "name")]


class SimulatedNodes(SpecPart):
    """Where the ranks of a bench or a lab are."""

    nodes: Nodes = Field(default=1, json_schema_extra={"minimum": 1, "maximum": MAX_NODES})
    """simulated nodes: more than one, and each gets an address and a link of its own"""
    link: Link = LinkSpec()
    """the link of each simulated node, e.g. {rate: 1gbit}"""

    @model_validator(mode="after")
    def _nodes_fit(self) -> Self:
        check_slow_nodes(self.nodes, self.link, {})
        return self


class BenchLinks(SpecPart):
    """What joins the ranks of a bench."""

    link: Link = LinkSpec()
    """the link of each simulated node, e.g. {rate: 1gbit}"""
    slow_nodes: dict[int, SlowNode] = Field(default_factory=dict)
    """nodes to slow on purpose, e.g. {2: {rate: 100mbit, cpu: 0.5}}"""
    timeout_s: float = Field(default=60.0, ge=1, le=86400)
    """how long a rank waits for the others before it gives up"""


class BenchPlace(SimulatedNodes, BenchLinks):
    """Where a bench runs; its check of the nodes is in the place of `SimulatedNodes`' own."""

    @model_validator(mode="after")
    def _nodes_fit(self) -> Self:
        check_slow_nodes(self.nodes, self.link, self.slow_nodes)
        return self

    def _check_ranks(self, workers: int) -> None:
        ranks = self.nodes * workers
        if not 2 <= ranks <= MAX_RANKS:
            message = (
                f"nodes={self.nodes} workers={workers} makes {ranks} ranks, but communication "
                f"needs 2, and {MAX_RANKS} is what a bench takes at most"
            )
            raise ClashError(message, "workers", "nodes")


class BenchSpec(BenchPlace):
    """Where a bench runs, and how often it measures."""

    rounds: int | None = Field(default=None, ge=1, le=10_000)
    """how often each is measured (default: as often as a few seconds allow)"""


class CollectivesSpec(BenchSpec):
    """`drumline bench collectives`: which collective, by what, how large."""

    collective: Literal[
        "broadcast",
        "reduce",
        "scatter",
        "gather",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
        "barrier",
    ] = "all_reduce"
    algorithms: Each[str] = ()
    """those of `drumline explain`, and native: the backend's own (default: all of these); for
    all_reduce also reduce_broadcast, gather_scatter and all_gather, which are made of others"""
    backends: Each[Literal["gloo", "shm", "mpi", "nccl"]] = ("gloo",)
    """with mpi, all ranks are started by mpirun; nccl wants a GPU for each, and has native alone"""
    workers: Each[Workers] = (2,)
    """processes per node; several numbers are measured one after the other"""
    sizes: Each[Size] = (4, 2**12, 2**16, 2**18, 2**20, 2**22, 2**24)
    """of the tensor, or of all parts together, as in nccl-tests; there rounded up to equal parts"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        composed = COMPOSED if self.collective == "all_reduce" else ()
        known = [*PLANS[self.collective], NATIVE, *composed]
        check_names(self.algorithms, known, f"{self.collective} algorithm", "algorithms")
        for workers in self.workers:
            self._check_ranks(workers)
        if not self.usable_backends:
            name, why = next(iter(self.unusable_backends.items()))
            message = f"{name} {why}; add backends=gloo, or set nodes=1"
            raise ClashError(message, "backends", "nodes")
        if "nccl" in self.usable_backends and NATIVE not in self.named_algorithms:
            message = (
                "nccl has collectives of its own only, since it queues plain messages behind each "
                "other; add native to algorithms, or leave nccl out"
            )
            raise ClashError(message, "algorithms", "backends")
        return self

    @property
    def unusable_backends(self) -> dict[str, str]:
        """The backends that cannot join ranks on several nodes, and why."""
        return {
            name: f"joins {_JOINS[name]} on one node, not on {self.nodes}"
            for name in self.backends
            if name in _JOINS and self.nodes > 1
        }

    @property
    def usable_backends(self) -> tuple[str, ...]:
        """The backends that can join these ranks."""
        return tuple(name for name in self.backends if name not in self.unusable_backends)

    @property
    def rivals(self) -> tuple[tuple[str, str], ...]:
        """Each algorithm on each backend."""
        return tuple(
            (algorithm, backend)
            for backend in self.usable_backends
            for algorithm in self.named_algorithms
            if backend != "nccl" or algorithm == NATIVE
        )

    @property
    def named_algorithms(self) -> tuple[str, ...]:
        """The algorithms, all of them where none is named; one node alone has one level only."""
        if self.algorithms:
            return self.algorithms
        every = (*PLANS[self.collective], NATIVE)
        return tuple(name for name in every if name != "hierarchical" or self.nodes > 1)

    @property
    def node_plans(self) -> tuple[NodePlan, ...]:
        """The simulated nodes; none where all workers are on one node."""
        return plan_nodes(self.nodes, self.link, self.slow_nodes)


class AggregationSpec(BenchSpec):
    """`drumline bench aggregation`: whose gradients, by which strategies, with which bottleneck."""

    nodes: Nodes = 3
    workers: Workers = 1
    """processes per node"""
    link: Link = LinkSpec(rate=10**9)
    bottleneck: int | None = Field(default=None, ge=0)
    """the node to slow, once by its CPU and once by its link (default: the last one)"""
    model: Model = ModelSpec(name="mlp")
    batch: int = Field(default=128, ge=1, le=65536)
    """samples per rank and step"""
    bucket_bytes: Bytes = 2**20
    """how much is sent at once"""
    kinds: Annotated[Each[str], AfterValidator(_check_kinds)] = KINDS
    """the strategies (default: all that average buckets)"""

    @model_validator(mode="before")
    @classmethod
    def _settle_link(cls, values: Any) -> Any:
        """Leave the link alone where there is one node only."""
        if isinstance(values, dict) and values.get("nodes") == 1 and "link" not in values:
            return {**values, "link": {}}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._check_ranks(self.workers)
        check_model(self.model)
        if self.bottleneck is not None and self.slow_nodes:
            message = "bottleneck and slow_nodes both say which node is slow; drop one of the two"
            raise ClashError(message, "bottleneck", "slow_nodes")
        if self.bottleneck is not None and not self.bottleneck < self.nodes > 1:
            message = (
                f"bottleneck names node {self.bottleneck}, but nodes run from 0 to "
                f"{self.nodes - 1}, and one alone has no others; name one of those or raise nodes"
            )
            raise ClashError(message, "bottleneck", "nodes")
        return self

    @property
    def situations(self) -> dict[str, tuple[NodePlan, ...]]:
        """The nodes without a bottleneck, and with one by its CPU and by its link."""
        found = {"even": plan_nodes(self.nodes, self.link, {})}
        for name, part in _BOTTLENECKS.items():
            slow = {node: part(given) for node, given in self._slow_nodes().items()}
            plans = plan_nodes(self.nodes, self.link, slow)
            if plans != found["even"]:
                found[name] = plans
        return found

    def _slow_nodes(self) -> dict[int, SlowNode]:
        if self.slow_nodes or self.nodes == 1:
            return self.slow_nodes
        rate = max(10**6, (self.link.rate or 10**9) // _SLOWER_LINK)
        node = self.nodes - 1 if self.bottleneck is None else self.bottleneck
        return {node: SlowNode(rate=rate, cpu=_SLOW_CPU)}


class TrainingBench(BenchLinks):
    """A bench whose cases are training runs: what they train, and on what."""

    model: Model = ModelSpec()
    data: Data = DataSpec()
    """what it trains on (default: shakespeare for text models, mnist-mini for others)"""
    batch: int = Field(default=128, ge=1, le=65536)
    """samples per step over all ranks together"""
    steps: int = Field(default=20, ge=2, le=100_000)
    """of each run; the first does not count"""
    backend: Literal["auto", "gloo", "nccl", "mpi", "shm"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @classmethod
    def _default_workers(cls) -> object:
        """How many there are on one node, where the user does not say; on each of several: one."""
        return cls.model_fields["workers"].default

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: Any) -> Any:
        """Fill in what follows from other keys: the data from the model, workers from nodes.

        Keys of a model that has no name are added to those of the bench's own.
        """
        if not isinstance(values, dict):
            return values
        one_node = values.get("nodes", 1) == 1
        settled = {"workers": cls._default_workers() if one_node else 1, **values}
        given = settled.get("model", {})
        if isinstance(given, dict) and "name" not in given:
            settled["model"] = given = {**cls.model_fields["model"].default.model_dump(), **given}
        name = given.get("name") if isinstance(given, dict) else given
        data = settled.get("data", {})
        if isinstance(data, dict) and "name" not in data:
            own = "shakespeare" if name in TEXT_MODELS else "mnist-mini"
            settled["data"] = {**data, "name": own}
        return settled

    def _check_trained(self) -> None:
        """Refuse a model that there is not, data that it cannot read, a misplaced batch."""
        name = self.model.name
        check_model(self.model)
        if not reads(name, self.data):
            fix = "shakespeare" if name in TEXT_MODELS else "mnist-mini"
            what = self.data.holds
            message = f"{name} does not read {self.data.name} ({what}); set data={fix}"
            raise ClashError(message, "data.name", "model.name")
        if "batch" in self.data.model_fields_set:
            message = f"the batch is a word of its own here; write batch={self.data.batch}"
            raise ClashError(message, "data.batch")

    def _check_samples(self, ranks: int, *, fewer: str) -> None:
        """Refuse a batch that leaves one of so many ranks without a sample; `fewer`: of what."""
        if self.batch < ranks:
            message = (
                f"batch is {self.batch}, less than one sample for each of {ranks} ranks; set "
                f"batch={ranks} or more, or fewer {fewer}"
            )
            raise ClashError(message, "batch", "workers", "nodes")

    def build_run(self, *, batch: int, nodes: int, workers: int, **keys: object) -> RunSpec:
        """Build the training run of a case: its model and data, timed, and nothing beside.

        One node has no link, and only nodes that are there can be slow; one rank has no use for a
        backend.

        Raises:
            SpecError: the keys make no run.
        """
        slow_nodes = {node: slow for node, slow in self.slow_nodes.items() if node < nodes}
        return validate_spec(
            {
                "model": self.model.model_dump(mode="json"),
                "data": {**self.data.model_dump(mode="json"), "batch": batch},
                "max_steps": self.steps,
                "evaluate": False,
                "device": self.device,
                "backend": "auto" if nodes * workers == 1 else self.backend,
                "nodes": nodes,
                "workers": workers,
                **({"link": self.link, "slow_nodes": slow_nodes} if nodes > 1 else {}),
                "timeout_s": self.timeout_s,
                **keys,
            }
        )
