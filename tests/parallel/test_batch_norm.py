"""Batch norm over all ranks, as one process has it, and batches that no statistics may see."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.parallel.batch_norm import apply_sync_batch_norm, frozen_batch_norm
from drumline.spec.load import validate_spec
from drumline.trainer.runners.base import call_model, check_backend
from training import train_in

IMAGES = torch.randn(7, 3, 5, 4, generator=torch.Generator().manual_seed(1))


class Shared(nn.Module):
    """One layer under two names, one without running statistics, one without parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.again = self.norm
        self.untracked = nn.BatchNorm2d(3, track_running_stats=False)
        self.plain = nn.BatchNorm2d(3, affine=False, momentum=None)

    def forward(self, x):
        return self.plain(self.untracked(self.again(self.norm(self.first(x)).relu())))


def normalise(rank, world_size, images, bf16):
    """Take two steps on this rank's share, then evaluate; return what came out, by name."""
    model = Shared()
    mine = images.tensor_split([4])[rank] if world_size > 1 else images
    if world_size > 1:
        model = DistributedDataParallel(apply_sync_batch_norm(model, 20, Meter()))
    for _ in range(2):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            outputs = model(mine)
        loss = (outputs.float() * torch.linspace(-1, 2, 20).reshape(5, 4)).square().sum()
        (loss * world_size / images.numel()).backward()
    inner = model.module if world_size > 1 else model
    found = {name: p.grad for name, p in inner.named_parameters()}
    found |= {name: buffer for name, buffer in inner.named_buffers() if buffer.dim()}
    inner.eval()
    with torch.no_grad():
        for _ in range(1 + 2 * rank):  # as many batches as each has: nobody waits for the others
            found["evaluated"] = inner(images)
    return {name: tensor.tolist() for name, tensor in found.items()}


@pytest.mark.parametrize(("bf16", "within"), [(False, 2e-5), (True, 0.05)])
def test_unequal_shares_of_images_come_out_as_in_one_process(run_ranks, bf16, within):
    alone = run_ranks(normalise, 1, IMAGES, bf16)[0]
    for found in run_ranks(normalise, 2, IMAGES, bf16):
        assert found.keys() == alone.keys()
        for name, wanted in alone.items():
            got, wanted = torch.tensor(found[name]), torch.tensor(wanted)
            assert (got - wanted).abs().max() <= within * max(1, wanted.abs().max()), name


def test_a_made_up_batch_leaves_no_trace_in_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)).train()
    model[1].eval()  # frozen by the user: it stays so
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with frozen_batch_norm(model, when=True):
        model(torch.ones(1, 3))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
    assert [layer.training for layer in model] == [True, False]
    by_torch = nn.SyncBatchNorm(3)  # in evaluation it leaves out the collective that others are in
    with frozen_batch_norm(by_torch, when=True):
        assert by_torch.training
    with frozen_batch_norm(model, when=False):
        model(torch.ones(2, 3))
    assert model[0].num_batches_tracked == 1


JOB = {
    "model": "own_parts:normed",
    "strategy": "chunked_ring",
    "dtype": "float64",
    "evaluate": False,
    "loggers": [],
    "epochs": 1,
}


def train_with_an_idle_rank(rank, world_size, sync):
    """Train where rank 1 never has a sample; return its weights and batches that norms saw."""
    data = {"name": "own_parts:points", "batch": 20}
    if world_size > 1:
        data["partition"] = {"kind": "shuffle", "sizes": [1.0, 0.0]}
    given = {**JOB, "data": {**data, "samples": 100}, "sync_batch_norm": sync}
    with tempfile.TemporaryDirectory() as folder:
        model = train_in(RunDir(Path(folder)), rank, world_size, given)[0].runner.model
    weights = torch.cat([param.detach().flatten() for param in model.parameters()])
    return weights.tolist(), int(model[1].num_batches_tracked)


@pytest.mark.parametrize("sync", [False, True])
def test_a_rank_without_samples_sits_out(run_ranks, sync):
    ((alone, _),) = run_ranks(train_with_an_idle_rank, 1, False)
    found = run_ranks(train_with_an_idle_rank, 2, sync)
    for weights, _ in found:
        assert weights == pytest.approx(alone, abs=1e-10)
    assert [seen for _, seen in found] == [5, 5 if sync else 0]


def test_a_single_sample_is_told_in_a_sentence():
    with pytest.raises(UsageError, match="single sample; set sync_batch_norm=true"):
        call_model(nn.BatchNorm1d(3), torch.ones(1, 3))
    with pytest.raises(ValueError, match="expected 2D or 3D"):
        call_model(nn.BatchNorm1d(3), torch.ones(1))


@pytest.mark.parametrize(
    ("strategy", "backend", "refused"),
    [
        ("ddp", "nccl", False),
        ("chunked_ring", "gloo", False),
        ({"kind": "chunked_ring", "bucketed": False}, "nccl", False),
        ("chunked_ring", "nccl", True),
    ],
)
def test_two_threads_on_nccl_are_refused(strategy, backend, refused):
    spec = validate_spec({"strategy": strategy, "sync_batch_norm": True})
    said = []
    try:
        check_backend(spec, backend, torch.device("cuda"))
    except UsageError as error:
        said.append(str(error))
    assert bool(said) is refused
    assert all("set strategy=ddp, or strategy.bucketed=false" in words for words in said)
