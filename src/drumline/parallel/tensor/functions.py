"""The conjugate functions at the borders of a split region (Shoeybi et al., 2019, Megatron-LM).

Outside, every rank has the same whole tensor ("replicated"). Inside, each has something of its own:
a share of the features, or a partial sum. At each border forward does one thing and backward the
conjugate one, since the gradient of a copy is a sum and the gradient of a sum is a copy:

                        forward                     backward
    f    enter_split    x ─▶ x on each              gradients add up
                        (identity)                  (all-reduce)
    g    sum_partial    partial sums add up         gradient ─▶ the same on each
                        (all-reduce)                (identity)
         gather_shares  shares ─▶ the whole         keeps the own share of the gradient
                        (all-gather)
         keep_share     keeps the own share         shares of the gradient ─▶ the whole
                                                    (all-gather)

A pair of layers between f and g, with one all-reduce in each direction and nothing in between:

                 ┌─ f ─▶ column 0 ─▶ relu ─▶ row 0 ─┐
    x  on each  ─┤                                  ├─ g ─▶  y on each rank
                 └─ f ─▶ column 1 ─▶ relu ─▶ row 1 ─┘
                    (1)      (2)              (3)  (4)

    forward:   (1) nothing travels  (2) own features  (3) own part of the sum  (4) all-reduce
    backward:  (4) nothing travels  (3) (2) own shares of the gradients        (1) all-reduce

Each is written as the other's backward, so second derivatives come out right, too. What lies
outside must be computed alike on each rank: the gradient that comes back to a border is then the
same on all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.shares import Share


def enter_split(x: Tensor, exchange: Exchange) -> Tensor:
    """f: hand a replica into a tensor-parallel region; backward adds gradients up, which blocks."""
    entered: Tensor = _Enter.apply(x, exchange)  # type: ignore[no-untyped-call]
    return entered


def sum_partial(partial: Tensor, exchange: Exchange) -> Tensor:
    """g: add up tensor-parallel partial sums; every rank of the group calls this, and it blocks."""
    total: Tensor = _Sum.apply(partial, exchange)  # type: ignore[no-untyped-call]
    return total


def gather_shares(part: Tensor, share: Share, exchange: Exchange) -> Tensor:
    """Gather tensor-parallel shares along `share.dim`; every rank calls this, and it blocks."""
    whole: Tensor = _Gather.apply(part, share, exchange)  # type: ignore[no-untyped-call]
    return whole


def keep_share(whole: Tensor, share: Share, exchange: Exchange) -> Tensor:
    """Keep the own share of a tensor-parallel replica; backward gathers gradients, which blocks."""
    part: Tensor = _Keep.apply(whole, share, exchange)  # type: ignore[no-untyped-call]
    return part


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return sum_partial(grad, ctx.exchange), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.sum(partial)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return enter_split(grad, ctx.exchange), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, share: Share, exchange: Exchange) -> Tensor:
        ctx.share, ctx.exchange = share, exchange
        return exchange.gather(part, share)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return keep_share(grad, ctx.share, ctx.exchange), None, None


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, share: Share, exchange: Exchange) -> Tensor:
        ctx.share, ctx.exchange = share, exchange
        return share.take(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return gather_shares(grad, ctx.share, ctx.exchange), None, None
