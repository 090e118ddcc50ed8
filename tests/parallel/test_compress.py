"""Gradients sent in 16 bits: what comes out is what one computes by hand, on every rank."""

import hashlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import drumline
from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.parallel import KINDS, Aggregator, average_gradients
from drumline.parallel.aggregate import FORMATS

RANKS = 3
SIZE = 1001


def gradient(rank):
    """Make a rank's gradient: of all sizes from far below to just below the end of fp16."""
    source = torch.Generator().manual_seed(rank)
    sizes = torch.logspace(-9, 4, SIZE)
    return torch.randn(SIZE, generator=source).clamp(-6, 6) * sizes


def by_hand(parts, dtype, average="mean"):
    """Add n-ths up in 16 bits, in each order: algorithms differ in theirs."""
    a, b, c = [(part / RANKS).to(dtype) for part in parts]
    times = RANKS if average == "sum" else 1
    return [total.float() * times for total in (a + b + c, a + c + b, b + c + a)]


def check(found, orders, what):
    hits = torch.stack([found == order for order in orders]).any(0)
    assert hits.all(), f"{what}: {(~hits).sum()} of {hits.numel()} differ"


def sha(*tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def reduce_flat(rank, kind, compress, average):
    meter = Meter()
    flat = gradient(rank)
    Aggregator(kind=kind, compress=compress, average=average, meter=meter)(flat)
    orders = by_hand([gradient(other) for other in range(RANKS)], FORMATS[compress], average)
    check(flat, orders, (kind, compress, average))
    (span,) = meter.spans
    assert span.nbytes == 2 * SIZE
    return sha(flat)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))


def backward(module, rank):
    x = torch.randn(4, 20, generator=torch.Generator().manual_seed(rank))
    F.cross_entropy(module(x), torch.arange(4) % 3).backward()


def reduce_model(rank, wrapper, kind, compress):
    """Average a model's gradients by the hook, by buckets, or one by one."""
    model, meter = build(), Meter()
    if wrapper == "hook":
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.002)
        wrapped.register_comm_hook(*drumline.comm_hook(kind, compress=compress, meter=meter))
        backward(wrapped, rank)
    elif wrapper == "buckets":
        wrapped = drumline.DataParallel(
            model, kind, compress=compress, bucket_bytes=2000, meter=meter
        )
        backward(wrapped, rank)
        wrapped.finish()
    else:
        backward(model, rank)
        average_gradients(model, Aggregator(kind=kind, compress=compress, meter=meter))
    own = [build() for _ in range(RANKS)]
    for other, alone in enumerate(own):
        backward(alone, other)
    each = zip(*(alone.parameters() for alone in own), strict=True)
    for param, others in zip(model.parameters(), each, strict=True):
        orders = by_hand([other.grad for other in others], FORMATS[compress])
        check(param.grad, orders, (wrapper, kind, compress))
    sizes = [param.numel() for param in model.parameters()]
    flags = len(sizes) if wrapper == "buckets" else 0  # they travel along
    elements = sum(sizes) + flags
    assert sum(span.nbytes for span in meter.spans) == 2 * elements
    return sha(*(param.grad for param in model.parameters()))


def reduce_value(rank, values, *, dtype=torch.float32, **words):
    meter = Meter()
    flat = torch.full((4,), values[rank], dtype=dtype)
    Aggregator(kind="chunked_ring", meter=meter, **words)(flat)
    return flat.dtype, flat[0].item(), meter.spans[0].nbytes


def reduce_extremes(rank):
    large = [60000.0, 63000.0, 57000.0]
    _, mean, _ = reduce_value(rank, large, compress="fp16")
    _, total, _ = reduce_value(rank, large, compress="fp16", average="sum")
    assert mean == pytest.approx(60000, rel=1e-3), "each fits, so the mean fits"
    assert total == pytest.approx(180000, rel=1e-3), "and the sum is multiplied in 32 bits"
    beyond = [1.0, 3e5, 2.0]
    assert reduce_value(rank, beyond, compress="fp16")[1] == float("inf"), "on every rank"
    assert reduce_value(rank, beyond, compress="bf16")[1] == pytest.approx(1e5, rel=1e-2)
    thirds = [1.0, 1.0, 1.0]
    wide = reduce_value(rank, thirds, compress="fp16", dtype=torch.float64)
    assert wide == (torch.float64, pytest.approx(1, rel=1e-3), 8)
    narrow = reduce_value(rank, thirds, compress="fp16", dtype=torch.bfloat16)
    assert narrow == (torch.bfloat16, 1.0, 8), "small already: it goes as it is"


def reduce_all_ways(rank, world_size):
    found = [
        reduce_flat(rank, kind, compress, average)
        for kind in KINDS
        for compress in FORMATS
        for average in ("mean", "sum")
    ]
    found += [
        reduce_model(rank, wrapper, kind, compress)
        for wrapper in ("hook", "buckets", "naive")
        for kind in ("allreduce", "chunked_ring", "all_gather")
        for compress in FORMATS
    ]
    reduce_extremes(rank)
    return found


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_every_way_gives_what_one_computes_by_hand_with_half_the_bytes(run_ranks, backend):
    first, *others = run_ranks(reduce_all_ways, RANKS, backend=backend)
    assert all(other == first for other in others), "the same bits on every rank"
    assert len(first) == len(KINDS) * 4 + 18


def test_a_wrong_word_names_the_nearest():
    with pytest.raises(UsageError, match=r"no compress 'bf17' among none, fp16, bf16; did you mea"):
        drumline.comm_hook("ring", compress="bf17")
