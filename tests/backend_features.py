"""PyTorch's features over a backend of ours, which gloo has too: run inside real ranks."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

gather_singles, scatter_singles = (
    getattr(functional, new if hasattr(functional, new) else old)
    for new, old in (
        ("all_gather_single_coalesced", "all_gather_into_tensor_coalesced"),
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
    )
)


def check_many_handed_on(rank, world_size):
    """What goes on to gloo, many times: Python's lock must not be held meanwhile."""
    for count in range(150):
        output = torch.empty(world_size)
        dist.all_to_all_single(output, torch.full((world_size,), float(rank + count)))
        assert output.tolist() == [float(source + count) for source in range(world_size)]
        sparse = torch.sparse_coo_tensor(
            [[rank]], [1.0 + count], (world_size,), check_invariants=True
        )
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1.0 + count] * world_size
        sent = functional.all_to_all_single(torch.ones(world_size), None, None, dist.group.WORLD)
        assert functional.wait_tensor(sent).tolist() == [1.0] * world_size
    return "ok"


def check_callbacks(rank, world_size):
    """A collective inside `then`, waited for there, with others queued behind the first."""
    first = dist.all_reduce(torch.ones(1), async_op=True)

    def again(future):
        total = future.wait()[0].clone()
        dist.all_reduce(total)
        return dist.all_reduce(total, async_op=True).get_future().wait()[0]

    chained = first.get_future().then(again)
    later = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(5)]
    assert chained.wait().item() == world_size**3
    assert all(work.wait() for work in later)
    return "ok"


def check_power_sgd(rank, world_size):
    """A stock hook whose callbacks wait for collectives, with several buckets."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8))
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.01)
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(5):
        ddp.zero_grad()
        ddp(torch.full((4, 64), float(rank + step))).sum().backward()
    gradients = torch.cat([param.grad.flatten() for param in net.parameters()])
    every = [torch.empty_like(gradients) for _ in range(world_size)]
    dist.all_gather(every, gradients)
    assert all(torch.equal(each, gradients) for each in every)
    return "ok"


class OneOfTwo(nn.Module):
    """A model with a parameter that it does not use."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(1, 1, bias=False)
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        return self.used(x)


def check_join(rank, world_size):
    """Uneven inputs: ranks that have ended shadow the others' collectives."""
    for initial in (True, False):
        ddp = DistributedDataParallel(OneOfTwo(), find_unused_parameters=True)
        with Join([ddp], divide_by_initial_world_size=initial):
            for _ in range(2 + rank):
                ddp.zero_grad()
                ddp(torch.ones(1, 1)).sum().backward()
        gradient = ddp.module.used.weight.grad.item()
        active = world_size - rank  # when this rank made its last step
        divisor = world_size if initial else active
        assert abs(gradient - active / divisor) < 1e-6, (initial, gradient)
    return "ok"


def check_odd_forms(rank, world_size):
    """Parts of several sizes; what is refused leaves the group as it was."""
    parts = [torch.full((each,), float(rank)) for each in range(world_size)]
    mine = torch.empty(rank)
    dist.reduce_scatter(mine, parts)
    assert mine.tolist() == [world_size * (world_size - 1) / 2] * rank
    odd = torch.ones(2).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"SUM of torch\.float8"):
        dist.all_reduce(odd)
    with pytest.raises(ValueError, match="all_gather over"):
        dist.all_gather([torch.empty(1)] * world_size, torch.ones(2))
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)split|dimension"):
        dist.all_to_all_single(torch.empty(world_size), torch.ones(world_size), None, [5, 7])
    tensor = torch.ones(2, 3).t()
    dist.group.WORLD.allreduce(tensor).wait()
    dist.group.WORLD.allreduce([tensor], dist.ReduceOp.MAX).wait()
    assert torch.equal(tensor, torch.full_like(tensor, world_size))
    return "ok"


def check_timeouts(rank, world_size):
    """A call's own timeout, a wait's, and the group's, changed later."""
    if world_size == 1:
        return "ok"
    for change in ("call", "wait", "group"):
        group = dist.new_group()
        options = dist.BarrierOptions()
        options.asyncOp = True
        if change == "call":
            options.timeout = timedelta(seconds=1)
        if change == "group":
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
        if rank == 0:
            work = group.barrier(options)
            with pytest.raises(RuntimeError, match=r"timed out: .* within the timeout of 1 s"):
                work.wait(timedelta(seconds=1 if change == "wait" else 0))
        dist.barrier()
        if change == "wait":  # the collective itself goes on
            work = work if rank == 0 else group.barrier(options)
            assert work.wait()
    return "ok"


def check_profiler(rank, world_size):
    """Each collective is an event with the shapes that go in."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.broadcast(torch.ones(2), 0)
    name = dist.group.WORLD.name()
    shapes = {f"{name}:all_reduce": [], f"{name}:broadcast": []}
    for event in profile.events():
        if event.name in shapes:
            shapes[event.name].append(event.input_shapes)
    assert list(shapes.values()) == [[[[3, 4]], [[5]]], [[[2]]]], shapes
    return "ok"


def check_groups(rank, world_size):
    """Groups have names, stay apart and are destroyed."""
    group = dist.new_group()
    assert group.group_name != dist.group.WORLD.group_name
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    mesh = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("a", "b"))
    dist.all_reduce(tensor, group=mesh.get_group("b"))
    assert tensor.item() == world_size**2
    objects = [None] * world_size
    dist.all_gather_object(objects, {rank: "object"}, group=mesh.get_group("b"))
    assert objects == [{other: "object"} for other in range(world_size)]
    return "ok"


def check_coalesced(rank, world_size):
    """Several at once: coalesced collectives, and messages in one batch."""
    own = [torch.full((3,), float(rank)), torch.full((2, 2), float(rank))]
    lists = [[torch.empty_like(t) for t in own] for _ in range(world_size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it deprecated
        dist.all_gather_coalesced(lists, own)
    for other, tensors in enumerate(lists):
        assert all(torch.equal(t, torch.full_like(t, float(other))) for t in tensors)
    with dist._coalescing_manager():
        for tensor in own:
            dist.all_reduce(tensor)
    total = world_size * (world_size - 1) / 2
    assert all(torch.equal(t, torch.full_like(t, total)) for t in own)
    given = torch.full((2,), float(rank))
    (gathered,) = gather_singles([given], dist.group.WORLD)
    expected = torch.arange(world_size).repeat_interleave(2).float()
    assert torch.equal(functional.wait_tensor(gathered), expected)
    (mine,) = scatter_singles([expected], "sum", [0], dist.group.WORLD)
    assert functional.wait_tensor(mine).tolist() == [rank * world_size] * 2
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    if world_size > 1:
        came = torch.empty(2)
        batch = [dist.P2POp(dist.isend, given, right), dist.P2POp(dist.irecv, came, left)]
        assert all(work.wait() for work in dist.batch_isend_irecv(batch))
        assert came.tolist() == [left, left]
    return "ok"


def check_sharded(rank, world_size):
    """FSDP2, DTensor and a distributed checkpoint give what one process gives."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    whole = torch.arange(24.0).view(6, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(placements=[Shard(1)])
    assert torch.equal(columns.redistribute(placements=[Replicate()]).to_local(), whole)
    assert torch.equal((columns @ columns.t()).full_tensor(), whole @ whole.t())
    torch.manual_seed(3)
    alone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    sharded = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    sharded.load_state_dict(alone.state_dict())
    fully_shard(sharded, mesh=mesh)
    inputs = torch.randn(world_size, 4, generator=torch.Generator().manual_seed(1)).double()
    sharded(inputs[rank : rank + 1]).square().sum().backward()
    alone(inputs).square().sum().div(world_size).backward()
    for ours, param in zip(sharded.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours.grad.full_tensor(), param.grad, rtol=1e-12, atol=1e-14)
    folder = [None]
    with TemporaryDirectory() as made:
        folder[0] = made if rank == 0 else None
        dist.broadcast_object_list(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"rows": rows}, checkpoint_id=Path(folder[0]) / "saved")
            read = {"rows": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0)])}
            dcp.load(read, checkpoint_id=Path(folder[0]) / "saved")
        assert torch.equal(read["rows"].full_tensor(), whole)
        dist.barrier()
    return "ok"


FEATURES = (
    check_many_handed_on,
    check_callbacks,
    check_power_sgd,
    check_join,
    check_odd_forms,
    check_timeouts,
    check_profiler,
    check_groups,
    check_coalesced,
    check_sharded,
)


def check_features(rank, world_size):
    """Run every check; return what must be the same on all ranks."""
    return [check(rank, world_size) for check in FEATURES]
