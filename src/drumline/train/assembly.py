"""Building what a rank trains with, from its spec and its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from drumline.comm import LOOPBACK, Meter
from drumline.data import BatchSampler, Dataset, build_dataset
from drumline.models import build_model, build_outline, parameter_count
from drumline.parallel import Axes, build_axes, postpone_dynamo
from drumline.spec.mesh import AXES
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import cuts_layers
from drumline.train.building import build_compute
from drumline.train.ground import Ground
from drumline.train.place import Place
from drumline.train.turn import Compute


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

    def describe(self) -> dict[str, Any]:
        """Tell the mesh and the cuts, where the model is split."""
        if not self.axes.mesh.splits_model:
            return {}
        shape = dict(zip(AXES, self.axes.mesh.shape, strict=True))
        return {"mesh": shape, "cuts": self.compute.cuts}


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a rank loads on its own, before it needs the others."""

    data: Dataset
    model: nn.Module
    """the whole one; without weights, where it is to be cut by layers"""


def load_material(spec: RunSpec, held: list[nn.Module] | None = None) -> Material:
    """Load the data and build the model, without a word to the others.

    Args:
        spec: says what.
        held: where memory is limited, gets the model's outline before the model is built.
    """
    dtype = getattr(torch, spec.dtype)
    data = build_dataset(spec.data, seed=spec.seed, dtype=dtype)
    words: dict[str, Any] = {"classes": data.classes, "seed": spec.seed, "dtype": dtype}
    if cuts_layers(spec.strategy, spec.axes):
        model = build_outline(spec.model, **words)
    else:
        if spec.memory_bytes is not None and held is not None:
            held.append(build_outline(spec.model, **words))
        model = build_model(spec.model, **words)
    return Material(data=data, model=model)


def assemble(
    spec: RunSpec,
    place: Place,
    device: torch.device,
    material: Material | None = None,
    leader: str = LOOPBACK,
) -> Assembly:
    """Build data, model, strategy and optimizer; every rank calls this once it is in the group.

    Args:
        spec: says what.
        place: this rank.
        device: where it computes.
        material: what it has loaded; None: load it now.
        leader: the address of rank 0.
    """
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
        compute=build_compute(
            Ground(
                spec=spec,
                place=place,
                axes=axes,
                device=device,
                data=here,
                meter=meter,
                leader=leader,
            ),
            material.model,
        ),
        meter=meter,
    )
