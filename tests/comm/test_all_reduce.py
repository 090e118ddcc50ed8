"""Every hand-written sum gives torch.distributed's all_reduce, with the same bits on all ranks."""

import hashlib

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from drumline.comm import split_chunks
from drumline.parallel import SUMS

SIZES = (0, 1, 2, 3, 5, 64, 1001)
DTYPES = (torch.float32, torch.float64, torch.int64, torch.float16)


def compare_with_torch(rank, world_size):
    """Return the largest error over all cases, and a digest of all results."""
    worst = 0.0
    digest = hashlib.sha256()
    for kind, reduce_sum in SUMS.items():
        for size in SIZES:
            for dtype in DTYPES:
                generator = torch.Generator().manual_seed(1000 * size + rank)
                mine = (torch.randn(size, generator=generator) * 8).to(dtype)
                ours, expected = mine.clone(), mine.clone()
                reduce_sum(ours, None)
                dist.all_reduce(expected)
                error = (ours - expected).abs().double().max().item() if size else 0.0
                tolerance = {torch.float16: 0.07, torch.float32: 1e-5}.get(dtype, 1e-12)
                assert error <= tolerance, (kind, size, dtype, error)
                worst = max(worst, error if dtype == torch.float64 else 0.0)
                digest.update(ours.numpy().tobytes())
    return worst, digest.hexdigest()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_sums_equal_all_reduce_and_agree_to_the_bit(run_ranks, world_size):
    results = run_ranks(compare_with_torch, world_size)
    assert len({digest for _, digest in results}) == 1
    assert all(worst <= 1e-12 for worst, _ in results)


def sum_in_subgroup(rank, world_size):
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    answers = []
    for reduce_sum in SUMS.values():
        tensor = torch.full((5,), float(rank))
        reduce_sum(tensor, group)
        answers.append(tensor.tolist())
    return answers


def test_sums_work_in_a_subgroup(run_ranks):
    results = run_ranks(sum_in_subgroup, 3)
    assert results[1] == results[2] == [[3.0] * 5] * len(SUMS)


@given(size=st.integers(0, 200), n=st.integers(1, 9))
def test_chunks_cover_the_tensor_in_order_and_differ_by_one(size, n):
    tensor = torch.arange(size)
    chunks = split_chunks(tensor, n)
    assert len(chunks) == n
    assert torch.equal(torch.cat(chunks), tensor)
    sizes = [chunk.numel() for chunk in chunks]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
