"""Lab 3: do all ranks begin with the same model?

Each rank builds it from its own random numbers, and calls the student's function once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from drumline.grader.outcome import Wrong
from drumline.grader.pictures import table
from drumline.grader.ranks import on_ranks
from drumline.grader.submission import Submission

_RANKS = 3
_SOURCE = 0


def broadcast(submission: Submission) -> None:
    """Has every rank rank 0's parameters, and its buffers, after the broadcast?"""
    answers = on_ranks(_broadcast, _RANKS, submission)
    source = answers[_SOURCE]["before"]
    rows, off = [], []
    for name in source:
        after = [answer["after"][name] for answer in answers]
        rows.append([name, f"{source[name]:.4f}", *(f"{value:.4f}" for value in after)])
        if any(abs(value - source[name]) > 1e-6 for value in after):
            off.append(name)
    if not off:
        return
    head = ["", "rank 0 had", *(f"rank {rank}" for rank in range(_RANKS))]
    picture = table(head, rows)
    buffers = [name for name in off if name.startswith("norm.running")]
    moved = off if len(off) == len(buffers) else [name for name in off if name not in buffers]
    mistake = "buffers-not-broadcast" if moved == buffers else "parameters-not-broadcast"
    raise Wrong(mistake, picture=picture, off=", ".join(moved), count=len(moved), ranks=_RANKS)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        nn.init.normal_(self.norm.weight)


def _broadcast(rank: int, _: int, submission: Submission) -> dict[str, Any]:
    function = submission.take("replicas", "broadcast_parameters")
    torch.manual_seed(100 + rank)
    model = _Model()
    before = _prints(model)
    function(model)
    return {"before": before, "after": _prints(model)}


def _prints(model: nn.Module) -> dict[str, float]:
    """Sum up each tensor of a model with weights, as its fingerprint."""
    prints = {}
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and name != "norm.bias" and not name.endswith("_var"):
            flat = tensor.detach().double().flatten()
            prints[name] = float((flat * torch.arange(1, len(flat) + 1)).sum())
    return prints
