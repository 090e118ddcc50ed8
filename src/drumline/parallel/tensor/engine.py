"""The same plan by PyTorch's own engine: DTensor, through `parallelize_module`.

| plan | DTensor's style |
|---|---|
| GATHERED | `ColwiseParallel`, its output made whole |
| COLUMN | `ColwiseParallel`; what it gives stays a DTensor until the ROW after it |
| ROW | `RowwiseParallel`; after a layer that DTensor leaves whole it cuts its input itself |
| HEADS | `qkv` GATHERED, `out` ROW: q, k and v in one weight cannot be cut by heads |
| convolutions | stay whole |

DTensor deals out as `torch.chunk` does: 10 over 4 ranks are 3, 3, 3, 1 (ours: 3, 3, 2, 2), and 9
over 4 leave the last rank nothing. Activations between COLUMN and ROW are DTensors, since a plain
tensor would not tell how unequal the shares are.

`parallelize_module` turns parameters into DTensors. Most things around a model do not mix those
with plain tensors: foreach optimizers, gradient clipping, buckets, safetensors. So each layer here
keeps its shares as plain parameters, and makes DTensors of them (no copy) while it runs:

    weight, a plain share ─▶ DTensor.from_local ─▶ the parallelized nn.Linear ─▶ output
    weight.grad, plain    ◀───────────── backward ◀──────────────────────────────

DTensor's collectives are not metered. It works out shapes with fake tensors, which import torch's
compiler: that cannot be postponed, so all of DTensor is imported only where it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.parallel.tensor.exchange import Exchange, SplitLayer
from drumline.parallel.tensor.plan import How, LayerSplit, Plan
from drumline.parallel.tensor.shares import Share

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


class DTensorLinear(SplitLayer):
    """A linear layer that DTensor splits; its parameters are this rank's shares, plain tensors."""

    def __init__(
        self, linear: nn.Linear, style: ParallelStyle, mesh: DeviceMesh, exchange: Exchange
    ) -> None:
        from torch.distributed.tensor import DTensor, Shard
        from torch.distributed.tensor.parallel import parallelize_module

        super().__init__(exchange)
        self._mesh = mesh
        trained = {name: param.requires_grad for name, param in linear.named_parameters()}
        parallelize_module(linear, mesh, style, src_data_rank=None)
        self._linear = (linear,)  # in a tuple, so that its parameters do not count as ours
        self._whole: dict[str, dict[str, Any]] = {}
        for name, param in [*linear.named_parameters()]:
            assert isinstance(param, DTensor)
            self._whole[name] = {
                "placements": param.placements,
                "shape": param.shape,
                "stride": param.stride(),
            }
            (placement,) = param.placements
            if isinstance(placement, Shard):
                self.shares[name] = Share.chunked(
                    dim=placement.dim,
                    size=param.shape[placement.dim],
                    ranks=exchange.ranks,
                    rank=exchange.rank,
                )
            local = param.to_local().detach().clone()
            self.register_parameter(name, nn.Parameter(local, requires_grad=trained[name]))
            linear.register_parameter(name, nn.Parameter(local.new_empty(0)))  # never used

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out], or to a DTensor where the layer after takes it split."""
        from torch.distributed.tensor import DTensor

        whole: dict[str, Tensor] = {
            name: DTensor.from_local(param, self._mesh, run_check=False, **self._whole[name])
            for name, param in self.named_parameters()
        }
        y: Tensor = torch.func.functional_call(self._linear[0], whole, (x,))
        # a copy of a plain output, since autograd forbids to change DTensor's own view in place
        return y if isinstance(y, DTensor) else y.clone()


def split_by_engine(model: nn.Module, plan: Plan, exchange: Exchange) -> dict[int, nn.Module]:
    """Make this rank's share of each layer that DTensor can split, by the id of the whole layer.

    Every rank of the group calls this with the same plan and weights; nothing travels.
    """
    from torch.distributed.device_mesh import DeviceMesh

    layers = _linear_layers(model, plan)
    if not layers:
        raise UsageError(
            f"engine torch splits linear layers, and {type(model).__name__} has none that can be "
            f"split over {exchange.ranks} ranks; use engine drumline"
        )
    group = dist.group.WORLD if exchange.group is None else exchange.group
    assert group is not None
    mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type)
    return {id(layer): DTensorLinear(layer, _style(rule), mesh, exchange) for layer, rule in layers}


def _linear_layers(model: nn.Module, plan: Plan) -> list[tuple[nn.Linear, LayerSplit]]:
    """Return the linear layers of a plan; those of attention each with a rule of its own."""
    rules: Plan = {}
    for name, rule in plan.items():
        if rule.how is How.HEADS:
            rules[f"{name}.qkv".lstrip(".")] = LayerSplit(how=How.GATHERED)
            rules[f"{name}.out".lstrip(".")] = LayerSplit(how=How.ROW)
        else:
            rules[name] = rule
    planned = [(model.get_submodule(name), rule) for name, rule in rules.items()]
    return [(layer, rule) for layer, rule in planned if isinstance(layer, nn.Linear)]


def _style(rule: LayerSplit) -> ParallelStyle:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    if rule.how is How.GATHERED:
        return ColwiseParallel(output_layouts=Replicate())
    if rule.how is How.COLUMN:
        return ColwiseParallel(use_local_output=False)
    return RowwiseParallel(input_layouts=Replicate())  # of a plain tensor; a DTensor knows its own
