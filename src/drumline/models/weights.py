"""What can be said of a model's weights in one word: how many there are, and which.

Two runs ended at the same weights exactly when their `weights_sha256` agree, so runs, ranks and
checkpoints are compared by 64 characters instead of by files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def parameter_count(model: nn.Module) -> int:
    """Count the parameters, frozen ones included, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def weights_sha256(model: nn.Module) -> str:
    """Hash the names, dtypes, shapes and bytes of all parameters and buffers, sorted by name.

    Where the tensors lie (device) and in what order (memory format) makes no difference. A tensor
    with two names (tied weights) counts under both, as in a `state_dict`.
    """
    tensors: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return tensors_sha256(tensors)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash tensors as `weights_sha256` does; each is read when its turn comes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        header = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(header).encode() + b"\n")
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the elements row by row, as they lie in memory; bfloat16 has no numpy dtype."""
    rows = tensor.detach().cpu().contiguous().reshape(-1)
    return rows.view(torch.uint8).numpy().data
