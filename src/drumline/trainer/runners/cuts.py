"""Where a model is cut, and the part that this rank builds: never more of the model than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from drumline.models import build_partial
from drumline.parallel.batch_norm import note_batch_norm
from drumline.parallel.split.balance import count_bytes, measure_times, parse_balance, partition
from drumline.parallel.split.layers import Layer, find_layers
from drumline.parallel.split.stage import build_stage
from drumline.parallel.tensor.apply import apply_tensor_parallel
from drumline.parallel.tied import tied_names
from drumline.spec.run_spec import RunSpec
from drumline.trainer.runners.base import TrainContext, only_input


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """A model's layers, and which of them make up each part."""

    layers: Sequence[Layer]
    bounds: Sequence[int]
    """part k has the layers bounds[k] to bounds[k + 1] - 1"""
    tied: Sequence[tuple[str, ...]]

    def names_of(self, part: int) -> set[str]:
        """Return the parameters and buffers of a part."""
        mine = self.layers[self.bounds[part] : self.bounds[part + 1]]
        return {name for layer in mine for name in (*layer.parameters, *layer.buffers)}

    @property
    def part_of(self) -> dict[str, int]:
        """In which part each parameter or buffer is."""
        parts = range(len(self.bounds) - 1)
        return {name: part for part in parts for name in self.names_of(part)}

    @property
    def tied_apart(self) -> list[tuple[str, ...]]:
        """The names of tied parameters that are in several parts."""
        part_of = self.part_of
        return [names for names in self.tied if len({part_of[name] for name in names}) > 1]

    def describe(self) -> list[list[str]]:
        """Name the layers of each part."""
        cuts = pairwise(self.bounds)
        return [[layer.name for layer in self.layers[first:last]] for first, last in cuts]


def plan_cuts(context: TrainContext, outline: nn.Module, parts: int) -> Cuts:
    """Decide where runners cut the model; every rank calls this, and gets the same answer."""
    layers, spec, train = find_layers(outline), context.spec, context.data.train
    balance = spec.strategy.balance
    if not isinstance(balance, str):
        bounds = parse_balance(balance, layers, parts)
    elif balance == "bytes":
        bounds = partition(count_bytes(outline, layers), parts)
    else:
        partition([1.0] * len(layers), parts)  # refuses before anybody waits for the times
        times = torch.zeros(len(layers), dtype=torch.float64, device=context.device)
        if dist.get_rank() == 0 and parts > 1:
            samples = spec.data.batch // (context.axes.mesh.data * spec.microbatches)
            inputs, targets = train.batch(np.arange(max(1, min(samples, len(train)))))
            example = only_input(inputs), targets
            measured = measure_times(outline, layers, example, context.loss.summed)
            times += torch.tensor(measured).to(times)
        dist.broadcast(times, src=0)
        bounds = partition(times.tolist(), parts)
    return Cuts(layers=layers, bounds=bounds, tied=tied_names(outline))


def note_statistics(spec: RunSpec, outline: nn.Module) -> str | None:
    """Say which layers of a runner see less than the batch of all ranks, if any do."""
    pieces = spec.microbatches
    norms = [
        f"{name} ({type(module).__name__})"
        for name, module in outline.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    if not norms or pieces == 1:
        return note_batch_norm(outline, spec.axes.data, spec.sync_batch_norm)
    more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
    share = spec.data.batch // spec.axes.data
    return (
        f"{norms[0]}{more}: statistics are of microbatches of {share // pieces} samples, not of "
        f"the {share} of a whole batch, so losses differ from one process's; set "
        f"strategy.microbatches=1, or use a norm that does not look at the batch"
    )


def build_parts(context: TrainContext, cuts: Cuts, numbers: Sequence[int]) -> list[nn.Module]:
    """Build some of a runner's parts, with the weights that the whole model would have."""
    spec, group = context.spec, context.axes.tensor
    names = set().union(*(cuts.names_of(number) for number in numbers))
    model = build_partial(
        spec.model,
        seed=spec.seed,
        dtype=getattr(torch, spec.dtype),
        wanted=names.__contains__,
        **context.given,
    )
    if group is not None:
        engine, meter = spec.strategy.engine, context.meter
        model = apply_tensor_parallel(model, group, engine=engine, meter=meter)
    stages = []
    for number in numbers:
        first, last = cuts.bounds[number : number + 2]
        stages.append(build_stage(model, cuts.layers, first, last).to(context.device))
    return stages
