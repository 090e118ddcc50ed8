"""Half-size messages: gradients are computed and used in 32 bits, and travel in 16.

    flat, 32 bits ──(1) ÷ n──(2) round──▶ sent, 16 bits ──(3) sum over n ranks──▶ sent ──(4)──▶ flat

(1) Each rank divides by the number of ranks first, in 32 bits. fp16 ends at 65504, and a sum of n
    gradients may be beyond that where none of them is. A sum of n-ths is, but for rounding, no
    larger than the largest gradient, in whatever order an algorithm of (3) adds up. Dividing after
    (2) would round twice, and after (3) it would be too late.
(2) Round to nearest. fp16 has 11 bits (1/2048), bf16 8 bits (1/256) and the range of float32.
(3) Any aggregator: it adds up in 16 bits, and leaves the same bits on every rank.
(4) Widen, which is exact, so that ranks still hold the same bits. Where the sum is asked for and
    not the mean, multiply by n again, in 32 bits.

The price of (1) is at the other end: what is below n·3e-8 becomes 0 in fp16, and what is below
n·6e-5 has fewer than 11 bits. SGD hardly sees that beside the larger gradients; where all are so
small, or for Adam, which divides by a gradient's size, bf16 is there: it has no such end. Scaling
each bucket by the largest gradient of all ranks would spare this, and cost one more message.

What is beyond 65504 becomes infinite, and so on every rank: `drumline train` stops there and says
so. Programs that use the aggregators as a library find it in their gradients, where, for example,
torch's GradScaler looks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from drumline.spec.strategy import Compress

FORMATS: Mapping[Compress, torch.dtype] = MappingProxyType(
    {"fp16": torch.float16, "bf16": torch.bfloat16}
)
_WIDE = (torch.float32, torch.float64)


def compressible(flat: Tensor, compress: Compress) -> bool:
    """Tell whether a tensor gets smaller; one of 16 bits already is sent as it is."""
    return compress in FORMATS and flat.dtype in _WIDE


def pack(flat: Tensor, compress: Compress, ranks: int) -> Tensor:
    """Return this rank's part of the mean in 16 bits (1, 2); `flat` is divided in place."""
    return flat.div_(ranks).to(FORMATS[compress])


def unpack(sent: Tensor, flat: Tensor, times: int) -> None:
    """Put the mean back into `flat`, so many times (4)."""
    flat.copy_(sent)
    if times > 1:
        flat.mul_(times)
