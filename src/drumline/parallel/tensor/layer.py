"""`SplitLayer`: a layer of which this rank holds a share, and knows where it lies in the whole."""

from __future__ import annotations

from torch import Tensor, nn

from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.shares import Share


class SplitLayer(nn.Module):
    """What all split layers have: their ranks, and for each split parameter the share held."""

    exchange: Exchange

    def shares(self) -> dict[str, Share]:
        """Return the share held of each parameter that is split; the others are replicated."""
        raise NotImplementedError


def shares_of(model: nn.Module) -> dict[str, Share]:
    """Return this rank's share of each parameter that is split, by the parameter's whole name."""
    return {
        f"{prefix}.{name}".lstrip("."): share
        for prefix, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, SplitLayer)
        for name, share in layer.shares().items()
    }


def own_part(parameter: Tensor, share: Share | None) -> nn.Parameter:
    """Make a parameter from this rank's share of a whole one, or a replica; frozen stays frozen."""
    whole = parameter.detach()
    part = whole.clone() if share is None else share.take(whole)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)
