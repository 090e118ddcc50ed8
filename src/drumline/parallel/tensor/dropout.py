"""Dropout inside a split region, as one process would draw it.

All ranks of a group must start each step from the SAME random state: what is replicated (the output
of a row, say) is then dropped alike on every rank. Inside a split region a rank has a share only.
Drawing a mask for that share would advance the random state by the share's size, and with unequal
shares (4, 3, 3) the ranks would drop different things from there on, also where they must not. So
each rank draws the mask of the whole and keeps its share of it:

    random state      ┌───── mask of the whole, the same on all ranks ─────┐
    on each rank  ─▶  │ rank 0's share │ rank 1's share │ rank 2's share   │  ─▶ state moves alike

It costs random numbers, no communication. On a CPU the masks are those of one process to the bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.parallel.tensor.shares import Share


def draw_mask(part: Tensor, share: Share, p: float) -> Tensor:
    """Draw dropout's factors, 0 or 1/(1−p), for the whole of which `part` is a share; keep ours.

    Every rank calls this from the same random state.
    """
    ones = torch.ones(share.whole_shape(part), dtype=part.dtype, device=part.device)
    return share.take(F.dropout(ones, p))


class ShareDropout(nn.Module):
    """Dropout over this rank's share of the last dimension.

    Args:
        p: the share of the features that is zeroed while training.
        blocks: this rank's share of the blocks that the features come in (channels, say).
    """

    def __init__(self, p: float, blocks: Share) -> None:
        super().__init__()
        self.p = p
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        """Drop features while training; every rank calls this from the same random state."""
        if not self.training or self.p == 0:
            return x
        features = self.blocks.times(x.shape[-1] // self.blocks.length())
        return x * draw_mask(x, features.along(-1), self.p)

    def extra_repr(self) -> str:
        """Return what `print(model)` says of the layer."""
        return f"p={self.p}, {self.blocks.length()} of {self.blocks.size} blocks"
