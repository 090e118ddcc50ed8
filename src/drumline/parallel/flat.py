"""Parameters packed into flat tensors, so that they are averaged in few messages."""

from __future__ import annotations

import torch
from torch import nn

from drumline.parallel.aggregate import Aggregator
from drumline.parallel.bucket import group_parameters


class FlatParameters:
    """The trainable parameters of a model, copied into buckets and back to average them."""

    def __init__(self, model: nn.Module, bucket_bytes: int) -> None:
        params = [param for param in model.parameters() if param.requires_grad]
        self._groups = group_parameters(params, bucket_bytes)

    @torch.no_grad()
    def average(self, aggregate: Aggregator) -> None:
        """Average over all ranks; every rank calls this."""
        for params in self._groups:
            flat = torch.cat([param.reshape(-1) for param in params])
            aggregate(flat)
            parts = flat.split([param.numel() for param in params])
            for param, part in zip(params, parts, strict=True):
                param.copy_(part.view(param.size()))
