"""Sharing layers out among stages: the slowest stage sets the pace, so make it as fast as can be.

    costs    4   1  1   2  2        one per layer: seconds, or bytes
    cuts   0   1      3      5      stage i has the layers cuts[i] to cuts[i + 1] - 1

The costs are measured on a real microbatch, counted in bytes of parameters, or left out: whoever
knows better says how many layers each stage gets.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.core.formatting import counted
from drumline.parallel.split.layers import Layer
from drumline.parallel.split.stage import Stage, assemble_stage

Microbatch = tuple[Tensor, Tensor]
"""inputs and targets"""
SumLoss = Callable[[Tensor, Tensor], Tensor]
"""of logits and targets, summed over predictions"""

_WARM_UP, _ROUNDS = 2, 7


def partition(costs: Sequence[float], parts: int) -> list[int]:
    """Split layers by cost: return the `parts + 1` cut points whose dearest part is the cheapest.

    Both ends are among them. Of several such partitions it takes one whose counts of layers are
    most even (the smallest sum of squares), and of these the one whose first parts are the
    smallest. By dynamic programming, in parts · layers² steps.
    """
    count = len(costs)
    if not 1 <= parts <= count:
        raise UsageError(
            f"the model has {counted(count, 'layer')}, but {parts} stages need one each at least; "
            f"set workers={max(count, 1)}{' or fewer' if count > 1 else ''}, or cut its forward "
            f"into more layers"
        )
    cost = [[math.fsum(costs[a:b]) for b in range(count + 1)] for a in range(count)]
    # dearest[n]: the cheapest that the dearest of some parts can be, over the layers from n on
    dearest = [math.inf] * count + [0.0]
    for _ in range(parts):
        dearest = [
            min(max(cost[a][b], dearest[b]) for b in range(a + 1, count + 1)) for a in range(count)
        ] + [math.inf]
    return _most_even(cost, parts, dearest[0])


def _most_even(cost: Sequence[Sequence[float]], parts: int, limit: float) -> list[int]:
    """Return the cuts with the smallest sum of squared counts, no part dearer than the limit."""
    count = len(cost)
    # best[n]: the smallest sum for some parts over the layers from n on, and where the first ends
    best = [(math.inf, count)] * count + [(0.0, count)]
    ends: list[list[int]] = []
    for _ in range(parts):
        best = [
            min(
                ((b - a) ** 2 + best[b][0] if cost[a][b] <= limit else math.inf, b)
                for b in range(a + 1, count + 1)
            )
            for a in range(count)
        ] + [(math.inf, count)]
        ends.append([end for _, end in best])
    cuts = [0]
    for end in reversed(ends):
        cuts.append(end[cuts[-1]])
    return cuts


def parse_balance(balance: Sequence[int], layers: Sequence[Layer], parts: int) -> list[int]:
    """Turn the number of layers of each stage of a split model, as written, into cut points."""
    names = f"{counted(len(layers), 'layer')} ({', '.join(layer.name for layer in layers)})"
    fix = f"give {parts} numbers that add up to {len(layers)}"
    if parts == 1:
        fix = f"write [{len(layers)}]"
    if len(balance) != parts:
        raise UsageError(
            f"the balance {list(balance)} is for {counted(len(balance), 'stage')}, but there "
            f"{'is' if parts == 1 else 'are'} {parts}; {fix}, or set workers={len(balance)}"
        )
    if min(balance) < 1:
        raise UsageError(
            f"the balance {list(balance)} leaves stage {balance.index(min(balance))} without a "
            f"layer, so without a parameter to train; give each stage at least 1 of the {names}"
        )
    if sum(balance) != len(layers):
        raise UsageError(
            f"the balance {list(balance)} adds up to {sum(balance)}, but the model has {names}; "
            f"{fix}"
        )
    return [sum(balance[:stage]) for stage in range(parts + 1)]


def count_bytes(model: nn.Module, layers: Sequence[Layer]) -> list[int]:
    """Return how many bytes each layer's parameters take, to split by; one with two names once."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [sum(p.nbytes for p in {parameters[name] for name in n.parameters}) for n in layers]


def measure_times(
    model: nn.Module,
    layers: Sequence[Layer],
    example: Microbatch,
    loss: SumLoss,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Measure the seconds of each layer forward and backward, to split by: medians of a few rounds.

    Each layer is tried on a copy of its own, so weights, gradients, running statistics and the
    random state stay as they are. Weights on the meta device are made up for their layer's turn,
    so that a model can be measured that would not fit into memory. The loss counts as the last
    layer's.
    """

    def now() -> float:
        if gpus:
            torch.cuda.synchronize(gpus[0])
        return clock()

    x, targets = example
    seconds = []
    gpus = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        for index in range(len(layers)):
            layer = _copy(assemble_stage(model, layers, index, index + 1), x.device).train()
            ends_in = (lambda out: loss(out, targets)) if index == len(layers) - 1 else None
            rounds = []
            for _ in range(_WARM_UP + _ROUNDS):
                started = now()
                out = _run(layer, x, ends_in, is_first=index == 0)
                rounds.append(now() - started)
            seconds.append(median(rounds[_WARM_UP:]))
            x = out
    return seconds


def _run(
    layer: Stage, x: Tensor, ends_in: Callable[[Tensor], Tensor] | None, *, is_first: bool
) -> Tensor:
    """Run a layer forward and backward once; return what it gave."""
    x = x.detach()
    if not is_first and x.is_floating_point():
        x.requires_grad_()
    sources = [p for p in (x, *layer.parameters()) if p.requires_grad]
    with torch.enable_grad():
        out: Tensor = layer(x)
        end = ends_in(out) if ends_in is not None else out
    if end.requires_grad:
        torch.autograd.grad(end, sources, torch.ones_like(end), allow_unused=True)
    return out.detach()


@torch.no_grad()
def _copy(stage: Stage, device: torch.device) -> Stage:
    """Copy a stage, with small random weights where it has none."""
    absent = {name for name, tensor in _tensors(stage).items() if tensor.is_meta}
    if not absent:
        return copy.deepcopy(stage)
    made = copy.deepcopy(stage).to_empty(device=device)
    for name, tensor in _tensors(made).items():
        if name not in absent:
            tensor.copy_(_tensors(stage)[name])
        elif tensor.is_floating_point():
            tensor.normal_(std=0.02)
        else:
            tensor.zero_()
    return made


def _tensors(stage: nn.Module) -> dict[str, Tensor]:
    return {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
