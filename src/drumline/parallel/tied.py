"""Tied parameters: one tensor under several names, such as an embedding that is also the head.

Cut into stages, each stage that uses it has a copy and computes its own part of the gradient. The
sum of the parts is the gradient of the one parameter, so that all copies take the same step and
stay equal (as Megatron-LM does with the embedding that is both first and last).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from drumline.comm import Meter, members_of
from drumline.parallel.axes import Axes


def tied_names(model: nn.Module) -> list[tuple[str, ...]]:
    """Find tied parameters of a model to be split: groups of names, in the model's order."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [tuple(group) for group in names.values() if len(group) > 1]


class TiedGradients:
    """Add up the gradients of parameters that live in several stages."""

    def __init__(
        self,
        model: nn.Module,
        tied: Sequence[tuple[str, ...]],
        stage_of: Mapping[str, int],
        axes: Axes,
        *,
        timeout_s: float,
        meter: Meter | None = None,
    ) -> None:
        """Make the groups; every rank of the mesh calls this.

        `tied` has the names of each parameter that has several, `stage_of` the stage of each name.
        """
        self._meter = meter
        mesh = axes.mesh
        own = dict(model.named_parameters(remove_duplicate=False))
        self._sums: list[tuple[nn.Parameter, ProcessGroup]] = []
        for names in tied:
            stages = sorted({stage_of[name] for name in names})
            if len(stages) == 1:
                continue
            for replica in range(mesh.data):
                for share in range(mesh.tensor):
                    ranks = [mesh.rank(replica, stage, share) for stage in stages]
                    group = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s))
                    if dist.get_rank() in ranks:
                        name = next(name for name in names if name in own)
                        self._sums.append((own[name], group))

    @torch.no_grad()
    def add_up(self) -> None:
        """Give every copy the sum of all gradients; every stage that holds one calls this."""
        for param, group in self._sums:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            arrived = time.monotonic_ns()
            dist.all_reduce(param.grad, group=group)
            if self._meter is not None:
                if param.grad.is_cuda:  # only queued: its end is what the ledger wants
                    torch.cuda.current_stream(param.grad.device).synchronize()
                self._meter.record("tied", param.grad.nbytes, arrived, members_of(group))
