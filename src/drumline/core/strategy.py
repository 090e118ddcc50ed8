"""`StrategySpec`: how ranks cooperate, in the words of the spec.

Most kinds keep the whole model on every rank and average its gradients. Three split the model:
`pipeline` by layers, `tensor` inside layers, `rpc` by layers again, driven by the leader. On a mesh
(`core/mesh.py`) the averaging kinds serve the data axis, whatever the other axes do.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from drumline.core.parts import Bytes, ClashError, Part

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
    if isinstance(value, list | tuple) and value and all(_counts(item) for item in value):
        return tuple(value)
    shown = list(value) if isinstance(value, tuple) else value
    raise ValueError(
        f"{shown!r} says not where to cut; use auto, time, bytes, or how many layers each part "
        f"has, e.g. [1, 3]"
    )


def _counts(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 1


class StrategySpec(Part):
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
            raise ClashError(
                "ddp averages gradients only; set kind: allreduce for of: parameters", "of", "kind"
            )
        if self.kind == "ddp" and not self.bucketed:
            raise ClashError(
                "ddp is always bucketed; set kind: allreduce for bucketed: false",
                "bucketed",
                "kind",
            )
        if self.compress != "none" and self.of == "parameters":
            raise ClashError(
                f"compress: {self.compress} rounds what is sent, and weights that are rounded in "
                f"each step forget small updates; set of: gradients, or leave compress out",
                *("compress", "of"),
            )
        if self.parts is not None and self.kind != "rpc":
            raise ClashError(
                f"parts belong to rpc, not {self.kind}; set kind: rpc, or mesh.pipeline for the "
                f"stages of a pipeline",
                *("parts", "kind"),
            )
        if self.chunks is not None and self.schedule != "interleaved":
            raise ClashError(
                f"chunks belong to the interleaved schedule, not {self.schedule or '1f1b'}; "
                f"set schedule: interleaved, or leave them out",
                *("chunks", "schedule"),
            )
        if self.kind == "rpc" and self.engine == "torch":
            raise ClashError("rpc is PyTorch's own in any case; leave engine out", "engine", "kind")
        return self
