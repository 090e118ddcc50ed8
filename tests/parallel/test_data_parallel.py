"""`DataParallel` and `comm_hook` as a library: awkward modules, and DDP as the witness."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import drumline
from drumline.core.errors import CommError, UsageError
from drumline.parallel import KINDS, Aggregator, average_gradients
from drumline.parallel.bucket import build_buckets


class Awkward(nn.Module):
    """Tied, frozen, of two dtypes, and with a layer that only some ranks use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.wide = nn.Linear(6, 4).double()
        self.sometimes = nn.Linear(6, 4)
        self.never = nn.Linear(6, 4)
        self.register_buffer("offset", torch.randn(6))

    def forward(self, x, use):
        x = torch.relu(self.first(x + self.offset))
        x = self.frozen(self.tied(x))
        out = self.wide(x.double()).float()
        return out + self.sometimes(x) if use else out


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def awkward_gradients(rank, world_size, kind):
    torch.manual_seed(rank)  # different on each rank: rank 0's weights must win
    model = Awkward()
    parallel = drumline.DataParallel(model, kind, bucket_bytes=200)
    x = torch.randn(world_size, 5, 6, generator=torch.Generator().manual_seed(1))
    parallel(x[rank], use=rank == 1).pow(2).mean().backward()
    parallel.finish()
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for other in range(world_size):
        (alone(x[other], use=other == 1).pow(2).mean() / world_size).backward()
    ours, expected = gradients(model), gradients(alone)
    assert ours["never.weight"] is None
    assert ours["sometimes.weight"] is not None
    worst = 0.0
    for name, grad in expected.items():
        if grad is not None:
            worst = max(worst, (ours[name] - grad).abs().max().item())
    assert ours["wide.weight"].dtype == torch.float64
    return worst, [param.sum().item() for param in model.parameters()], model.offset.tolist()


@pytest.mark.parametrize("kind", ["allreduce", "chunked_ring"])
def test_awkward_module(run_ranks, kind):
    results = run_ranks(awkward_gradients, 3, kind)
    assert all(worst <= 1e-6 for worst, _, _ in results)
    assert results[0][1:] == results[1][1:] == results[2][1:]


def train_with(rank, world_size, wrapper, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3)).double()
    finish = None
    if wrapper == "hook":
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.002)
        wrapped.register_comm_hook(*drumline.comm_hook(kind))
    elif wrapper == "ddp":
        wrapped = DistributedDataParallel(model)
    elif wrapper == "naive":
        wrapped = model

        def finish():
            average_gradients(model, Aggregator(kind=kind))
    else:
        wrapped = drumline.DataParallel(model, kind, bucket_bytes=2000)
        finish = wrapped.finish
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        x = torch.randn(4, 20, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), torch.arange(4) % 3).backward()
        if finish is not None:
            finish()
        optimizer.step()
    return torch.cat([param.detach().reshape(-1) for param in model.parameters()])


def train_all_ways(rank, world_size):
    expected = train_with(rank, world_size, "ddp", None)
    return {
        (wrapper, kind): (train_with(rank, world_size, wrapper, kind) - expected).abs().max().item()
        for wrapper in ("hook", "parallel", "naive")
        for kind in KINDS
    }


def test_hook_wrapper_and_naive_form_equal_plain_ddp(run_ranks):
    for differences in run_ranks(train_all_ways, 3):
        assert max(differences.values()) <= 1e-12, differences


def accumulate(rank, world_size):
    model = nn.Linear(4, 2)
    parallel = drumline.DataParallel(model, "ring")
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(rank))
    with parallel.no_sync():
        parallel(x[0]).sum().backward()
    parallel(x[1]).sum().backward()
    parallel.finish()
    twice_without_finish = False
    parallel(x[0]).sum().backward()
    try:
        parallel(x[1]).sum().backward()
    except RuntimeError as error:
        twice_without_finish = "no_sync" in str(error)
    parallel.finish()
    return model.weight.grad is not None, twice_without_finish


def test_accumulation_and_a_forgotten_finish(run_ranks):
    assert run_ranks(accumulate, 2) == [(True, True)] * 2


def test_without_a_group_it_says_what_to_do():
    with pytest.raises(UsageError, match="init_process_group"):
        drumline.DataParallel(nn.Linear(1, 1))


def test_unknown_kind_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'chunked_ring'"):
        Aggregator(kind="chuncked_ring")


def test_buckets_hold_each_parameter_once_last_first():
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10).double())
    buckets = build_buckets(model.parameters(), 450)
    order = [param for bucket in buckets for param in bucket.params]
    assert sorted(map(id, order)) == sorted(map(id, model.parameters()))
    assert all(len({param.dtype for param in bucket.params}) == 1 for bucket in buckets)
    assert buckets[0].params[0] is model[2].bias


def test_bucket_views_keep_the_memory_format():
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    bucket = build_buckets(conv.parameters(), 10**6)[0]
    conv(torch.randn(1, 3, 8, 8)).sum().backward()
    expected = conv.weight.grad.clone()
    for index in range(2):
        bucket.put(index)
    assert torch.equal(conv.weight.grad, expected)
    assert conv.weight.grad.stride() == conv.weight.stride()


def build_odd_model(rank, world_size):
    model = nn.Sequential(nn.Linear(4, 3 + (rank == 2)), nn.BatchNorm1d(3 + (rank == 2)))
    with pytest.raises(CommError) as caught:
        drumline.DataParallel(model, "ring")
    return caught.value.message


def test_a_model_that_differs_between_ranks_is_told_before_it_hangs(run_ranks):
    assert set(run_ranks(build_odd_model, 3)) == {
        "the model differs between ranks: rank 0 has 0.weight float32[3, 4] where rank 2 has "
        "0.weight float32[4, 4]; its factory must build the same on every rank"
    }
