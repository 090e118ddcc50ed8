"""`TrainContext`: what a rank has before it has a model to compute with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.comm import LOOPBACK, Meter
from drumline.core.errors import UsageError
from drumline.data import BatchSampler, Dataset, build_dataset
from drumline.models import build_model, build_outline, parameter_count
from drumline.optim import build_optimizer
from drumline.parallel import (
    Axes,
    SingleProcess,
    Strategy,
    build_axes,
    build_strategy,
    postpone_dynamo,
)
from drumline.spec.mesh import AXES
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import Compress, cuts_layers, microbatches_of
from drumline.train.rank import RankInfo

Indices = npt.NDArray[np.int64]


class Split(TypedDict, total=False):
    """How a model is split over ranks; empty where it is not."""

    mesh: dict[str, int]
    cuts: list[list[str]] | None


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """The spec, this rank, its place in the mesh, its device and its data."""

    spec: RunSpec
    rank: RankInfo
    axes: Axes
    device: torch.device
    data: Dataset
    sampler: BatchSampler
    batch: int
    """samples per step over all ranks"""
    parameters: int
    """of the whole model"""
    meter: Meter
    leader: str = LOOPBACK
    """the address of rank 0"""

    @property
    def delay_s(self) -> float:
        """How long this rank sleeps in each step, where it is slowed on purpose."""
        slow = self.spec.slow_ranks.get(self.rank.rank)
        return 0.0 if slow is None else slow.delay_ms / 1000

    @property
    def compress(self) -> Compress:
        """In which format gradients are sent, where any are."""
        return "none" if self.axes.mesh.data == 1 else self.spec.strategy.compress

    @property
    def microbatches(self) -> int:
        """Into how many microbatches a model that is cut by layers takes its share of a batch."""
        return microbatches_of(self.spec.strategy, self.axes.mesh, self.spec.data.batch)

    @property
    def example(self) -> tuple[Tensor, Tensor]:
        """A microbatch, to measure layers with."""
        train = self.data.train
        samples = self.spec.data.batch // (self.axes.mesh.data * self.microbatches)
        return train.batch(np.arange(max(1, min(samples, len(train)))))

    def cut_batch(self, indices: Indices, pieces: int) -> list[Indices]:
        """Cut the samples of a step into pieces, as equal as they go, none of them empty.

        gd's step over all samples is first cut into chunks of data.batch. Where there are no
        samples, there is one piece with any one, whose loss counts 0: so the ranks stay in step.
        """
        if len(indices) == 0:
            return [np.zeros(1, dtype=np.int64)]
        if self.spec.optimizer.name == "gd":
            pieces *= -(-len(indices) * self.axes.mesh.data // self.spec.data.batch)
        return np.array_split(indices, min(pieces, len(indices)))

    def seed_step(self, number: int) -> None:
        """Seed the random state anew from (seed, step, replica and stage).

        So a run that continues from a checkpoint draws the same dropout masks as one that never
        stopped. Shares of one layer draw the same: what they compute together is one computation.
        """
        place = self.axes.replica * self.axes.mesh.pipeline + self.axes.stage
        seed = ((self.spec.seed * 1_000_003 + number) * 1_009 + place) % 2**63
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def autocast(self) -> torch.autocast:
        """Compute the forward pass in bf16, where the spec says so."""
        enabled = self.spec.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def strategy(self, model: nn.Module) -> Strategy:
        """Average gradients over the copies of what this rank holds."""
        if self.axes.mesh.data == 1 < self.axes.mesh.size:
            return SingleProcess(model)
        return build_strategy(self.spec.strategy, model, self.meter, self.axes.data)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Move the parameters that this rank holds."""
        return build_optimizer(self.spec.optimizer, model.parameters())

    def describe_split(self, cuts: list[list[str]] | None) -> Split:
        """Return the mesh and the cuts, where the model is split."""
        if not self.axes.mesh.splits_model:
            return {}
        return {"mesh": dict(zip(AXES, self.axes.mesh.shape, strict=True)), "cuts": cuts}


def load_data_and_model(
    spec: RunSpec, held: list[nn.Module] | None = None
) -> tuple[Dataset, nn.Module]:
    """Load the data and build the model, before this rank needs the others.

    Returns:
        the data, and the whole model; without weights, where it is to be cut by layers.

    Args:
        spec: says what.
        held: where memory is limited, gets the model's outline before the model is built.
    """
    dtype = getattr(torch, spec.dtype)
    data = build_dataset(spec.data, seed=spec.seed, dtype=dtype)
    cut = cuts_layers(spec.strategy, spec.axes)
    if cut or (spec.memory_bytes is not None and held is not None):
        outline = build_outline(spec.model, classes=data.classes, seed=spec.seed, dtype=dtype)
        if cut:
            return data, outline
        assert held is not None
        held.append(outline)
    return data, build_model(spec.model, classes=data.classes, seed=spec.seed, dtype=dtype)


def build_context(
    spec: RunSpec,
    rank: RankInfo,
    device: torch.device,
    data: Dataset,
    model: nn.Module,
    *,
    leader: str = LOOPBACK,
) -> TrainContext:
    """Build the mesh's groups, the sampler and the meter; every rank calls this, in the group.

    Args:
        spec: says how.
        rank: this rank.
        device: where it computes, and where the data go.
        data: training and test set.
        model: the whole model, or its outline.
        leader: the address of rank 0.
    """
    axes = build_axes(spec.axes, timeout_s=spec.timeout_s)
    # gd takes the whole data set in a step, which `cut_batch` cuts into chunks
    batch = len(data.train) if spec.optimizer.name == "gd" else spec.data.batch
    _refuse_engine(spec, device)
    postpone_dynamo()
    return TrainContext(
        spec=spec,
        rank=rank,
        axes=axes,
        device=device,
        data=Dataset(
            name=data.name,
            train=data.train.to(device),
            test=data.test.to(device),
            classes=data.classes,
        ),
        sampler=BatchSampler(
            spec=spec.data.partition,
            n=len(data.train),
            labels=data.train.labels,
            batch=batch,
            rank=axes.replica,
            world_size=axes.mesh.data,
            seed=spec.seed,
        ),
        batch=batch,
        parameters=parameter_count(model),
        meter=Meter(),
        leader=leader,
    )


def _refuse_engine(spec: RunSpec, device: torch.device) -> None:
    """PyTorch's engines hand the backend what they have, and gloo cannot send from a GPU."""
    by_torch = spec.strategy.engine == "torch" and spec.axes.splits_model
    if by_torch and device.type == "cuda" and dist.get_backend() != "nccl":
        raise UsageError(
            f"strategy.engine=torch sends GPU tensors, which {dist.get_backend()} cannot and NCCL "
            f"can, with a GPU for each rank; set strategy.engine=drumline, or device=cpu"
        )
