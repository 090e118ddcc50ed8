"""Shares as pure arithmetic, and the conjugate functions on real ranks, second derivatives too."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.functions import enter_split, gather_shares, keep_share, sum_partial
from drumline.parallel.tensor.shares import Share, chunk_spans, even_spans


def test_blocks_are_dealt_out_in_order_and_as_evenly_as_they_go():
    assert even_spans(10, 3) == [(0, 4), (4, 7), (7, 10)]
    assert even_spans(8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert even_spans(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]
    assert even_spans(0, 2) == [(0, 0), (0, 0)]


def test_dtensor_rounds_up():
    assert chunk_spans(10, 4) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert chunk_spans(9, 4) == [(0, 3), (3, 6), (6, 9), (9, 9)]
    assert chunk_spans(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)]


def test_a_share_of_a_fused_weight_has_the_own_heads_of_each_part():
    rows = Share.even(dim=0, size=24, ranks=3, rank=0, blocks=4, repeats=3)  # heads of 2 rows
    assert rows.spans == (
        ((0, 4), (8, 12), (16, 20)),
        ((4, 6), (12, 14), (20, 22)),
        ((6, 8), (14, 16), (22, 24)),
    )
    assert rows.lengths == [12, 6, 6]
    assert rows.take(torch.arange(24)).tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]


def test_blocks_that_do_not_divide_the_dimension_are_refused():
    with pytest.raises(UsageError, match="dimension of 10 cannot be dealt out as 1 x 4 equal bl"):
        Share.even(dim=0, size=10, ranks=2, rank=0, blocks=4)


@given(
    blocks=st.integers(1, 9),
    each=st.integers(1, 3),
    repeats=st.integers(1, 3),
    ranks=st.integers(1, 5),
    dim=st.sampled_from([0, 1, -1]),
)
def test_shares_of_all_ranks_put_together_are_the_whole(blocks, each, repeats, ranks, dim):
    shape = [4, 5, 6]
    size = shape[dim] = blocks * each * repeats
    whole = torch.arange(torch.tensor(shape).prod().item()).view(shape)
    for make in (
        lambda rank: Share.even(
            dim=dim, size=size, ranks=ranks, rank=rank, blocks=blocks, repeats=repeats
        ),
        lambda rank: Share.chunked(dim=dim, size=size, ranks=ranks, rank=rank),
    ):
        shares = [make(rank) for rank in range(ranks)]
        parts = [share.take(whole) for share in shares]
        assert [part.shape[dim] for part in parts] == shares[0].lengths
        assert torch.equal(shares[-1].join(parts), whole)
        assert shares[-1].whole_shape(parts[-1]) == tuple(shape)


def test_chunks_are_those_of_torch():
    for size in range(1, 12):
        for ranks in range(1, 6):
            ours = [stop - start for start, stop in chunk_spans(size, ranks)]
            theirs = [chunk.numel() for chunk in torch.arange(size).chunk(ranks)]
            assert ours == theirs + [0] * (ranks - len(theirs))


def check_functions(rank, world_size, group=None):
    """Every rank multiplies by a number of its own: c = rank + 1."""
    meter = Meter()
    exchange = Exchange(group=group, meter=meter)
    ranks, own = exchange.ranks, exchange.rank
    c, total = own + 1.0, ranks * (ranks + 1) / 2
    # f into g: y = Σ c·x²; dy/dx = Σ c·2x; d²y/dx² = Σ c·2
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = sum_partial(c * enter_split(x, exchange) ** 2, exchange)
    assert torch.equal(y, total * x**2)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(first, 2 * total * x)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, torch.full_like(x, 2 * total))
    # gather: unequal shares, empty ones too; backward keeps the own share. keep: the other way
    for size, dim in ((7, 1), (ranks, 0), (1, -1), (2 * ranks + 1, -2)):
        shape = [2, 3]
        shape[dim] = size
        whole = torch.arange(1.0, 1 + torch.tensor(shape).prod().item()).view(shape).double()
        share = exchange.share(dim=dim, size=size)
        part = share.take(whole).requires_grad_()
        gathered = gather_shares(part, share, exchange)
        assert torch.equal(gathered, whole)
        (grad,) = torch.autograd.grad((gathered**2).sum(), part, create_graph=True)
        assert torch.equal(grad, 2 * part)
        (again,) = torch.autograd.grad(grad.sum(), part)
        assert torch.equal(again, torch.full_like(part, 2.0))
        replica = whole.clone().requires_grad_()
        kept = keep_share(replica, share, exchange)
        assert torch.equal(kept, part)
        (grad,) = torch.autograd.grad((c * kept).sum(), replica)
        expected = share.join(
            [
                torch.full_like(whole.narrow(dim, 0, length), other + 1.0)
                for other, length in enumerate(share.lengths)
            ]
        )
        assert torch.equal(grad, expected)
    spans = meter.drain().spans
    assert [span.op for span in spans[:3]] == ["tensor_all_reduce"] * 3
    assert {span.op for span in spans[3:]} == {"tensor_all_gather"}
    assert spans[0].nbytes == 24
    assert spans[3].nbytes == 2 * 7 * 8  # of the whole, not of the padded shares
    assert all(span.arrived_ns <= span.ended_ns for span in spans)
    # a transposed tensor, and half precision
    turned = torch.ones(3, 2).t()
    assert torch.equal(exchange.sum(turned), torch.full((2, 3), float(ranks)))
    assert torch.equal(turned, torch.ones(2, 3))
    halves = torch.ones(4, dtype=torch.bfloat16)
    assert torch.equal(exchange.sum(halves), halves * ranks)
    return [span.op for span in spans]


def check_in_groups(rank, world_size):
    """In the world, and in groups that do not start at rank 0."""
    ops = check_functions(rank, world_size)
    halves = [dist.new_group([0, 1]), dist.new_group(list(range(2, world_size)))]
    check_functions(rank, world_size, halves[rank >= 2])
    return ops


def test_functions(run_ranks):
    ops = run_ranks(check_in_groups, 4)
    assert all(other == ops[0] for other in ops), "the ledger wants the same spans on all ranks"


def test_functions_in_shared_memory(run_ranks):
    run_ranks(check_functions, 3, backend="shm")


def test_without_a_group_it_says_what_to_do():
    with pytest.raises(UsageError, match=r"needs a process group; call dist\.init_process_group"):
        Exchange()
