"""`StrategySpec`: how ranks cooperate.

Most kinds keep the whole model on every rank and average its gradients. Three split the model:
`pipeline` by layers, `tensor` inside layers, `rpc` by layers again, driven by the leader. On a mesh
(`spec/mesh.py`) the averaging kinds serve the data axis, whatever the other axes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from drumline.core.formatting import counted
from drumline.spec.mesh import Mesh
from drumline.spec.parts import Bytes, SpecPart, clash

if TYPE_CHECKING:
    from drumline.spec.run_spec import RunSpec

StrategyKind = Literal[
    "ddp",
    "allreduce",
    "ring",
    "chunked_ring",
    "tree",
    "halving_doubling",
    "hierarchical",
    "reduce_broadcast",
    "gather_scatter",
    "all_gather",
    "parameter_server",
    "pipeline",
    "tensor",
    "rpc",
]
MESSAGE_KINDS = frozenset(
    {"ring", "chunked_ring", "tree", "halving_doubling", "hierarchical", "parameter_server"}
)
"""kinds made of plain sends and receives"""
SPLIT_KINDS = frozenset({"pipeline", "tensor", "rpc"})
"""kinds that split the model"""
DATA_KINDS = tuple(kind for kind in get_args(StrategyKind) if kind not in SPLIT_KINDS)
"""kinds that keep the whole model on every rank"""
REDUCING_KINDS = frozenset({"ddp", "allreduce", "reduce_broadcast", *SPLIT_KINDS})
"""kinds whose sum is the backend's own"""
Compress = Literal["none", "fp16", "bf16"]
Schedule = Literal["gpipe", "1f1b", "interleaved"]
ByRule = Literal["auto", "time", "bytes"]
Balance = ByRule | tuple[int, ...]


def _check_balance(value: object) -> object:
    if value in get_args(ByRule):
        return value
    if isinstance(value, tuple):  # shown as it is written in a spec
        value = list(value)
    if isinstance(value, list) and value and all(type(n) is int and n >= 1 for n in value):
        return tuple(value)
    raise ValueError(
        f"{value!r} does not say where to cut; use auto, time, bytes, or how many layers "
        f"each part has, e.g. [1, 3]"
    )


class StrategySpec(SpecPart):
    """How ranks cooperate."""

    kind: StrategyKind = "ddp"
    """ddp: PyTorch's own. The others are written out in drumline.parallel. pipeline, tensor and rpc
    split the model"""
    average: Literal["mean", "sum"] = "mean"
    """mean over samples, or the sum over ranks (a learning rate `workers` times as large)"""
    of: Literal["gradients", "parameters"] = "gradients"
    """average gradients before the optimizer step, or parameters after it"""
    bucketed: bool = True
    """false: one message per parameter after backward (the readable form)"""
    bucket_bytes: Bytes = 2**20
    """how much is sent at once; small buckets leave early and overlap with backward"""
    compress: Compress = "none"
    """send gradients in 16 bits, half the bytes: fp16 has 11 bits and ends at 65504, bf16 has 8 and
    the range of float32"""
    engine: Literal["drumline", "torch"] = "drumline"
    """of pipelines and tensor shares: written here to be read, or PyTorch's own. Same weights"""
    schedule: Schedule | None = None
    """of a pipeline: gpipe, 1f1b (default) or interleaved"""
    microbatches: int | None = Field(default=None, ge=1)
    """equal pieces of a batch that follow each other through the parts (default: up to 2 for each
    stage of a pipeline; 1 by rpc, one part at work after the other)"""
    chunks: int | None = Field(default=None, ge=2)
    """pieces of the model on each rank of an interleaved pipeline (default 2)"""
    balance: Annotated[
        Balance, BeforeValidator(_check_balance, json_schema_input_type=ByRule | list[int])
    ] = "auto"
    """where layers are cut: auto and time by measured seconds, bytes by parameters, or a list of
    how many layers each part has, e.g. [1, 3]"""
    recompute: bool = False
    """keep no activations for backward, but compute them again (activation checkpointing)"""
    parts: int | None = Field(default=None, ge=1)
    """of rpc: how many parts, one on each rank"""

    @property
    def aggregator(self) -> str:
        """How gradients are averaged over copies of the model."""
        return "allreduce" if self.kind in SPLIT_KINDS else self.kind

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "ddp" and self.of == "parameters":
            raise clash("ddp_averages_parameters")
        if self.kind == "ddp" and not self.bucketed:
            raise clash("ddp_without_buckets")
        if self.compress != "none" and self.of == "parameters":
            raise clash("compressed_parameters", spec=self)
        if self.parts is not None and self.kind != "rpc":
            raise clash("parts_without_rpc", spec=self)
        if self.chunks is not None and self.schedule != "interleaved":
            raise clash("chunks_without_interleaved", schedule=self.schedule or "1f1b")
        if self.kind == "rpc" and self.engine == "torch":
            raise clash("rpc_has_one_engine")
        return self


_OF_PIPELINES = ("schedule", "chunks", "recompute")
_OF_CUTS = (*_OF_PIPELINES, "microbatches", "balance")
_OF_COPIES = ("average", "bucketed", "bucket_bytes", "compress")


def settle_aggregator(values: Any) -> Any:
    """Let a spec that names no strategy average a pipeline's copies by `allreduce`: DDP cannot."""
    if not isinstance(values, dict) or "mesh" not in values:
        return values
    mesh, strategy = values["mesh"], values.get("strategy", {})
    stages = mesh.get("pipeline") if isinstance(mesh, dict) else None
    if stages in (None, 1) or not isinstance(strategy, dict) or "kind" in strategy:
        return values
    return {**values, "strategy": {**strategy, "kind": "allreduce"}}


def check_split(spec: RunSpec) -> None:
    """Raise ClashError if the spec's strategy and mesh do not fit, or keys about a split model."""
    strategy, mesh = spec.strategy, spec.axes
    if strategy.kind == "rpc":
        _check_rpc(strategy, mesh)
        _refuse_keys(strategy, _OF_PIPELINES, "not_by_rpc")
    elif mesh.pipeline > 1 and strategy.kind == "ddp":
        raise clash("ddp_of_stages")
    if not spec.cuts_layers:
        _refuse_keys(strategy, _OF_CUTS, "not_without_cuts")
    if spec.cuts_layers or mesh.tensor > 1 or strategy.kind == "tensor":
        if strategy.of == "parameters":
            raise clash("parameters_of_split_model")
        if mesh.data == 1:
            _refuse_keys(strategy, _OF_COPIES, "not_without_copies")
    if strategy.kind == "rpc" and spec.precision == "bf16":
        raise clash("rpc_in_bf16")
    if spec.cuts_layers:
        _check_microbatches(spec)


def _refuse_keys(strategy: StrategySpec, keys: Sequence[str], name: str) -> None:
    """Refuse keys that have another value than their default; `name` is that of the clash."""
    for key in keys:
        if getattr(strategy, key) != StrategySpec.model_fields[key].default:
            raise clash(name, key=key, spec=strategy)


def bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Return the bubble of a spec's pipeline: a stage's idle share of a step, for equal chunks."""
    return (stages - 1) / (chunks * microbatches + stages - 1)


def _check_rpc(strategy: StrategySpec, mesh: Mesh) -> None:
    if mesh.data > 1 or mesh.tensor > 1:
        raise clash("rpc_with_mesh")
    if strategy.parts is not None and strategy.parts != mesh.size:
        parts, ranks = counted(strategy.parts, "part"), counted(mesh.size, "rank")
        raise clash("rpc_parts_and_ranks", spec=strategy, parts=parts, ranks=ranks, size=mesh.size)


def _check_microbatches(spec: RunSpec) -> None:
    batch, copies, pieces = spec.data.batch, spec.axes.data, spec.microbatches
    if spec.accumulate > 1:
        raise clash("accumulated_microbatches", pieces=spec.accumulate * pieces)
    whole_data = spec.optimizer.name == "gd"
    if spec.strategy.microbatches is not None and batch % (copies * pieces) and not whole_data:
        share = f"{batch}" if copies == 1 else f"{batch} over {copies} copies of the model"
        near = max(1, round(batch / (copies * pieces))) * copies * pieces
        divisor = max(n for n in range(1, pieces + 1) if batch % (copies * n) == 0 or n == 1)
        raise clash("unequal_microbatches", share=share, pieces=pieces, near=near, divisor=divisor)
