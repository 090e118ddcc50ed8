"""Training inside `run_ranks`: the real loop on a spec, without a launcher for each case."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from drumline.core.events import EventWriter
from drumline.models import weights_sha256
from drumline.spec.load import validate_spec
from drumline.train.assembly import assemble
from drumline.train.checkpoint import CheckpointStore
from drumline.train.loop import Loop
from drumline.train.place import Place


def train(rank, world_size, values):
    """Train by a spec given as plain values; return the weights' hash and the flat weights."""
    return train_with_result(rank, world_size, values)[:2]


def train_with_result(rank, world_size, values):
    """Train by a spec given as plain values; return what it came to, too."""
    spec = validate_spec({"workers": world_size, "evaluate": False, **values})
    place = Place(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    parts = assemble(spec, place, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        with EventWriter(Path(folder) / "events.jsonl") as events:
            loop = Loop(
                spec,
                place,
                parts,
                events=events,
                checkpoints=CheckpointStore(Path(folder) / "checkpoints", keep=1),
                scalars=None,
                started=time.monotonic(),
            )
            result = loop.run()
        flat = torch.cat(
            [param.detach().reshape(-1).double() for param in parts.compute.model.parameters()]
        )
    return weights_sha256(parts.compute.model), flat.numpy(), result


def train_all(rank, world_size, cases):
    """Train by several specs, one after the other, in one group."""
    return [train(rank, world_size, values) for values in cases]
