"""`apply_tensor_parallel`: a whole model becomes this rank's share of it, layer by layer.

    model = build_model(…)                         the same on every rank
    model = apply_tensor_parallel(model, group)    now a share; the rest of the program is as before
    for x, y in batches:                           the SAME batch on every rank of the group
        loss(model(x), y).backward()
        clip_split_gradients(model, 1.0, …)        not torch's: that knows this rank's shares only
        optimizer.step()
    ShardSpec.gather                               whole tensors again, for a checkpoint

What the loop must keep to:

- All ranks of the group get the same batch and compute the same loss. Gradients of replicated
  parameters then come out alike on every rank, to the bit, and need no averaging within the group.
- All ranks of the group start each step from the same random state; see `layers`.
- The optimizer is built after the split: the parameters are new ones.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from torch import nn
from torch.distributed import ProcessGroup

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.core.formatting import nearest
from drumline.parallel.data_parallel import broadcast_state
from drumline.parallel.tensor.exchange import Exchange, SplitLayer
from drumline.parallel.tensor.layers import (
    ChannelConv2d,
    ColumnLinear,
    FusedAttention,
    HeadAttention,
    RowLinear,
    ShareDropout,
)
from drumline.parallel.tensor.plan import How, LayerSplit, build_plan

Engine = Literal["drumline", "torch"]


def apply_tensor_parallel(
    model: nn.Module,
    group: ProcessGroup | None = None,
    *,
    engine: Engine = "drumline",
    meter: Meter | None = None,
) -> nn.Module:
    """Split a model's tensors over the ranks of a group, in place, and return it.

    Every rank of the group calls this with the same whole model; weights are taken from its first
    rank. With one rank the model stays as it is. A model that is a single layer is not changed but
    replaced, so go on with what is returned. The engine is our own layers, or PyTorch's DTensor
    behind the same plan.

    Raises:
        UsageError: no layer can be split, there are more ranks than heads, the model is split
            already, there is no such engine or no process group.
        CommError: the ranks' models differ.
    """
    exchange = Exchange(group=group, meter=meter)
    if any(isinstance(layer, SplitLayer) for layer in model.modules()):
        raise UsageError("the model is split already; give apply_tensor_parallel a whole one")
    if engine not in get_args(Engine):
        hint = nearest(str(engine), get_args(Engine), "name one of them")
        raise UsageError(f"no engine {engine!r} among {', '.join(get_args(Engine))}; {hint}")
    if exchange.ranks == 1:
        return model
    broadcast_state(model, group)
    plan = build_plan(model, exchange.ranks)
    if not plan:
        raise UsageError(
            f"no layer of {type(model).__name__} can be split over {exchange.ranks} ranks: a "
            f"linear layer or convolution with at least {exchange.ranks} outputs is needed, not "
            f"tied and without hooks; use fewer ranks, or another kind of parallelism"
        )
    if engine == "torch":
        from drumline.parallel.tensor.engine import split_by_engine

        return _replace(model, split_by_engine(model, plan, exchange))
    layers = {name: model.get_submodule(name) for name in plan}
    return _replace(
        model,
        {id(layers[name]): _split(layers[name], rule, exchange) for name, rule in plan.items()},
    )


def _split(layer: nn.Module, rule: LayerSplit, exchange: Exchange) -> nn.Module:
    """Make this rank's share of one layer."""
    if rule.how is How.HEADS:
        return HeadAttention(cast(FusedAttention, layer), exchange)
    if isinstance(layer, nn.Dropout):
        assert rule.blocks is not None
        return ShareDropout(layer.p, exchange.share(dim=-1, size=rule.blocks))
    gather = rule.how is How.GATHERED
    if isinstance(layer, nn.Conv2d):
        return ChannelConv2d(layer, exchange, gather=gather)
    assert isinstance(layer, nn.Linear)
    if rule.how is How.ROW:
        return RowLinear(layer, exchange, blocks=rule.blocks)
    return ColumnLinear(layer, exchange, gather=gather, blocks=rule.blocks)


def _replace(model: nn.Module, new: dict[int, nn.Module]) -> nn.Module:
    """Put new layers in the place of old ones, wherever these stand; train or eval stays."""
    for parent in [*model.modules()]:
        for name, child in parent._modules.items():
            if child is not None and id(child) in new:
                parent._modules[name] = new[id(child)].train(child.training)
    return new[id(model)].train(model.training) if id(model) in new else model
