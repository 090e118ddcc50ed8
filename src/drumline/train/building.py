"""Building what a rank computes with: the whole model, its shares, or its stage of a pipeline."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from drumline.comm import Channel
from drumline.core.errors import UsageError
from drumline.optim import build_optimizer
from drumline.parallel import Strategy, TiedGradients
from drumline.parallel.pipeline import Executor, TorchEngine
from drumline.parallel.rpc import Part, join_rpc
from drumline.parallel.split import Chunks, tied_names
from drumline.parallel.tensor import apply_tensor_parallel
from drumline.spec.strategy import cuts_layers
from drumline.train.by_rpc import RpcCompute
from drumline.train.cuts import build_parts, hold_part, plan_cuts
from drumline.train.evaluate import loss_sum
from drumline.train.ground import Ground
from drumline.train.pipelined import Engine, PipelinedModel, SumLoss
from drumline.train.turn import Compute
from drumline.train.whole import WholeModel


def build_compute(ground: Ground, model: nn.Module) -> Compute:
    """Build it as the spec says; every rank calls this.

    Args:
        ground: what there is.
        model: the whole model; its outline, where it is cut by layers.
    """
    _refuse_engine(ground)
    if ground.spec.strategy.kind == "rpc":
        return _build_by_rpc(ground, model)
    if cuts_layers(ground.spec.strategy, ground.axes.mesh):
        return _build_pipelined(ground, model)
    return _build_whole(ground, model)


def _refuse_engine(ground: Ground) -> None:
    """PyTorch's engines hand the backend what they have, and gloo cannot send from a GPU."""
    by_torch = ground.spec.strategy.engine == "torch" and ground.axes.mesh.splits_model
    if by_torch and ground.device.type == "cuda" and dist.get_backend() != "nccl":
        raise UsageError(
            f"strategy.engine=torch sends GPU tensors, which {dist.get_backend()} cannot and NCCL "
            f"can, with a GPU for each rank; set strategy.engine=drumline, or device=cpu"
        )


def _build_whole(ground: Ground, model: nn.Module) -> WholeModel:
    axes = ground.axes
    aliases = {name: names[0] for names in tied_names(model) for name in names[1:]}
    if axes.tensor is not None:
        engine = ground.spec.strategy.engine
        model = apply_tensor_parallel(model, axes.tensor, engine=engine, meter=ground.meter)
    model = _lay_out(model.to(ground.device))
    return WholeModel(
        ground=ground,
        model=model,
        strategy=ground.strategy(model),
        optimizer=ground.optimizer(model),
        holding=hold_part(model, axes, aliases=aliases),
    )


def _build_pipelined(ground: Ground, outline: nn.Module) -> PipelinedModel:
    spec, axes = ground.spec, ground.axes
    stages = axes.mesh.pipeline
    per_rank = spec.strategy.chunks or 2 if spec.strategy.schedule == "interleaved" else 1
    cuts = plan_cuts(ground, outline, stages * per_rank)
    numbers = [axes.stage + chunk * stages for chunk in range(per_rank)]
    chunks = build_parts(ground, cuts, numbers)
    if spec.strategy.engine == "drumline":  # PyTorch's engine sends contiguous tensors only
        chunks = [_lay_out(chunk) for chunk in chunks]
    model = chunks[0] if per_rank == 1 else Chunks(chunks)
    loss: SumLoss = loss_sum
    if spec.precision == "bf16":  # around forward alone: not around backward
        autocast = torch.autocast(ground.device.type, dtype=torch.bfloat16)
        loss = autocast(loss_sum)
        for chunk in chunks:
            chunk.forward = autocast(chunk.forward)
    strategy = ground.strategy(model)
    return PipelinedModel(
        ground=ground,
        model=model,
        engine=_build_engine(ground, chunks, strategy),
        loss=loss,
        strategy=strategy,
        tied=TiedGradients(
            model,
            cuts.tied,
            {name: part % stages for name, part in cuts.part_of.items()},
            axes,
            timeout_s=spec.timeout_s,
            meter=ground.meter,
        ),
        optimizer=ground.optimizer(model),
        holding=hold_part(model, axes, aliases=cuts.aliases, parts=stages, part=axes.stage),
        cuts=cuts.describe(),
    )


def _build_by_rpc(ground: Ground, outline: nn.Module) -> RpcCompute:
    spec, place = ground.spec, ground.place
    agents = join_rpc(
        _get_default_store(),
        rank=place.rank,
        world_size=place.world_size,
        timeout_s=spec.timeout_s,
        leader=ground.leader,
    )
    cuts = plan_cuts(ground, outline, place.world_size)
    (module,) = build_parts(ground, cuts, [place.rank])
    part = Part(module, number=place.rank, device=ground.device, note=ground.meter.note_work)
    return RpcCompute(
        ground=ground,
        agents=agents,
        part=part,
        optimizer=build_optimizer(spec.optimizer, part.trained().values()),
        holding=hold_part(
            module, ground.axes, aliases=cuts.aliases, parts=place.world_size, part=place.rank
        ),
        tied=cuts.tied_apart,
        cuts=cuts.describe(),
    )


def _build_engine(ground: Ground, chunks: list[nn.Module], strategy: Strategy) -> Engine:
    words, axes = ground.spec.strategy, ground.axes
    schedule = words.schedule or "1f1b"
    if words.engine == "torch":
        stages = axes.pipeline or dist.group.WORLD
        assert stages is not None
        return TorchEngine(
            chunks,
            group=stages,
            device=ground.device,
            schedule=schedule,
            recompute=words.recompute,
            no_sync=strategy.no_sync,
        )
    group = None
    if dist.get_backend() == "nccl":  # plain messages go through host memory
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=ground.spec.timeout_s))
    members = axes.mesh.group_of("pipeline", ground.place.rank)
    return Executor(
        chunks,
        channel=Channel(group, members),
        schedule=schedule,
        recompute=words.recompute,
        note=ground.meter.note_work,
        no_sync=strategy.no_sync,
        meter=ground.meter,
    )


def _lay_out(model: nn.Module) -> nn.Module:
    """Choose the memory format that convolutions are fastest with."""
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
    return model
