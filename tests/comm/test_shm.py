"""The shared-memory backend: PyTorch's results, and what happens when ranks misbehave."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from backend_features import check_features
from backends import check_all, short_group
from drumline.comm.shm.arena import share_of
from drumline.comm.shm.group import ShmGroup
from drumline.comm.shm.segment import SharingError, share_segment
from drumline.core.errors import CommError
from drumline.trainer.rank import describe_error

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's memfd")


@pytest.fixture(autouse=True)
def nothing_in_dev_shm():
    """Whatever happens, no file is left (those of Python's own semaphores come and go)."""
    before = files_in_dev_shm()
    yield
    assert files_in_dev_shm() <= before


def files_in_dev_shm():
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_everything_equals_torch(run_ranks, world_size):
    results = run_ranks(check_all, world_size, backend="shm", timeout_s=100)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("world_size", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_the_features_of_torch_that_gloo_has(run_ranks, world_size):
    results = run_ranks(check_features, world_size, backend="shm", timeout_s=100)
    assert all(result == results[0] for result in results)


def reduce_in_place(rank, world_size):
    group = dist.group.WORLD
    assert isinstance(group, ShmGroup)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        for size in (0, 1, 17, 300_001):
            tensor = group.allocate(size, dtype)
            assert torch.equal(tensor, torch.zeros(size, dtype=dtype))
            address = tensor.data_ptr()
            for _ in range(3):
                tensor.fill_(rank + 1)
                dist.all_reduce(tensor)
                assert torch.equal(
                    tensor, torch.full_like(tensor, world_size * (world_size + 1) / 2)
                )
            part = tensor[size // 3 :]  # at an offset
            part.fill_(rank)
            dist.all_reduce(part, dist.ReduceOp.MAX)
            assert torch.equal(part, torch.full_like(part, world_size - 1))
            assert tensor.data_ptr() == address
    return sum(name.name.startswith("drumline") for name in Path("/dev/shm").iterdir())


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_tensors_that_live_in_shared_memory(run_ranks, world_size):
    assert run_ranks(reduce_in_place, world_size, backend="shm") == [0] * world_size


def lose_peers(rank, world_size):
    """Rank 1 is killed in DDP's backward, 3 is stopped in an all_reduce, 5 calls something else."""
    groups = [short_group(pair, 3) for pair in ([0, 1], [2, 3], [4, 5])]
    mine = groups[rank // 2]
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3), process_group=mine)
    began = time.monotonic()
    try:
        if rank in (0, 1):
            loss = model(torch.ones(2, 3)).sum()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
        elif rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif rank == 5:
            dist.broadcast(torch.ones(4), 5, group=mine)
        else:
            dist.all_reduce(torch.ones(4), group=mine)
    except Exception as error:
        return type(error).__name__, str(error), describe_error(error), time.monotonic() - began
    return None


def test_a_lost_or_confused_peer_is_named(run_ranks):
    results = run_ranks(lose_peers, 6, backend="shm", lost=(1, 3))
    _, text, record, seconds = results[0]
    assert "rank 1 ended while this rank waited for a peer" in text
    assert record["consequence"]
    assert seconds < 3, "before the time limit"
    name, text, record, seconds = results[2]
    assert name == "LostPeerError"
    assert (
        "timed out: rank 3 did not come to all_reduce SUM of 4 float32 within the timeout of 3 s"
        in text
    )
    assert record["consequence"]
    assert record["timed_out"]
    assert seconds < 10
    for rank in (4, 5):
        name, text, record, _ = results[rank]
        assert name == "CommError"
        assert "rank 4 all_reduce SUM of 4 float32" in text
        assert "rank 5 broadcast from 1 of 4 float32" in text
        assert not record["consequence"]


def test_ranks_that_cannot_share_are_refused_with_the_reason():
    """Another host's memory: the descriptor is there, the token is not the same."""
    store = dist.HashStore()
    with open("/dev/zero", "rb") as other:
        where = f'{{"pid": {os.getpid()}, "fd": {other.fileno()}, "token": "00", "space": "SPACE"}}'
        store.set("where", where.replace("SPACE", os.readlink("/proc/self/ns/pid")))
        store.set("verdict", '[{"pid": 1}, {"error": "it found other memory"}]')
        with pytest.raises(SharingError, match="rank 1 cannot share memory: it found other memory"):
            share_segment(store, 1, 2, 100)
    assert b"another host" in store.get("answer/1") or b"cannot open" in store.get("answer/1")


def test_a_group_of_one_and_what_it_refuses():
    group = ShmGroup(dist.HashStore(), 0, [0], timedelta(seconds=5))
    tensor = torch.ones(3)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [1, 1, 1]
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    with pytest.raises(TypeError, match=r"AVG of torch\.bool"):
        group.allreduce([torch.ones(3, dtype=torch.bool)], options).wait()
    with pytest.raises(ValueError, match="shm moves CPU tensors"):
        group.broadcast([torch.ones(3, device="meta")]).wait()
    group.shutdown()
    with pytest.raises(CommError, match="closed"):
        group.allreduce([tensor]).wait()


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_shares_cover_a_tensor_in_whole_cache_lines(itemsize):
    for size in range(1, 6):
        for numel in (0, 1, 15, 16, 17, 1000, 4096):
            shares = [share_of(rank, size, numel, itemsize) for rank in range(size)]
            covered = [index for share in shares for index in range(numel)[share]]
            assert covered == list(range(numel))
            assert all(share.start * itemsize % 64 == 0 or share.start == numel for share in shares)


def use_awkward_tensors(rank, world_size):
    """Leaves that want gradients; results of a wrong size; then the group goes on."""
    weight = torch.nn.Parameter(torch.full((4,), float(rank + 1)))
    dist.broadcast(weight, 0)
    dist.all_reduce(weight)
    with torch.no_grad():
        dist.all_reduce(weight, async_op=True).wait()
    parts = [torch.ones(3) for _ in range(world_size)]
    with pytest.raises(ValueError, match=r"2 parts, that of rank \d of 2"):
        dist.reduce_scatter(torch.zeros(2), parts)
    with pytest.raises(ValueError, match="2 parts, each of 1"):
        dist.all_gather(parts, torch.ones(1))
    with pytest.raises(TypeError, match=r"AVG of torch\.bool"):
        dist.all_reduce(torch.ones(1, dtype=torch.bool), dist.ReduceOp.AVG)
    last = torch.ones(2)
    dist.all_reduce(last)
    return weight.tolist(), last.tolist()


def test_leaves_are_taken_and_wrong_sizes_refused_before_anybody_waits(run_ranks):
    for answer in run_ranks(use_awkward_tensors, 2, backend="shm"):
        assert answer == ([4.0] * 4, [2.0, 2.0])
