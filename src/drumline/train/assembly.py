"""Building what a rank trains with, from its spec and its place."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from drumline.comm import Meter
from drumline.core.spec import RunSpec
from drumline.data import BatchSampler, Dataset, build_dataset
from drumline.models import build_model, parameter_count
from drumline.optim import build_optimizer
from drumline.parallel import Alone, Axes, Holding, build_axes, build_strategy, postpone_dynamo
from drumline.train.place import Place
from drumline.train.turn import Compute
from drumline.train.whole import WholeModel


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What a rank trains with."""

    device: torch.device
    data: Dataset
    sampler: BatchSampler
    batch: int
    """samples per step over all ranks"""
    parameters: int
    """of the whole model"""
    axes: Axes
    compute: Compute
    meter: Meter


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a rank loads on its own, before it needs the others."""

    data: Dataset
    model: nn.Module


def load_material(spec: RunSpec) -> Material:
    """Load the data and build the model, without a word to the others."""
    dtype = getattr(torch, spec.dtype)
    data = build_dataset(spec.data, seed=spec.seed, dtype=dtype)
    model = build_model(spec.model, classes=data.classes, seed=spec.seed, dtype=dtype)
    return Material(data=data, model=model)


def assemble(
    spec: RunSpec, place: Place, device: torch.device, material: Material | None = None
) -> Assembly:
    """Build data, model, strategy and optimizer; every rank calls this once it is in the group."""
    material = material or load_material(spec)
    data = material.data
    axes = build_axes(spec.axes, timeout_s=spec.timeout_s)
    # gd takes the whole data set in a step, cut into chunks of data.batch by the loop
    batch = len(data.train) if spec.optimizer.name == "gd" else spec.data.batch
    sampler = BatchSampler(
        spec=spec.data.partition,
        n=len(data.train),
        labels=data.train.labels,
        batch=batch,
        rank=axes.replica,
        world_size=axes.mesh.data,
        seed=spec.seed,
    )
    here = Dataset(
        name=data.name,
        train=data.train.to(device),
        test=data.test.to(device),
        classes=data.classes,
    )
    meter = Meter()
    postpone_dynamo()
    return Assembly(
        device=device,
        data=here,
        sampler=sampler,
        batch=batch,
        parameters=parameter_count(material.model),
        axes=axes,
        compute=_build_whole(spec, place, axes, device, here, material.model, meter),
        meter=meter,
    )


def _build_whole(
    spec: RunSpec,
    place: Place,
    axes: Axes,
    device: torch.device,
    data: Dataset,
    model: nn.Module,
    meter: Meter,
) -> WholeModel:
    model = model.to(device)
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    alone = axes.mesh.data == 1 < axes.mesh.size
    strategy = Alone(model) if alone else build_strategy(spec.strategy, model, meter, axes.data)
    slow = spec.slow_ranks.get(place.rank)
    return WholeModel(
        spec=spec,
        rank=place.rank,
        axes=axes,
        device=device,
        data=data,
        model=model,
        strategy=strategy,
        optimizer=build_optimizer(spec.optimizer, model.parameters()),
        holding=Holding(writes=place.leads),
        delay_s=0.0 if slow is None else slow.delay_ms / 1000,
    )
