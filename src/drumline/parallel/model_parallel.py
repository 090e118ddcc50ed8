"""`Pipeline` and `TensorParallel`: a split model for any training loop, with any torch optimizer.

    stages = drumline.Pipeline(model, stages=2, microbatches=8)     # cut between layers
    optimizer = torch.optim.AdamW(stages.parameters())
    for x, y in batches:                                            # the same on all stages
        optimizer.zero_grad()
        loss = stages.step(x, y, F.cross_entropy)                   # forward and backward
        optimizer.step()

    model = drumline.TensorParallel(model, ways=2)                  # cut inside layers
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches:                                            # the same on all ways
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        model.finish()                                              # averages over copies
        optimizer.step()

Every rank gives the whole model and keeps its part. Where there are more ranks than parts, there
are several copies of the model, next to each other in rank order; each takes batches of its own,
of equal size, and the copies' gradients are averaged. The result is what one process computes:

    4 ranks, 2 parts      copy 0: ranks 0, 1      copy 1: ranks 2, 3
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.nn.modules.module import _IncompatibleKeys

from drumline.comm import Channel
from drumline.core.errors import UsageError
from drumline.core.formatting import listed
from drumline.parallel.axes import Axes, build_axes
from drumline.parallel.data_parallel import DataParallel, broadcast_state
from drumline.parallel.pipeline.executor import Executor, NoSync, check_schedule
from drumline.parallel.shard_spec import ShardSpec, clip_split_gradients, describe_shard
from drumline.parallel.split.balance import count_bytes, parse_balance, partition
from drumline.parallel.split.layers import find_layers
from drumline.parallel.split.stage import Chunks, build_stage
from drumline.parallel.tensor.apply import apply_tensor_parallel
from drumline.parallel.tied import TiedGradients, tied_names
from drumline.spec.mesh import Mesh

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""of outputs and targets; the mean over the samples"""
_GIVE = "give what state_dict() or full_state_dict() returned for this model"


class SplitModule(nn.Module):
    """This rank's part of a model, in the whole model's names."""

    def __init__(self, part: nn.Module, axes: Axes, shard: ShardSpec) -> None:
        super().__init__()
        self.module = part
        self._axes, self._shard = axes, shard
        self._names: Container[str] = part.state_dict().keys()
        """of the whole model"""
        self._average: Callable[[], None] = _do_nothing
        self._no_sync: NoSync = contextlib.nullcontext
        if axes.data is not None:
            copies = DataParallel(part, "allreduce", group=axes.data)
            self._average, self._no_sync = copies.finish, copies.no_sync

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Name this rank's parameters as the whole model does."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Name this rank's buffers as the whole model does."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return this rank's parameters and buffers by the whole model's names."""
        return self.module.state_dict(*args, **kwargs)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole model's parameters and buffers; every rank calls this, and it blocks."""
        return {name: self._gather(name, tensor) for name, tensor in self.state_dict().items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copy this rank's part from its own state, or from the whole model's.

        Raises:
            UsageError: a tensor's shape is neither the part's nor the whole; if it is `strict`,
                also that one is missing, or not in the whole model; `assign` is asked for.
        """
        if assign:
            raise UsageError(
                "assign=True would replace the parameters that gradients are averaged for; leave "
                "it out, and values are copied"
            )
        own = self.state_dict()
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in self._names]
        for name, tensor in own.items():
            given = state_dict.get(name, tensor)
            if given.shape != tensor.shape:
                if tuple(given.shape) != self._shard.whole_shape(name, tensor):
                    raise UsageError(
                        f"the state has a shape of {list(given.shape)} for {name}, which is "
                        f"{list(tensor.shape)} here; {_GIVE}"
                    )
                given = self._shard.cut(name, given)
            tensor.copy_(given)
        if strict and (missing or unexpected):
            lacks, more = (listed(names or ["nothing"]) for names in (missing, unexpected))
            raise UsageError(
                f"the state lacks {lacks}, and has {more} that the model has not; {_GIVE}, or set "
                f"strict=False"
            )
        return _IncompatibleKeys(missing, unexpected)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip by the norm of the whole model's gradient, and return it; every rank calls this."""
        return clip_split_gradients(self.module, max_norm, self._axes, self._shard.counts)

    def _gather(self, name: str, tensor: Tensor) -> Tensor:
        return self._shard.gather(name, tensor).detach().clone()


class Pipeline(SplitModule):
    """A stage of a model that is cut between layers; microbatches pass through all stages.

    Every rank builds it around the same whole model, whose weights are taken from rank 0, and may
    let go of that afterwards. `parameters()` are those of this rank's stage, in the names of the
    whole model.

    Args:
        module: what forward calls one after the other becomes layers; each cut is crossed by one
            tensor.
        stages: how many ranks hold one copy of the model.
        microbatches: how many pieces `step` cuts a batch into.
        schedule: 1f1b, gpipe, or interleaved (two chunks of the model on each rank).
        balance: how many layers each stage gets (each chunk, if interleaved); None: equal bytes.
        recompute: keep only inputs, and compute activations again for backward.

    Raises:
        UsageError: the ranks do not make whole pipelines, or the model cannot be cut so.
    """

    def __init__(
        self,
        module: nn.Module,
        stages: int,
        *,
        microbatches: int = 4,
        schedule: str = "1f1b",
        balance: Sequence[int] | None = None,
        recompute: bool = False,
    ) -> None:
        if not isinstance(microbatches, int) or microbatches < 1:
            raise UsageError(f"microbatches={microbatches!r}: give a whole number, 1 or more")
        per_rank = 2 if schedule == "interleaved" else 1
        check_schedule(schedule, stages=stages, chunks=per_rank)
        axes = _build_axes("Pipeline", stages=stages)
        broadcast_state(module)
        layers, parts = find_layers(module), stages * per_rank
        if balance is None:
            bounds = partition(count_bytes(module, layers), parts)
        else:
            bounds = parse_balance(balance, layers, parts)
        numbers = [axes.stage + chunk * stages for chunk in range(per_rank)]
        chunks = [build_stage(module, layers, *bounds[k : k + 2]) for k in numbers]
        part = chunks[0] if per_rank == 1 else Chunks(chunks)
        tied = tied_names(module)
        shard = describe_shard(part, axes, tied=tied, parts=stages, part=axes.stage)
        super().__init__(part, axes, shard)
        self.microbatches = microbatches
        self._stage_of = {
            name: number % stages
            for number in range(parts)
            for layer in layers[bounds[number] : bounds[number + 1]]
            for name in (*layer.parameters, *layer.buffers)
        }
        self._outline = {name: tensor.to("meta") for name, tensor in module.state_dict().items()}
        self._names = self._outline
        self._device = next(module.parameters()).device
        self._tied = TiedGradients(part, tied, self._stage_of, axes, timeout_s=_timeout_s())
        self._engine = Executor(
            chunks,
            channel=_build_channel(axes),
            schedule=schedule,
            recompute=recompute,
            no_sync=self._no_sync,
        )

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage, and so the outputs."""
        return self._axes.stage == self._axes.mesh.pipeline - 1

    def step(self, inputs: Tensor, targets: Tensor, loss: LossFunction) -> float:
        """Run forward and backward of a batch, and return its loss; every rank calls this.

        Gradients are added to `.grad`, averaged over the copies of the model. The stages of one
        copy give the same batch. It is cut into microbatches, whose losses are averaged by samples:
        `loss` must be a mean over samples, as PyTorch's are by default.
        """
        samples = len(inputs)
        pieces = min(self.microbatches, samples)
        cut = (inputs.tensor_split(pieces), targets.tensor_split(pieces))

        def summed(outputs: Tensor, targets: Tensor) -> Tensor:
            return loss(outputs, targets) * len(targets)

        losses = self._engine.train(list(zip(*cut, strict=True)), summed, 1 / samples)
        self._average()
        self._tied.add_up()
        mean = torch.tensor(sum(losses) / samples, dtype=torch.float64, device=self._device)
        return float(self._from_stage(self._axes.mesh.pipeline - 1, mean))

    def forward(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs, on the last stage; every rank calls this. Nothing for backward."""
        return self._engine.predict(inputs)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole model's parameters and buffers; every rank calls this, and it blocks."""
        own = self.state_dict()
        return {
            name: self._from_stage(
                self._stage_of[name],
                own[name].clone() if name in own else torch.empty_like(like, device=self._device),
            )
            for name, like in self._outline.items()
        }

    def _from_stage(self, stage: int, tensor: Tensor) -> Tensor:
        """Give all stages of this copy what one of them has, in place."""
        if self._axes.pipeline is not None:
            dist.broadcast(tensor, group=self._axes.pipeline, group_src=stage)
        return tensor


class TensorParallel(SplitModule):
    """This rank's shares of a model whose layers are split (Megatron-LM's tensor parallelism).

    Every rank builds it around the same whole model, whose weights are taken from rank 0 and whose
    layers are replaced in place. The ranks of one copy give it the same batches, and start each
    step from the same random state.

    Args:
        module: linear layers, convolutions and attention are split, the rest is replicated.
        ways: how many ranks hold one copy of the model.

    Raises:
        UsageError: the ranks do not make whole copies, or no layer can be split in so many.
    """

    def __init__(self, module: nn.Module, ways: int) -> None:
        axes = _build_axes("TensorParallel", ways=ways)
        broadcast_state(module)
        tied = tied_names(module)
        if axes.tensor is not None:
            module = apply_tensor_parallel(module, axes.tensor)
        super().__init__(module, axes, describe_shard(module, axes, tied=tied))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*args, **kwargs)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Only accumulate: backward passes in here leave nothing to `finish`."""
        return self._no_sync()

    def finish(self) -> None:
        """Block until gradients are averaged over copies; every rank calls this after backward."""
        self._average()


def _build_axes(what: str, *, stages: int = 1, ways: int = 1) -> Axes:
    """Make the groups of whole copies of a split model; the rest of the ranks are more copies."""
    if not dist.is_initialized():
        raise UsageError(f"{what} needs a process group; call dist.init_process_group(…) first")
    ranks, parts = dist.get_world_size(), stages * ways
    if parts < 1 or ranks % parts:
        word = "stages" if stages != 1 else "ways"
        raise UsageError(
            f"{ranks} ranks cannot be shared out among copies of a model in {parts} parts; start "
            f"a multiple of {max(parts, 1)}, or set {word} to a divisor of {ranks}"
        )
    mesh = Mesh(data=ranks // parts, pipeline=stages, tensor=ways)
    return build_axes(mesh, timeout_s=_timeout_s())


def _build_channel(axes: Axes) -> Channel:
    """Make the channel of a pipeline's messages; on NCCL they go through host memory."""
    group = None
    if dist.get_backend() == "nccl":
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=_timeout_s()))
    return Channel(group, axes.mesh.group_of("pipeline", dist.get_rank()))


def _timeout_s() -> float:
    return default_pg_timeout.total_seconds()


def _do_nothing() -> None:
    """Average nothing: there is one copy of the model."""
