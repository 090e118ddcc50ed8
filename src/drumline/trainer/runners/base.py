"""What a rank computes a step with, whichever part of the model it holds.

`StepClock` notes what the step's time was spent on, as far as this rank alone can tell:

    │ data │ forward, backward ……………… │ blocked │ update    │
    t0     t1                        b0        b1          t2

What of the blocked time was waiting, and for whom, only all ranks' logs together can tell: that is
the ledger's work (`drumline.report.ledger`). All times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from typing import NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.comm import LOOPBACK, Meter, members_of
from drumline.comm.meter import Span, Work
from drumline.core.errors import UsageError
from drumline.data import BatchPlan, BatchSampler, Dataset, LocalBatch, build_dataset
from drumline.data.splits import Batch, Inputs
from drumline.models import build_model, build_outline, parameter_count
from drumline.optim.build import check_groups
from drumline.parallel.axes import Axes, build_axes
from drumline.parallel.dynamo import postpone_dynamo
from drumline.parallel.shard_spec import ShardSpec, clip_split_gradients
from drumline.parallel.strategy import Strategy, build_strategy
from drumline.spec.learning import MetricSpec, default_loss, default_metrics
from drumline.spec.parts import SlowRank
from drumline.spec.run_spec import RunSpec
from drumline.trainer.loss import LossFunction, build_loss, counts_vary
from drumline.trainer.metrics import Metric, build_metric
from drumline.trainer.rank import RankInfo

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """The spec, this rank, its device, its data, its groups: all that there is before the model."""

    spec: RunSpec
    rank: RankInfo
    axes: Axes
    device: torch.device
    data: Dataset
    sampler: BatchSampler
    parameters: int
    """of the whole model"""
    given: Mapping[str, object]
    """what the data tells factories of models"""
    meter: Meter
    loss: LossFunction
    counts_vary: bool
    """whether only the copies' counts together tell how many predictions a step's loss is of"""
    metrics: tuple[Metric, ...]
    delay_s: float
    """how long this rank sleeps in each step, where it is slowed on purpose"""
    leader: str = LOOPBACK
    """the address of rank 0"""

    def batches(self, epoch: int, first: int) -> Iterator[StepBatch]:
        """Iterate over this rank's batches of an epoch, from step `first` of it on.

        The pieces of all of them are known to the data set at once, which may load ahead.
        """
        local = list(self.sampler.batches(epoch, first))
        cuts = [self._cut(batch.indices) for batch in local]
        pieces = self.data.train.batches(chain.from_iterable(cuts), epoch=epoch)
        for batch, cut in zip(local, cuts, strict=True):
            yield StepBatch(batch.indices, batch.total, cut, pieces)

    def _cut(self, indices: Indices) -> list[Indices]:
        """Cut the samples of a step into pieces, as equal as they go, none of them empty.

        They are what is accumulated, or the microbatches of a model that is cut by layers. gd's
        step over all samples is first cut into chunks of data.batch. Where there are no samples,
        there is one piece with any one, whose loss counts 0: so the ranks stay in step. It is there
        twice: batch norm asks for two.
        """
        pieces = self.spec.accumulate * self.spec.microbatches
        if len(indices) == 0:
            return [np.zeros(2, dtype=np.int64)]
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

    def count_all(self, own: int) -> float:
        """Add up the predictions of all copies, at least 1; every rank calls this and blocks."""
        total = torch.tensor(own, dtype=torch.float64, device=self.device)
        if self.axes.data is not None:
            arrived = time.monotonic_ns()
            dist.all_reduce(total, group=self.axes.data)
            # one number is no traffic
            self.meter.record("count", 0, arrived, members_of(self.axes.data))
        return max(1.0, float(total))

    def autocast(self) -> torch.autocast:
        """Compute the forward pass in bf16, where the spec says so."""
        enabled = self.spec.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def strategy(self, model: nn.Module) -> Strategy:
        """Average gradients over the copies of what this rank holds."""
        if self.axes.mesh.data == 1 < self.axes.mesh.size:
            return Strategy(module=model)
        return build_strategy(self.spec.strategy, model, self.meter, self.axes.data)


def load_data_and_model(
    spec: RunSpec,
    held: list[nn.Module],
    in_turn: AbstractContextManager[None] = nullcontext(),  # noqa: B008  it has no state
) -> tuple[Dataset, nn.Module]:
    """Load the data and build the whole model, before this rank needs the others.

    A model that is to be cut by layers has no weights yet. Where memory is limited, `held` gets the
    model's outline before the model is built. A factory of data is called `in_turn`.
    """
    dtype = getattr(torch, spec.dtype)
    with in_turn if spec.data.form == "factory" else nullcontext():
        data = build_dataset(spec.data, seed=spec.seed, dtype=dtype)
    if spec.cuts_layers or spec.memory_bytes is not None:
        outline = build_outline(spec.model, seed=spec.seed, dtype=dtype, **data.given)
        if spec.cuts_layers:
            return data, outline
        held.append(outline)
    return data, build_model(spec.model, seed=spec.seed, dtype=dtype, **data.given)


def build_context(
    spec: RunSpec,
    rank: RankInfo,
    device: torch.device,
    data: Dataset,
    model: nn.Module,
    *,
    leader: str = LOOPBACK,
) -> TrainContext:
    """Build a runner's context: groups, sampler, meter; every rank calls this, in the group."""
    axes = build_axes(spec.axes, timeout_s=spec.timeout_s)
    # gd takes the whole data set in a step, which `cut_batch` cuts into chunks
    plan = BatchPlan(
        spec=spec.data.partition,
        n=len(data.train),
        labels=data.train.labels,
        batch=len(data.train) if spec.optimizer.name == "gd" else spec.data.batch,
        world_size=axes.mesh.data,
        seed=spec.seed,
        in_order=data.train.in_order,
    )
    check_backend(spec, dist.get_backend(), device)
    postpone_dynamo()
    check_groups(spec.optimizer, (name for name, _ in model.named_parameters()))
    loss = spec.loss or default_loss(data.task)
    metrics = default_metrics(loss) if spec.metrics is None else spec.metrics
    check_scores(spec, metrics)
    return TrainContext(
        spec=spec,
        rank=rank,
        axes=axes,
        device=device,
        data=data.to(device),
        sampler=BatchSampler(plan, rank=axes.replica),
        parameters=parameter_count(model),
        given=data.given,
        meter=Meter(),
        loss=build_loss(loss, device),
        counts_vary=counts_vary(loss, spec.data, data.train),
        metrics=tuple(map(build_metric, metrics)),
        delay_s=spec.slow_ranks.get(rank.rank, SlowRank()).delay_ms / 1000,
        leader=leader,
    )


def check_backend(spec: RunSpec, backend: str, device: torch.device) -> None:
    """Raise a UsageError for what the backend that was chosen cannot do on this device."""
    strategy = spec.strategy
    by_torch = strategy.engine == "torch" and spec.axes.splits_model
    if by_torch and device.type == "cuda" and backend != "nccl":
        raise UsageError(
            f"strategy.engine=torch sends GPU tensors, which {backend} cannot and NCCL "
            f"can, with a GPU for each rank; set strategy.engine=drumline, or device=cpu"
        )
    overlaps = strategy.kind != "ddp" and strategy.bucketed and strategy.of == "gradients"
    if spec.sync_batch_norm and overlaps and backend == "nccl":
        raise UsageError(
            f"strategy={strategy.kind} sends buckets from a thread of its own, and NCCL may hang "
            f"where sync_batch_norm adds up meanwhile, in another order on each GPU; set "
            f"strategy=ddp, or strategy.bucketed=false"
        )


def check_scores(spec: RunSpec, metrics: Sequence[MetricSpec]) -> None:
    """Raise a UsageError if something looks at a score that is not measured."""
    scores = ["loss", *(metric.label for metric in metrics)]
    for key, name in spec.scores_wanted.items():
        if name not in scores:
            raise UsageError(
                f"{key} is {name!r}, which is not measured; name one of {', '.join(scores)}, or "
                f"add it to metrics"
            )


@dataclass(frozen=True, eq=False)
class StepBatch(LocalBatch):
    """This rank's samples of a step, in pieces, and where to fetch them."""

    cut: list[Indices]
    pieces: Iterator[Batch]
    """of this and all later steps; only a runner that needs samples takes any"""

    def fetch(self) -> Iterator[tuple[Indices, Batch]]:
        """Fetch the pieces one after the other."""
        return zip(self.cut, islice(self.pieces, len(self.cut)), strict=True)


class StepTimes(TypedDict):
    """The times of a step's event, in nanoseconds of the monotonic clock."""

    t: int
    data: int
    update: int
    total: int
    blocked: list[list[int]]
    spans: list[Span]
    work: NotRequired[list[Work]]


class StepClock:
    """Times one step after the other and turns each into the fields of its event."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._start = 0
        self._data = 0
        self._updating = 0
        self._blocked: list[list[int]] = []

    def begin(self) -> None:
        """Note that a step starts: the next thing is to fetch its data."""
        self._meter.drain()
        self._start = time.monotonic_ns()
        self._blocked = []

    def data_ready(self) -> None:
        """Note that the batch is here."""
        self._data = time.monotonic_ns() - self._start

    def blocked_since(self, since_ns: int) -> None:
        """Note that this rank did nothing but wait from then until now."""
        self._blocked.append([since_ns, time.monotonic_ns()])

    def updating(self) -> None:
        """Note that gradients are there, and weights are about to move."""
        self._updating = time.monotonic_ns()

    def end(self) -> StepTimes:
        """Return the step's times: start, data, update, total, blocked intervals, collectives."""
        taken = self._meter.drain()
        ended = time.monotonic_ns()
        times: StepTimes = {
            "t": self._start,
            "data": self._data,
            "update": ended - self._updating,
            "total": ended - self._start,
            "blocked": sorted(self._blocked + taken.blocked),
            "spans": taken.spans,
        }
        if taken.work:
            times["work"] = taken.work
        return times


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """What a step begins with; `batch` are this rank's samples."""

    number: int
    lr: float
    """of the optimizer's first group"""
    batch: StepBatch
    clock: StepClock


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss over the samples of this rank, or of its copy of the model."""

    total: float
    """summed over predictions"""
    predictions: int

    @property
    def mean(self) -> float:
        """The mean over predictions."""
        return self.total / max(1, self.predictions)


@dataclass(frozen=True, kw_only=True)
class ModelRunner(ABC):
    """What a rank computes with; every rank calls each method at the same point of the program."""

    context: TrainContext
    model: nn.Module
    """what this rank holds: its parameters are what its optimizer moves"""
    optimizer: Optimizer
    shard: ShardSpec
    """which part of the whole model that is"""
    counts: bool
    """whether this rank's loss counts: one rank's of each copy of the model does"""
    cuts: list[list[str]] | None = None
    """the layers of each part, where the model is cut by layers"""

    @abstractmethod
    def forward_backward(self, step: StepInputs) -> Loss:
        """Leave the averaged gradients of a batch."""

    @abstractmethod
    def update(self, step: StepInputs) -> None:
        """Clip the gradients, and take the optimizer's step."""

    @abstractmethod
    def predict(self, inputs: Inputs) -> Tensor | None:
        """Return the scores of these inputs, on the ranks that have them."""

    def close(self) -> None:  # noqa: B027  most have nothing to let go of
        """Let go of the other ranks, once nothing more is to be computed."""

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients."""
        for param in self.model.parameters():
            if param.grad is not None:
                param.grad.mul_(factor)

    def clip_gradients(self) -> None:
        """Scale the gradient down to the spec's clip_norm, where the whole model's is larger."""
        limit = self.context.spec.clip_norm
        if limit is None:
            return
        if self.context.axes.mesh.splits_model or self.cuts is not None:
            clip_split_gradients(self.model, limit, self.context.axes, self.shard.counts)
        else:
            nn.utils.clip_grad_norm_(self.model.parameters(), limit)


def call_model(model: nn.Module, inputs: Inputs) -> Tensor:
    """Call a model with its input, or with several."""
    try:
        outputs: Tensor = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise UsageError(
            "batch norm normalises by the samples of a rank's piece of the batch, and one has a "
            "single sample; set sync_batch_norm=true, or another data.batch, so that each rank has "
            "two samples of an epoch's last batch, too"
        ) from error
    return outputs


def only_input(inputs: Inputs) -> Tensor:
    """Return the input of a model that is cut by layers, which has one."""
    if isinstance(inputs, tuple):
        raise UsageError(
            f"this data gives {len(inputs)} inputs, and a model that is cut by layers takes one; "
            f"let samples have one, or set strategy=ddp"
        )
    return inputs


def channels_last(model: nn.Module) -> nn.Module:
    """Put a runner's model into the memory format that convolutions are fastest with."""
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
    return model
