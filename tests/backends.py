"""What every backend of ours must do as PyTorch's own, written once: run inside real ranks."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp

OPS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
)
# the last is larger than what passes through shared memory at once
SIZES = (0, 1, 7, 1001, 2**18 + 5)
IN_GLOO = (torch.float32, torch.int64)


def sample(rank, size, dtype):
    """Small whole numbers: sums and products of them are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * size + rank)
    return torch.randint(1, 3, (size,), generator=generator).to(dtype)


def check_all_reduce(rank, world_size):
    """All operations, types and sizes, in rank order where it can be seen; also reduce."""
    gloo = dist.new_group(backend="gloo")
    for size in SIZES:
        for dtype in DTYPES if size < 2**18 else DTYPES[:3]:
            every = [sample(other, size, dtype) for other in range(world_size)]
            for op, combine in OPS.items():
                kind = getattr(ReduceOp, op)
                expected = reduce(combine, every)
                ours = every[rank].clone()
                dist.all_reduce(ours, kind)
                assert torch.equal(ours, expected), ("all_reduce", op, dtype, size)
                if dtype in IN_GLOO:
                    theirs = every[rank].clone()
                    dist.all_reduce(theirs, kind, group=gloo)
                    assert torch.equal(ours, theirs), ("gloo", op, dtype, size)
                root = size % world_size
                ours = every[rank].clone()
                dist.reduce(ours, root, kind)
                assert rank != root or torch.equal(ours, expected), ("reduce", op, dtype, size)
            ours, rounding = every[rank].clone(), None if dtype.is_floating_point else "trunc"
            dist.all_reduce(ours, ReduceOp.AVG)
            mean = reduce(torch.add, every).div(world_size, rounding_mode=rounding)
            assert torch.equal(ours, mean), ("AVG", dtype)
    return "ok"


def check_movement(rank, world_size):
    """What moves tensors from rank to rank, in all forms."""
    for size in SIZES:
        for dtype in (*DTYPES, torch.bool) if size < 2**18 else (torch.float32,):
            every = [sample(other, size, dtype) for other in range(world_size)]
            case = (dtype, size)
            root = (size + 1) % world_size
            ours = every[rank].clone()
            dist.broadcast(ours, root)
            assert torch.equal(ours, every[root]), ("broadcast", case)
            parts = [torch.empty_like(ours) for _ in range(world_size)]
            dist.all_gather(parts, every[rank])
            assert all(map(torch.equal, parts, every)), ("all_gather", case)
            whole = torch.empty(world_size * size, dtype=dtype)
            gather_single(whole, every[rank])
            assert torch.equal(whole, torch.cat(every)), ("all_gather_single", case)
            parts = [torch.empty_like(ours) for _ in range(world_size)]
            dist.gather(every[rank], parts if rank == root else None, dst=root)
            assert rank != root or all(map(torch.equal, parts, every)), ("gather", case)
            ours = torch.empty_like(ours)
            dist.scatter(ours, every if rank == root else None, src=root)
            assert torch.equal(ours, every[rank]), ("scatter", case)
    return "ok"


def check_reduce_scatter(rank, world_size):
    """Both forms; the k-th input of rank r is recognisable."""
    for size in SIZES:
        for dtype in DTYPES if size < 2**18 else (torch.float32,):
            inputs = [
                [sample(10 * source + part, size, dtype) for part in range(world_size)]
                for source in range(world_size)
            ]
            expected = reduce(torch.add, [inputs[source][rank] for source in range(world_size)])
            ours = torch.empty(size, dtype=dtype)
            dist.reduce_scatter(ours, inputs[rank])
            assert torch.equal(ours, expected), ("reduce_scatter", dtype, size)
            ours, given = torch.empty(size, dtype=dtype), torch.cat(inputs[rank])
            scatter_single(ours, given)
            assert torch.equal(ours, expected), ("reduce_scatter_single", dtype, size)
            assert torch.equal(given, torch.cat(inputs[rank])), "the input stays as it was"
    return "ok"


def check_messages(rank, world_size):
    """Send, receive, their asynchronous forms, all_to_all, objects."""
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    if world_size > 1:
        for size in (0, 5, 2**18):
            sent = dist.isend(torch.full((size,), float(rank)), right)
            came = torch.empty(size)
            dist.recv(came, left)
            sent.wait()
            assert torch.equal(came, torch.full((size,), float(left)))
        if rank == 0:
            came = torch.empty(3)
            senders = {dist.recv(came) for _ in range(world_size - 1)}
            assert senders == set(range(1, world_size))
        else:
            dist.send(torch.ones(3), 0)
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(world_size)]
    if dist.get_backend() != "shm":  # gloo, which shm hands this to, has no all_to_all of lists
        outputs = [torch.empty(2) for _ in range(world_size)]
        dist.all_to_all(
            outputs, [torch.full((2,), float(10 * rank + to)) for to in range(world_size)]
        )
        assert [int(part[0]) for part in outputs] == [10 * s + rank for s in range(world_size)]
    output = torch.empty(world_size)
    dist.all_to_all_single(output, torch.arange(world_size) + 10.0 * rank)
    assert output.tolist() == [10.0 * source + rank for source in range(world_size)]
    return "ok"


def check_forms(rank, world_size):
    """Many at once, tensors with gaps, sub-groups, the same bits everywhere."""
    tensors = [torch.full((100 * k + 1,), float(rank + k)) for k in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.ones(3)
    dist.all_reduce(last)  # blocking, behind those
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    total = world_size * (world_size - 1) / 2
    for k, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full_like(tensor, total + k * world_size)), k
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    assert future.wait()[0].tolist() == [world_size] * 2
    gaps = torch.full((4, 6), float(rank)).t()[::2]
    dist.all_reduce(gaps)
    assert torch.equal(gaps, torch.full_like(gaps, total))
    dist.broadcast(gaps, 0)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == total
    subs = [dist.new_group([0, world_size - 1]), dist.new_group(list(range(1, world_size)))]
    for group, members in zip(subs, ({0, world_size - 1}, set(range(1, world_size))), strict=True):
        if rank in members:
            tensor = torch.full((7,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert tensor[0].item() == sum(members), members
            dist.broadcast(tensor.fill_(rank), max(members), group=group)
            assert tensor[0].item() == max(members)
    random = torch.randn(9999, generator=torch.Generator().manual_seed(rank))
    dist.all_reduce(random)
    dist.barrier()
    return hashlib.sha256(random.numpy().tobytes()).hexdigest()


def check_ddp(rank, world_size):
    """DDP ends with the gradients of one process, by its own reducer and by our hook."""
    from drumline.parallel import comm_hook

    gradients = []
    for hook in (None, comm_hook("allreduce")):
        torch.manual_seed(rank)  # DDP takes rank 0's
        model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).double()
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
        if hook is not None:
            ddp.register_comm_hook(*hook)
        inputs = torch.randn(
            4 * world_size, 20, generator=torch.Generator().manual_seed(7)
        ).double()
        for _ in range(3):
            ddp.zero_grad()
            ddp(inputs[4 * rank : 4 * rank + 4]).square().mean().backward()
        averaged = [param.grad.clone() for param in model.parameters()]
        model.zero_grad()
        model(inputs).square().mean().backward()
        for ours, param in zip(averaged, model.parameters(), strict=True):
            assert torch.allclose(ours, param.grad, rtol=1e-12, atol=1e-14)
        gradients.append(averaged)
    return "ok"


CHECKS = (
    check_all_reduce,
    check_movement,
    check_reduce_scatter,
    check_messages,
    check_forms,
    check_ddp,
)


def check_all(rank, world_size):
    """Run every check; return what must be the same on all ranks."""
    return [check(rank, world_size) for check in CHECKS]


def gather_single(output, tensor):
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(output, tensor)


def scatter_single(output, tensor):
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(output, tensor)


def short_group(ranks, timeout_s):
    """A sub-group that gives up soon."""
    return dist.new_group(ranks, timeout=timedelta(seconds=timeout_s))
