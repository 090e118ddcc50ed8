"""Training inside `run_ranks`: the real loop on a spec, without a launcher for each case."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from drumline.comm import StoreBarrier
from drumline.core.rundir import EventWriter, RunDir
from drumline.models import weights_sha256
from drumline.spec.load import validate_spec
from drumline.trainer.checkpoint.distributed import RunCheckpoints
from drumline.trainer.device import Footprint
from drumline.trainer.monitor import build_monitor
from drumline.trainer.rank import RankInfo
from drumline.trainer.runners.base import build_context, load_data_and_model
from drumline.trainer.train import Trainer, build_runner


def train(rank, world_size, values):
    """Train by a spec given as plain values; return the weights' hash and the flat weights."""
    return train_with_loss(rank, world_size, values)[:2]


def train_with_loss(rank, world_size, values):
    """Train by a spec given as plain values; return the last loss, too."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        trainer, _ = train_in(run, rank, world_size, {"evaluate": False, **values})
        model = trainer.runner.model
        flat = torch.cat([param.detach().reshape(-1).double() for param in model.parameters()])
    return weights_sha256(model), flat.numpy(), trainer.state.loss


def train_in(run, rank, world_size, values):
    """Train by a spec given as plain values, into a folder; return the trainer and its score."""
    spec = validate_spec({"workers": world_size, **values})
    info = RankInfo(rank=rank, world_size=world_size, local_rank=rank)
    data, model = load_data_and_model(spec, [])
    context = build_context(spec, info, torch.device("cpu"), data, model)
    runner = build_runner(context, model)
    barrier = StoreBarrier(_get_default_store(), rank=rank, world_size=world_size)
    session = torch.tensor(time.time_ns())
    dist.broadcast(session, src=0)
    barrier.session = str(session.item())
    with EventWriter(run.rank_events(rank)) as events:
        trainer = Trainer(
            context,
            runner,
            events,
            checkpoints=RunCheckpoints(run, context, events, barrier),
            monitor=build_monitor(run, runner, events, Footprint(context.device)),
            since=time.monotonic(),
        )
        trainer.restore()
        score = trainer.run()
        trainer.monitor.loggers.finish({})
        runner.close()
    return trainer, score


def train_all(rank, world_size, cases):
    """Train by several specs, one after the other, in one group."""
    return [train(rank, world_size, values) for values in cases]
