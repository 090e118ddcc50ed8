"""A split model's tensors in the whole model's names and shapes, and back.

A checkpoint holds whole tensors, so that what three ranks wrote is read by two, or by one:

    gather_state(model)            every rank's shares  ─▶  whole tensors, one at a time
    load_state(model, whole)       whole tensors        ─▶  this rank's shares

An optimizer's state has tensors of the parameters' shapes (momentum, say). `gather_named` and
`take_named` do the same for any tensors that are split as the parameters of these names are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from drumline.core.errors import CheckpointError
from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.layer import SplitLayer
from drumline.parallel.tensor.shares import Share


def shares_of(model: nn.Module) -> dict[str, Share]:
    """Return this rank's share of each parameter that is split, by the parameter's whole name."""
    return {
        f"{prefix}.{name}".lstrip("."): share
        for prefix, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, SplitLayer)
        for name, share in layer.shares().items()
    }


def gather_state(model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """Return parameters and buffers, whole, by their names in the whole model.

    Every rank of the group calls this, and it blocks; tensors travel one at a time. A rank that
    does not `keep` them only takes part: it returns nothing, and holds one whole tensor at a time.
    Replicated tensors are the model's own, as in `state_dict`.
    """
    return gather_named(model, model.state_dict(), keep=keep)


def gather_named(
    model: nn.Module, tensors: Mapping[str, Tensor], *, keep: bool = True
) -> dict[str, Tensor]:
    """Put together tensors that are split as the parameters of these names are; see gather_state.

    Every rank of the group calls this with the same names in the same order, and it blocks.
    """
    shares = shares_of(model)
    exchange = _exchange_of(model)
    whole = {}
    for name, tensor in tensors.items():
        found = tensor.detach()
        if name in shares and exchange is not None:
            found = exchange.gather(found, shares[name])
        if keep:
            whole[name] = found
    return whole


def take_named(model: nn.Module, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's shares of whole tensors that are named after the model's parameters."""
    shares = shares_of(model)
    return {
        name: shares[name].take(tensor) if name in shares else tensor
        for name, tensor in whole.items()
    }


@torch.no_grad()
def load_state(model: nn.Module, whole: Mapping[str, Tensor]) -> None:
    """Put whole parameters and buffers into a split model, which takes its shares of them.

    Nothing travels: every rank reads the whole tensors.

    Raises:
        CheckpointError: a name is missing or unknown, or a shape is not that of the whole model;
            the model is then as it was.
    """
    shares = shares_of(model)
    own = model.state_dict()
    for name in sorted(own.keys() ^ whole.keys()):
        which = "has no" if name in own else "has an unknown"
        raise CheckpointError(f"the state {which} {name!r}; load it into the model that wrote it")
    for name, tensor in own.items():
        share = shares.get(name)
        shape = tuple(tensor.shape) if share is None else share.whole_shape(tensor)
        if tuple(whole[name].shape) != shape:
            raise CheckpointError(
                f"{name} has shape {list(whole[name].shape)} in the state, but {list(shape)} in "
                f"the whole model; load it into the model that wrote it"
            )
    for name, tensor in take_named(model, whole).items():
        own[name].copy_(tensor)


def _exchange_of(model: nn.Module) -> Exchange | None:
    """Return the exchange that split layers share, without the meter: this is no step's work."""
    split = next((layer for layer in model.modules() if isinstance(layer, SplitLayer)), None)
    return None if split is None else Exchange(group=split.exchange.group)
