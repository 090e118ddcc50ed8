"""`Ground`: what all ways of computing a step stand on: the spec, this rank's place, the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drumline.comm import LOOPBACK, Meter
from drumline.data import Dataset
from drumline.optim import build_optimizer
from drumline.parallel import Axes, SingleProcess, Strategy, build_strategy
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import microbatches_of
from drumline.train.place import Place

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a rank has before it has a model to compute with."""

    spec: RunSpec
    place: Place
    axes: Axes
    device: torch.device
    data: Dataset
    meter: Meter
    leader: str = LOOPBACK
    """the address of rank 0"""

    @property
    def delay_s(self) -> float:
        """How long this rank sleeps in each step, where it is slowed on purpose."""
        slow = self.spec.slow_ranks.get(self.place.rank)
        return 0.0 if slow is None else slow.delay_ms / 1000

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

    def strategy(self, model: nn.Module) -> Strategy:
        """Average gradients over the copies of what this rank holds."""
        if self.axes.mesh.data == 1 < self.axes.mesh.size:
            return SingleProcess(model)
        return build_strategy(self.spec.strategy, model, self.meter, self.axes.data)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Move the parameters that this rank holds."""
        return build_optimizer(self.spec.optimizer, model.parameters())
