"""`Op`: what a reduction does with two values."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor


class Op(StrEnum):
    """An operation that does not mind the order of its operands, up to rounding."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    """the sum, divided once at the end; of integers, rounded towards zero"""

    def combine(self, into: Tensor, other: Tensor) -> None:
        """Fold another rank's values into these."""
        if self is Op.PRODUCT:
            into.mul_(other)
        elif self is Op.MIN:
            torch.minimum(into, other, out=into)
        elif self is Op.MAX:
            torch.maximum(into, other, out=into)
        else:
            into.add_(other)

    def finish(self, tensor: Tensor, ranks: int) -> None:
        """Do what is left when the values of all ranks are in."""
        if self is not Op.AVG:
            return
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.div_(ranks)
        else:
            tensor.div_(ranks, rounding_mode="trunc")
