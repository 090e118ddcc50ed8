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
from drumline.spec.data import DataSpec
from drumline.spec.learning import (
    CallbackSpec,
    EarlyStoppingSpec,
    LoggerSpec,
    LossSpec,
    MetricSpec,
    OptimizerSpec,
    ScheduleSpec,
    check_metrics,
    named,
)
from drumline.spec.mesh import Mesh, MeshSpec, settle_mesh
from drumline.spec.parts import (
    Bytes,
    CheckpointSpec,
    LinkSpec,
    ModelSpec,
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
    ("loss",): "name",
    ("early_stopping",): "metric",
    ("optimizer",): "name",
    ("schedule",): "name",
    ("strategy",): "kind",
    ("link",): "rate",
}
# models that read the one cannot read the other
TEXT_MODELS = frozenset({"gpt-mini"})
IMAGE_MODELS = frozenset({"lenet", "cnn"})
BUILTIN_MODELS = ("linear", "mlp", "lenet", "cnn", "gpt-mini")
_EPOCHS = 4  # of mnist-mini: 15 s on two cores, to 97 %
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
    loss: Annotated[LossSpec, one_word(LossSpec, "name")] | None = None
    """what is minimised: cross_entropy, mse, bce, l1, or your own (default: what goes with the
    data: cross_entropy for classes, mse for a regression, bce for several labels)"""
    metrics: Annotated[tuple[MetricSpec, ...], named(MetricSpec)] | None = None
    """what is measured beside the loss, e.g. [accuracy, "mine:metric"] (default: what goes with
    the loss)"""
    strategy: Annotated[StrategySpec, one_word(StrategySpec, "kind")] = StrategySpec()
    mesh: MeshSpec = MeshSpec()
    """how many ways data, layers and the insides of layers are split, e.g.
    {data: 2, pipeline: 2, tensor: 1}"""
    checkpoint: CheckpointSpec = CheckpointSpec()
    epochs: int | None = Field(default=None, ge=1)
    """passes over the data (default 4, unless max_steps is given)"""
    max_steps: int | None = Field(default=None, ge=1)
    """stop after so many steps; with epochs too, whichever comes first"""
    accumulate: int = Field(default=1, ge=1)
    """cut each rank's batch into so many pieces, to need less memory"""
    clip_norm: float | None = Field(default=None, gt=0)
    """scale the gradient down to this norm where it is larger"""
    evaluate: bool = True
    """measure loss and metrics on the test set (and the validation set) after each epoch"""
    early_stopping: Annotated[EarlyStoppingSpec, one_word(EarlyStoppingSpec, "metric")] | None = (
        None
    )
    """end where no epoch was better for a while, e.g. {metric: accuracy, patience: 3}"""
    sync_batch_norm: bool = False
    """normalise by the samples of all ranks, as one process would; else each rank by its own, and
    rank 0's running statistics count"""
    loggers: Annotated[tuple[LoggerSpec, ...], named(LoggerSpec)] = (LoggerSpec(),)
    """where numbers go beside the run directory: tensorboard, wandb, mlflow, "mine:logger"…"""
    log_every: int | None = Field(default=None, ge=1)
    """give loggers the training loss and times every so many steps, too (default: each epoch)"""
    callbacks: Annotated[tuple[CallbackSpec, ...], named(CallbackSpec)] = ()
    """objects of your own whose methods are called as the run goes on, e.g. ["mine:callback"]"""
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
    def scores_wanted(self) -> dict[str, str]:
        """The scores that something looks at, loss or a metric, by the key that names it."""
        stopping = self.early_stopping
        wanted = {
            "early_stopping": None if stopping is None else stopping.metric,
            "checkpoint.best": self.checkpoint.best,
            "schedule.metric": None if self.schedule.is_ours else self.schedule.metric,
        }
        return {key: name for key, name in wanted.items() if name is not None}

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
        """Say what the spec does not: model, epochs, how copies of a split model are averaged."""
        if isinstance(values, dict):
            values = _settle_model(values)
        if isinstance(values, dict) and values.get("epochs") is values.get("max_steps") is None:
            values = {**values, "epochs": _EPOCHS}
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
        check_metrics(self.loss, self.metrics)
        if self.optimizer.name in ("Adafactor", "Muon") and self.axes.tensor > 1:
            raise clash("optimizer_of_whole_tensors", spec=self)
        self._check_scores()
        self._check_batch_norm()
        return self

    def _check_scores(self) -> None:
        """Refuse to look at scores where nobody measures any."""
        for key in self.scores_wanted:
            if not self.evaluate and (key != "schedule.metric" or self.schedule.by_score):
                raise clash("score_without_evaluation", key=key)

    def _check_batch_norm(self) -> None:
        pieces = self.accumulate > 1 or self.optimizer.name == "gd"
        if self.sync_batch_norm and (pieces or self.axes.splits_model or self.cuts_layers):
            raise clash("batch_norm_of_pieces")

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
        name, holds = self.model.name, self.data.holds
        if ":" not in name and name not in BUILTIN_MODELS:
            hint = nearest(name, BUILTIN_MODELS, "name one of those")
            raise clash("no_such_model", name=name, models=", ".join(BUILTIN_MODELS), hint=hint)
        if not reads(name, self.data):
            fix = f"model={self.data.usual_model}"
            if holds == "images":
                fix = "data=shakespeare"
            raise clash("model_reads_other_data", spec=self, what=holds, fix=fix)
        if holds == "text" and self.data.partition.kind in ("by_label", "dirichlet"):
            raise clash("text_has_no_labels", spec=self)


def reads(model: str, data: DataSpec) -> bool:
    """Whether a model reads what the data holds, as far as names tell."""
    holds = data.holds
    if holds is None or model not in BUILTIN_MODELS:
        return True
    if holds == "text" or model in TEXT_MODELS:
        return holds == "text" and model in TEXT_MODELS
    return holds == "images" or model not in IMAGE_MODELS


def _settle_model(values: dict[str, Any]) -> dict[str, Any]:
    """Name the usual model for the data, where none is named."""
    data, model = values.get("data"), values.get("model", {})
    name = data.get("name") if isinstance(data, dict) else data
    if not isinstance(name, str) or not isinstance(model, dict) or "name" in model:
        return values
    usual = DataSpec.model_construct(name=name).usual_model
    return {**values, "model": {"name": usual, **model}}
