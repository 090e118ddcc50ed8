"""Every algorithm of every collective gives what torch.distributed gives, the same bits everywhere.

Five ranks stay up; hypothesis thinks up calls for some or all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drumline.comm import ALGORITHMS, Channel, Communicator, Op
from ranks import Team

WORLD = 5
PAIRS = [(collective, name) for collective in ALGORITHMS for name in ALGORITHMS[collective]]
DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int32", "int64")
TORCH_OPS = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.AVG: dist.ReduceOp.SUM,
    Op.PRODUCT: dist.ReduceOp.PRODUCT,
    Op.MIN: dist.ReduceOp.MIN,
    Op.MAX: dist.ReduceOp.MAX,
}


@dataclass(frozen=True)
class Case:
    """One call of a collective."""

    collective: str
    algorithm: str
    members: tuple[int, ...]
    ranks_per_node: int
    root: int
    op: Op
    dtype: str
    shape: tuple[int, ...]
    seed: int
    async_op: bool = False
    strided: bool = False

    def tensor(self, member, part=0):
        """What a member brings: small whole numbers, whose sums and products are exact."""
        generator = torch.Generator().manual_seed(self.seed + 100 * member + part)
        shape = (*self.shape[:-1], 2 * self.shape[-1]) if self.strided else self.shape
        values = torch.randint(1, 4, shape, generator=generator)
        values = values.to(getattr(torch, self.dtype))
        return values[..., ::2] if self.strided else values


shapes = st.one_of(
    st.integers(0, 40).map(lambda size: (size,)),
    st.tuples(st.integers(0, 4), st.integers(1, 5)),
    st.just((70_000,)),
)


@st.composite
def cases(draw):
    collective, algorithm = draw(st.sampled_from(PAIRS))
    members = tuple(draw(st.permutations(range(WORLD)))[: draw(st.integers(1, WORLD))])
    return Case(
        collective=collective,
        algorithm=algorithm,
        members=members,
        ranks_per_node=draw(st.integers(1, WORLD)),
        root=draw(st.integers(0, len(members) - 1)),
        op=draw(st.sampled_from(Op)),
        dtype=draw(st.sampled_from(DTYPES)),
        shape=draw(shapes),
        seed=draw(st.integers(0, 10_000)),
        async_op=draw(st.booleans()),
        strided=draw(st.booleans()),
    )


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    with Team(WORLD, folder=tmp_path_factory.mktemp("team")) as ranks:
        yield ranks


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_equals_torch_distributed(team, case):
    took_part = team.call(compare_with_torch, case)
    assert sum(took_part) == len(case.members)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_every_algorithm_with_all_ranks_and_with_a_size_that_does_not_divide(
    team, collective, algorithm
):
    for members in ((0, 1, 2, 3, 4), (2, 0, 3, 1)):
        for shape in ((1,), (7,), (1001,)):
            case = Case(
                collective=collective,
                algorithm=algorithm,
                members=members,
                ranks_per_node=2,
                root=3,
                op=Op.SUM,
                dtype="float32",
                shape=shape,
                seed=1,
            )
            team.call(compare_with_torch, case)


def compare_with_torch(rank, world_size, case):
    """Make the call on the members, and compare with torch's; returns who took part."""
    group = torch_group(case.members)  # every rank takes part in making one
    if rank not in case.members:
        return False
    channel = Channel(None, case.members, ranks_per_node=case.ranks_per_node)
    me = channel.rank
    comm = Communicator(channel=channel, checked=case.seed % 2 == 0)
    ours, kept = call_ours(comm, case, me)
    expected = call_torch(group, case, me)
    for got, want in zip(ours, expected, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want), (case, me, got, want)
    for tensor, original in kept:
        assert torch.equal(tensor, original), f"{case} changed what it should only read"
    return True


_groups = {}


def torch_group(members):
    key = frozenset(members)
    if key not in _groups:
        _groups[key] = dist.new_group(sorted(members))
    return _groups[key]


def call_ours(comm, case, me):
    """Return the results, and (tensor, what it was) for what must not change."""
    how = {"algorithm": case.algorithm, "async_op": case.async_op}
    mine = case.tensor(me)
    n = comm.size
    kept, results = [], []
    if case.collective == "broadcast":
        handle, results = comm.broadcast(mine, case.root, **how), [mine]
    elif case.collective == "reduce":
        handle = comm.reduce(mine, case.op, case.root, **how)
        results = [mine] if me == case.root else []
        kept = [] if me == case.root else [(mine, case.tensor(me))]
    elif case.collective == "all_reduce":
        handle, results = comm.all_reduce(mine, case.op, **how), [mine]
    elif case.collective == "scatter":
        parts = [case.tensor(me, part) for part in range(n)] if me == case.root else None
        out = torch.zeros_like(mine)
        handle, results = comm.scatter(out, parts, case.root, **how), [out]
        kept = [(part, case.tensor(me, k)) for k, part in enumerate(parts or [])]
    elif case.collective == "gather":
        results = [torch.zeros_like(mine) for _ in range(n)] if me == case.root else []
        handle = comm.gather(mine, results or None, case.root, **how)
        kept = [(mine, case.tensor(me))]
    elif case.collective == "all_gather":
        results = [torch.zeros_like(mine) for _ in range(n)]
        handle = comm.all_gather(results, mine, **how)
        kept = [(mine, case.tensor(me))]
    elif case.collective == "reduce_scatter":
        parts = [case.tensor(me, part) for part in range(n)]
        out = torch.zeros_like(mine)
        handle, results = comm.reduce_scatter(out, parts, case.op, **how), [out]
        kept = [(part, case.tensor(me, k)) for k, part in enumerate(parts)]
    elif case.collective == "all_to_all":
        parts = [case.tensor(me, part) for part in range(n)]
        results = [torch.zeros_like(mine) for _ in range(n)]
        handle = comm.all_to_all(results, parts, **how)
        kept = [(part, case.tensor(me, k)) for k, part in enumerate(parts)]
    else:
        handle = comm.barrier(**how)
    if case.async_op:
        handle.wait()
    else:
        assert handle is None
    return results, kept


def call_torch(group, case, me):
    """Return torch.distributed's results; its groups are sorted, ours are not."""
    order = sorted(case.members)
    n = len(order)
    place = {member: rank for rank, member in enumerate(case.members)}
    root = order.index(case.members[case.root])
    as_torch = torch.float32 if case.dtype in ("float16", "bfloat16") else None
    mine = case.tensor(me).contiguous().to(as_torch)
    op = TORCH_OPS[case.op]

    def done(tensor):
        if case.op is Op.AVG:
            whole = not tensor.is_floating_point()
            tensor = tensor.div(n, rounding_mode="trunc" if whole else None)
        return tensor.to(getattr(torch, case.dtype))

    def mine_for_all():
        return [case.tensor(me, place[member]).contiguous().to(as_torch) for member in order]

    def in_our_order(parts):
        return [
            parts[order.index(member)].to(getattr(torch, case.dtype)) for member in case.members
        ]

    if case.collective == "broadcast":
        dist.broadcast(mine, group=group, group_src=root)
        return [mine.to(getattr(torch, case.dtype))]
    if case.collective == "reduce":
        dist.all_reduce(mine, op, group=group)
        return [done(mine)] if me == case.root else []
    if case.collective == "all_reduce":
        dist.all_reduce(mine, op, group=group)
        return [done(mine)]
    if case.collective == "scatter":
        out = torch.zeros_like(mine)
        dist.scatter(out, mine_for_all() if me == case.root else None, group=group, group_src=root)
        return [out.to(getattr(torch, case.dtype))]
    if case.collective == "gather":
        parts = [torch.zeros_like(mine) for _ in order] if me == case.root else None
        dist.gather(mine, parts, group=group, group_dst=root)
        return in_our_order(parts) if parts else []
    if case.collective == "all_gather":
        parts = [torch.zeros_like(mine) for _ in order]
        dist.all_gather(parts, mine, group=group)
        return in_our_order(parts)
    if case.collective == "reduce_scatter":
        summed = torch.stack(mine_for_all())
        dist.all_reduce(summed, op, group=group)
        return [done(summed[order.index(case.members[me])])]
    if case.collective == "all_to_all":
        parts = [torch.zeros_like(mine) for _ in order]
        sent = mine_for_all()
        everything = [torch.zeros_like(torch.stack(sent)) for _ in order]
        dist.all_gather(everything, torch.stack(sent), group=group)
        own = order.index(case.members[me])
        parts = [everything[source][own] for source in range(n)]
        return in_our_order(parts)
    dist.barrier(group=group)
    return []
