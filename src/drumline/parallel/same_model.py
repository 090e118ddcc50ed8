"""Have all ranks built the same model? If not, their first exchange of weights hangs, or worse.

A factory that draws a size at random, or asks for its rank, is enough for that.
"""

from __future__ import annotations

import hashlib
from itertools import chain

import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from drumline.comm import SMALL, Agreement
from drumline.core.errors import CommError


def check_same_model(module: nn.Module, group: ProcessGroup | None = None) -> None:
    """Return if parameters and buffers have the same names, types and shapes on all ranks.

    Every rank of the group calls this, and it blocks until all have; large groups skip it.

    Raises:
        CommError: they differ; the message names the first one that does, and the ranks.
    """
    if not 1 < dist.get_world_size(group) <= SMALL:
        return
    agreement = Agreement.of(group)
    own = [
        f"{name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
    ]
    digest = hashlib.sha256("\n".join(own).encode()).hexdigest()
    answers = agreement.compare(f"{len(own)} {digest}")
    if len(set(answers)) == 1:
        return
    longest = max(int(answer.split()[0]) for answer in answers)
    for number in range(longest):
        entries = agreement.compare(own[number] if number < len(own) else "nothing more")
        if len(set(entries)) > 1:
            odd = next(rank for rank, entry in enumerate(entries) if entry != entries[0])
            raise CommError(
                f"the model differs between ranks: rank 0 has {entries[0]} where rank {odd} has "
                f"{entries[odd]}; its factory must build the same on every rank"
            )
