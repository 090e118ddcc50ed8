"""`RunSpec`: everything that decides what a run computes, and how ranks share it.

It is the contract between the two columns of the package: the operations column writes it into the
run directory, every rank reads it back from there. All parts are frozen and refuse unknown keys.
Reading it from a file, with overrides and errors that name the line, is `spec_file`'s work.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from drumline.core.units import parse_bytes

StrategyKind = Literal[
    "ddp",
    "allreduce",
    "ring",
    "chunked_ring",
    "reduce_broadcast",
    "gather_scatter",
    "all_gather",
    "parameter_server",
]
PartitionKind = Literal["shuffle", "random", "sampling", "contiguous", "by_label", "dirichlet"]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]

# A part may be written as one word; this is the key that the word stands for.
SHORTHAND: dict[tuple[str, ...], str] = {
    ("model",): "name",
    ("data",): "name",
    ("data", "partition"): "kind",
    ("optimizer",): "name",
    ("schedule",): "name",
    ("strategy",): "kind",
}
# What the built-in data sets hold: models that read the one cannot read the other.
TEXT_DATA = frozenset({"shakespeare"})
TEXT_MODELS = frozenset({"gpt-mini"})
BUILTIN_MODELS = ("linear", "mlp", "lenet", "cnn", "gpt-mini")


def _mapping(key: str) -> BeforeValidator:
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


_INIT = re.compile(r"env|tcp|file|tcp://(\[[0-9a-fA-F:]+\]|[^:/\[\]]+):(\d{1,5})|file:///.+")


def _check_init(value: str) -> str:
    if not _INIT.fullmatch(value):
        raise ValueError(
            f"{value!r} is no way for ranks to meet; "
            "use env, tcp, file, tcp://HOST:PORT or file:///ABSOLUTE/PATH"
        )
    return value


class Part(BaseModel):
    """A frozen part of a spec that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelSpec(Part):
    """Which model; other keys are passed to its factory (`model: {name: cnn, dropout: 0}`)."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    name: str = "cnn"
    """linear, mlp, lenet, cnn, gpt-mini, or `package.module:factory` of your own"""

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for the factory."""
        return dict(self.model_extra or {})


class PartitionSpec(Part):
    """Which samples each rank trains on."""

    kind: PartitionKind = "shuffle"
    """shuffle: one permutation per epoch, cut into batches that ranks share. random and contiguous:
    a part per rank, kept. sampling: with replacement. by_label, dirichlet: skewed labels"""
    sizes: tuple[float, ...] | None = None
    """share of each rank, for shuffle, random and contiguous (default: equal)"""
    labels: tuple[tuple[int, ...], ...] | None = None
    """by_label: the labels that each rank owns, e.g. [[0,1,2],[3,4,5],[6,7],[8,9]]"""
    alpha: float = Field(default=0.5, gt=0)
    """dirichlet: concentration; small is skewed"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "by_label" and self.labels is None:
            raise ValueError("by_label needs the labels of each rank: labels: [[0,1,2],[3,4,5],…]")
        if self.labels is not None and self.kind != "by_label":
            raise ValueError(f"labels go with kind: by_label, not {self.kind}")
        if self.sizes is not None:
            if self.kind not in ("shuffle", "random", "contiguous"):
                raise ValueError(
                    f"sizes go with shuffle, random or contiguous, not {self.kind}; leave them out"
                )
            if min(self.sizes, default=0) < 0 or sum(self.sizes) <= 0:
                raise ValueError(
                    "sizes must be shares ≥ 0 that are not all 0, e.g. [0.7, 0.2, 0.1]"
                )
        return self


class DataSpec(Part):
    """Which data, in what batches, and who sees which samples."""

    name: Literal["mnist-mini", "mnist", "fashion-mnist", "synthetic", "shakespeare"] = "mnist-mini"
    """mnist-mini and shakespeare come with the package, synthetic is made up on the spot;
    `drumline data fetch` brings mnist and fashion-mnist"""
    batch: int = Field(default=128, ge=1)
    """samples per step over all ranks together (the global batch)"""
    partition: Annotated[PartitionSpec, _mapping("kind")] = PartitionSpec()
    """which samples each rank trains on"""
    path: str | None = None
    """folder with the data files (default: DRUMLINE_DATA, then the user's cache)"""
    samples: int | None = Field(default=None, ge=1)
    """use only the first so many training samples (synthetic: make so many)"""
    sequence: int = Field(default=64, ge=2)
    """characters per sample of text data"""


class OptimizerSpec(Part):
    """How weights move."""

    name: Literal["gd", "sgd", "adam"] = "sgd"
    """gd takes the whole data set per step (in chunks of data.batch)"""
    engine: Literal["drumline", "torch"] = "drumline"
    """drumline: written here to be read; torch: torch.optim. Same trajectory"""
    lr: float = Field(default=0.05, gt=0)
    """learning rate"""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """sgd only"""
    nesterov: bool = False
    """sgd only; needs momentum"""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, or decoupled decay with `decoupled`"""
    betas: tuple[float, float] = (0.9, 0.999)
    """adam only"""
    eps: float = Field(default=1e-8, gt=0)
    """adam only"""
    decoupled: bool = False
    """adam only: decay the weights themselves, not the gradient (AdamW)"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(
                f"momentum and nesterov belong to sgd, not {self.name}; set name: sgd, or drop them"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum > 0; set momentum: 0.9")
        if self.name != "adam" and self.decoupled:
            raise ValueError(f"decoupled decay belongs to adam, not {self.name}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        return self


class ScheduleSpec(Part):
    """How the learning rate changes over the run."""

    name: Literal["constant", "linear", "cosine", "step"] = "constant"
    """linear and cosine fall to `floor`; step multiplies by `gamma` every `every` epochs"""
    warmup_steps: int = Field(default=0, ge=0)
    """rise linearly from 0 over so many steps first"""
    floor: float = Field(default=0.0, ge=0, le=1)
    """what is left at the end, as a share of lr"""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """step: the factor"""
    every: int = Field(default=1, ge=1)
    """step: epochs between two factors"""


class StrategySpec(Part):
    """How ranks cooperate."""

    kind: StrategyKind = "ddp"
    """ddp: PyTorch's own. The others are written out in drumline.parallel"""
    average: Literal["mean", "sum"] = "mean"
    """mean over samples, or the sum over ranks (a learning rate `workers` times as large)"""
    of: Literal["gradients", "parameters"] = "gradients"
    """average gradients before the optimizer step, or parameters after it"""
    bucketed: bool = True
    """false: one message per parameter after backward (the readable form)"""
    bucket_bytes: Bytes = 2**20
    """how much is sent at once; small buckets leave early and overlap with backward"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "ddp" and self.of == "parameters":
            raise ValueError("ddp averages gradients only; set kind: allreduce for of: parameters")
        if self.kind == "ddp" and not self.bucketed:
            raise ValueError("ddp is always bucketed; set kind: allreduce for bucketed: false")
        return self


class CheckpointSpec(Part):
    """When the state is written."""

    every_steps: int | None = Field(default=None, ge=1)
    """write every so many steps (default: at the end of each epoch)"""
    keep: int = Field(default=2, ge=1)
    """how many of the newest to keep; two survive damage to one"""


class SlowRank(Part):
    """A rank that is slowed on purpose."""

    delay_ms: float = Field(default=0.0, ge=0)
    """sleep this long in each step, before its first collective"""


class RunSpec(Part):
    """Everything that decides what a run computes, and how ranks share it."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    """the run directory is runs/<name>-<n>"""
    model: Annotated[ModelSpec, _mapping("name")] = ModelSpec()
    data: Annotated[DataSpec, _mapping("name")] = DataSpec()
    optimizer: Annotated[OptimizerSpec, _mapping("name")] = OptimizerSpec()
    schedule: Annotated[ScheduleSpec, _mapping("name")] = ScheduleSpec()
    strategy: Annotated[StrategySpec, _mapping("kind")] = StrategySpec()
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
    seed: int = Field(default=1234, ge=0)
    dtype: Literal["float32", "float64"] = "float32"
    """float64 for exact comparisons"""
    precision: Literal["full", "bf16"] = "full"
    """bf16: autocast the forward pass"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: int = Field(default=2, ge=1, le=1024)
    """processes per node"""
    nodes: int = Field(default=1, ge=1, le=256)
    """groups of workers, each with an elastic agent of its own"""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads per worker (default: the cores shared out)"""
    slow_ranks: dict[int, SlowRank] = Field(default_factory=dict)
    """ranks to slow on purpose, e.g. {1: {delay_ms: 50}}"""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """auto: nccl where each rank has a GPU of its own, else gloo"""
    init: Annotated[str, AfterValidator(_check_init)] = "env"
    """how ranks find each other: env, tcp or tcp://HOST:PORT, file or file:///PATH"""
    restarts: int = Field(default=0, ge=0, le=100)
    """how often a group that lost a worker starts again from its last checkpoint"""
    timeout_s: float = Field(default=300.0, gt=0)
    """how long a rank waits for the others before it gives up"""

    @property
    def world_size(self) -> int:
        """How many ranks take part."""
        return self.workers * self.nodes

    @model_validator(mode="before")
    @classmethod
    def _settle_length(cls, values: Any) -> Any:
        """Say how long the run is where the spec does not: one epoch."""
        if isinstance(values, dict) and not (values.get("epochs") or values.get("max_steps")):
            return {"epochs": 1, **{key: v for key, v in values.items() if v is not None}}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        world = self.world_size
        if self.data.batch < world and self.optimizer.name != "gd":
            raise ValueError(
                f"data.batch is {self.data.batch}, less than one sample for each of {world} ranks; "
                f"set data.batch={world} or more, or fewer workers"
            )
        part = self.data.partition
        for what, given in (("sizes", part.sizes), ("labels", part.labels)):
            if given is not None and len(given) != world:
                raise ValueError(
                    f"data.partition.{what} names {len(given)} ranks, but {world} will start; "
                    f"set workers={len(given)}, or give {world} entries"
                )
        late = sorted(rank for rank in self.slow_ranks if not 0 <= rank < world)
        if late:
            raise ValueError(
                f"slow_ranks names rank {late[0]}, but ranks run from 0 to {world - 1}; "
                f"name one of those or raise workers"
            )
        if self.precision == "bf16" and self.dtype == "float64":
            raise ValueError("precision: bf16 goes with dtype: float32; drop one of the two")
        if self.backend == "nccl" and self.device == "cpu":
            raise ValueError(
                "backend: nccl moves GPU tensors only; set device: cuda or backend: gloo"
            )
        if self.optimizer.name == "gd" and self.accumulate > 1:
            raise ValueError(
                "gd accumulates by itself, in chunks of data.batch; leave accumulate out"
            )
        self._check_model_fits_data()
        return self

    def _check_model_fits_data(self) -> None:
        text = self.data.name in TEXT_DATA
        name = self.model.name
        if name in BUILTIN_MODELS and (name in TEXT_MODELS) != text:
            fix = "data=shakespeare" if not text else "model=gpt-mini"
            raise ValueError(
                f"{name} does not read {self.data.name} ({'text' if text else 'images'}); set {fix}"
            )
        if ":" not in name and name not in BUILTIN_MODELS:
            raise ValueError(
                f"model {name!r} is none of {', '.join(BUILTIN_MODELS)}, "
                f"nor package.module:factory of your own"
            )
        if text and self.data.partition.kind in ("by_label", "dirichlet"):
            raise ValueError(
                f"{self.data.name} has no labels to partition by; set data.partition=random"
            )
