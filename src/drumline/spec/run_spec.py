"""`RunSpec`: everything that decides what a run computes, and how ranks share it.

It is the contract between the two columns of the package: the operations column writes it into the
run directory, every rank reads it back from there. Its parts are in `parts`; reading it from a
file, with overrides and errors that name the line, is `load`'s work.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from drumline.core.formatting import nearest
from drumline.core.nodes import MAX_NODES, NodePlan, address_of
from drumline.core.task import MAX_WORKERS
from drumline.spec.mesh import Mesh, MeshSpec, settle_mesh
from drumline.spec.parts import (
    Bytes,
    CheckpointSpec,
    DataSpec,
    LinkSpec,
    ModelSpec,
    OptimizerSpec,
    ScheduleSpec,
    SlowNode,
    SlowRank,
    SpecPart,
    check_node_count,
    check_slow_nodes,
    clash,
    one_word,
    plan_nodes,
)
from drumline.spec.strategy import REDUCING_KINDS, StrategySpec, check_split, settle_aggregator

# A part may be written as one word; this is the key that the word stands for.
SHORTHAND: dict[tuple[str, ...], str] = {
    ("model",): "name",
    ("data",): "name",
    ("data", "partition"): "kind",
    ("optimizer",): "name",
    ("schedule",): "name",
    ("strategy",): "kind",
    ("link",): "rate",
}
# What the built-in data sets hold: models that read the one cannot read the other.
TEXT_DATA = frozenset({"shakespeare"})
TEXT_MODELS = frozenset({"gpt-mini"})
BUILTIN_MODELS = ("linear", "mlp", "lenet", "cnn", "gpt-mini")
_INIT = re.compile(r"env|tcp|file|tcp://(\[[0-9a-fA-F:]+\]|[^:/\[\]]+):(\d{1,5})|file:///.+")


def _check_init(value: str) -> str:
    match = _INIT.fullmatch(value)
    if match is None or int(match.group(2) or 1) not in range(1, 1 << 16):
        raise ValueError(
            f"{value!r} is no way for ranks to meet; "
            "use env, tcp, file, tcp://HOST:PORT or file:///ABSOLUTE/PATH"
        )
    return value


class RunSpec(SpecPart):
    """Everything that decides what a run computes, and how ranks share it."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    """the run directory is runs/<name>-<n>"""
    model: Annotated[ModelSpec, one_word(ModelSpec, "name")] = ModelSpec()
    data: Annotated[DataSpec, one_word(DataSpec, "name")] = DataSpec()
    optimizer: Annotated[OptimizerSpec, one_word(OptimizerSpec, "name")] = OptimizerSpec()
    schedule: Annotated[ScheduleSpec, one_word(ScheduleSpec, "name")] = ScheduleSpec()
    strategy: Annotated[StrategySpec, one_word(StrategySpec, "kind")] = StrategySpec()
    mesh: MeshSpec = MeshSpec()
    """how many ways data, layers and the insides of layers are split, e.g.
    {data: 2, pipeline: 2, tensor: 1}"""
    checkpoint: CheckpointSpec = CheckpointSpec()
    epochs: int | None = Field(default=None, ge=1)
    """passes over the data (default 1, unless max_steps is given)"""
    max_steps: int | None = Field(default=None, ge=1)
    """stop after so many steps; with epochs too, whichever comes first"""
    accumulate: int = Field(default=1, ge=1)
    """cut each rank's batch into so many pieces, to need less memory"""
    clip_norm: float | None = Field(default=None, gt=0)
    """scale the gradient down to this norm where it is larger"""
    evaluate: bool = True
    """measure loss and accuracy on the test set after each epoch and at the end"""
    seed: int = Field(default=1234, ge=0, lt=2**63)
    dtype: Literal["float32", "float64"] = "float32"
    """float64 for exact comparisons"""
    precision: Literal["full", "bf16"] = "full"
    """bf16: autocast the forward pass"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: int = Field(default=2, ge=1, le=MAX_WORKERS)
    """processes per node"""
    nodes: Annotated[int, AfterValidator(check_node_count)] = Field(
        default=1, json_schema_extra={"minimum": 1, "maximum": MAX_NODES}
    )
    """simulated nodes: more than one, and each gets an address and a link of its own"""
    link: Annotated[LinkSpec, one_word(LinkSpec, "rate")] = LinkSpec()
    """the link of each simulated node, e.g. {rate: 1gbit, delay_ms: 5}"""
    slow_nodes: dict[int, SlowNode] = Field(default_factory=dict)
    """nodes to slow on purpose, e.g. {2: {rate: 100mbit, cpu: 0.5}}"""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads per worker (default: the cores shared out)"""
    memory_bytes: Bytes | None = None
    """how much memory each rank may take beyond what it starts with, e.g. 500MB (Linux)"""
    slow_ranks: dict[int, SlowRank] = Field(default_factory=dict)
    """ranks to slow on purpose, e.g. {1: {delay_ms: 50}}"""
    backend: Literal["auto", "gloo", "nccl", "mpi", "shm"] = "auto"
    """auto: nccl where each rank has a GPU of its own, shm where ranks share a host's memory and
    the strategy uses the backend's collectives, else gloo. mpi: ranks are started by mpirun"""
    init: Annotated[str, AfterValidator(_check_init)] = "env"
    """how ranks find each other: env, tcp or tcp://HOST:PORT, file or file:///PATH"""
    restarts: int = Field(default=0, ge=0, le=100)
    """how often a group that lost a worker starts again from its last checkpoint"""
    timeout_s: float = Field(default=30.0, ge=1, le=7 * 86400)
    """how long a rank waits for the others before it gives up"""

    @property
    def world_size(self) -> int:
        """How many ranks take part."""
        return self.workers * self.nodes

    @property
    def axes(self) -> Mesh:
        """The mesh that all ranks form, with what the spec leaves open filled in."""
        return settle_mesh(self.mesh, self.strategy.kind, workers=self.workers, nodes=self.nodes)

    @property
    def cuts_layers(self) -> bool:
        """Whether a rank holds some of the layers only."""
        return self.strategy.kind in ("pipeline", "rpc") or self.axes.pipeline > 1

    @property
    def microbatches(self) -> int:
        """Into how many microbatches a copy of a model that is cut by layers cuts its batch.

        Unless it is said: by rpc 1, one part at work after the other; else as many as make equal
        ones, up to two for each stage. Where the model is not cut, neither is the batch.
        """
        if self.strategy.microbatches is not None:
            return self.strategy.microbatches
        share = max(1, self.data.batch // self.axes.data)
        most = 2 * self.axes.pipeline if self.strategy.kind != "rpc" and self.cuts_layers else 1
        return max(count for count in range(1, most + 1) if share % count == 0)

    @property
    def node_plans(self) -> tuple[NodePlan, ...]:
        """The simulated nodes; none where all workers are on one node."""
        return plan_nodes(self.nodes, self.link, self.slow_nodes)

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: Any) -> Any:
        """Say what the spec does not: one epoch; how copies of a split model are averaged."""
        if isinstance(values, dict) and values.get("epochs") is values.get("max_steps") is None:
            values = {**values, "epochs": 1}
        return settle_aggregator(values)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_split(self)
        self._check_ranks()
        check_slow_nodes(self.nodes, self.link, self.slow_nodes)
        host = urlsplit(self.init).hostname
        if self.nodes > 1 and host is not None and host != address_of(0):
            raise clash("init_not_at_node_0", host=host, address=address_of(0))
        self._check_number_formats()
        self._check_backend()
        self._check_model_fits_data()
        if self.optimizer.name == "gd" and self.accumulate > 1:
            raise clash("nothing_to_accumulate")
        return self

    def _check_ranks(self) -> None:
        world, copies = self.world_size, self.axes.data
        whom = "ranks" if copies == world else "copies of the model"
        if self.data.batch < copies and self.optimizer.name != "gd":
            raise clash("batch_too_small", spec=self, copies=copies, whom=whom)
        for key in ("sizes", "labels"):
            given = getattr(self.data.partition, key)
            if given is not None and len(given) != copies:
                numbers = {"given": len(given), "ranks": len(given) * world // copies}
                raise clash(
                    "partition_of_other_ranks", key=key, whom=whom, copies=copies, **numbers
                )
        late = sorted(rank for rank in self.slow_ranks if not 0 <= rank < world)
        if late:
            raise clash("no_such_slow_rank", rank=late[0], last=world - 1)

    def _check_number_formats(self) -> None:
        compressed = self.strategy.compress != "none"
        if self.precision == "bf16" and self.dtype == "float64":
            raise clash("bf16_and_float64")
        if compressed and self.dtype == "float64":
            raise clash("compressed_float64", spec=self)
        if compressed and self.backend == "mpi" and self.strategy.kind in REDUCING_KINDS:
            raise clash("compressed_by_mpi", spec=self)

    def _check_backend(self) -> None:
        name = self.backend
        if name == "nccl" and self.device == "cpu":
            raise clash("nccl_on_cpu")
        if name in ("mpi", "shm") and self.device == "cuda":
            raise clash("backend_on_gpu", spec=self)
        if name in ("mpi", "shm") and self.nodes > 1:
            joins = "one mpirun's ranks" if name == "mpi" else "ranks that share memory"
            raise clash("backend_of_one_node", spec=self, joins=joins)
        if name == "mpi" and self.restarts:
            raise clash("mpi_restarts")

    def _check_model_fits_data(self) -> None:
        text = self.data.name in TEXT_DATA
        name = self.model.name
        if ":" not in name and name not in BUILTIN_MODELS:
            hint = nearest(name, BUILTIN_MODELS, "name one of those")
            raise clash("no_such_model", name=name, models=", ".join(BUILTIN_MODELS), hint=hint)
        if name in BUILTIN_MODELS and (name in TEXT_MODELS) != text:
            what, fix = ("text", "model=gpt-mini") if text else ("images", "data=shakespeare")
            raise clash("model_reads_other_data", spec=self, what=what, fix=fix)
        if text and self.data.partition.kind in ("by_label", "dirichlet"):
            raise clash("text_has_no_labels", spec=self)
