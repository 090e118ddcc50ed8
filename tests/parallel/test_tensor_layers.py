"""Split layers against the whole layer: outputs, gradients, shares, dropout, and refusals."""

import copy

import pytest
import torch
from torch import nn

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.models.gpt import Attention
from drumline.parallel.tensor.exchange import Exchange, shares_of
from drumline.parallel.tensor.layers import (
    ChannelConv2d,
    ColumnLinear,
    HeadAttention,
    RowLinear,
    ShareDropout,
)

CLOSE = 1e-12


def seeded(make):
    """Build a layer in float64, alike on all ranks, with biases that are not 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = make().double()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.5)
        return layer


def inputs(*shape):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def assert_close(ours, expected, what):
    assert ours.shape == expected.shape, what
    worst = (ours - expected).abs().max().item() if ours.numel() else 0.0
    assert worst <= CLOSE, f"{what} differs by {worst}"


def assert_same(whole, split, x, run=None):
    """Compare outputs and gradients of a whole layer and a split one (or of what `run` makes)."""
    run = run or (lambda layer, x: layer(x))
    results = []
    for layer in (whole, split):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        torch.manual_seed(3)  # dropout: all ranks start from the same random state
        y = run(layer, given)
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        results.append((y.detach(), given.grad))
    assert_close(results[1][0], results[0][0], "output")
    assert_close(results[1][1], results[0][1], "the input's gradient")
    shares = shares_of(split)
    for name, parameter in split.named_parameters():
        expected = whole.get_parameter(name).grad
        own = shares[name].take(expected) if name in shares else expected
        assert_close(parameter.grad, own, name)
        assert parameter.is_contiguous()


def check_linear(rank, world_size):
    for features in (7, world_size, 12, 1):  # 1: all but one rank hold nothing
        for bias in (True, False):
            linear = seeded(lambda f=features, b=bias: nn.Linear(5, f, bias=b))
            column = ColumnLinear(linear, Exchange())
            assert_same(copy.deepcopy(linear), column, inputs(3, 2, 5))
            assert column.weight.shape[0] == column.outputs.length()
            assert ("bias" in column.shares) == bias
            pair = seeded(
                lambda f=features, b=bias: nn.ModuleDict(
                    {"first": nn.Linear(4, f, bias=b), "second": nn.Linear(f, 5, bias=b)}
                )
            )
            split = nn.ModuleDict(
                {
                    "first": ColumnLinear(pair["first"], Exchange(), gather=False),
                    "second": RowLinear(pair["second"], Exchange()),
                }
            )
            assert list(split["second"].shares) == ["weight"]
            assert_same(pair, split, inputs(6, 4), lambda m, x: m["second"](m["first"](x).relu()))


def check_meter(rank, world_size):
    meter = Meter()
    column = ColumnLinear(seeded(lambda: nn.Linear(5, 7)), Exchange(meter=meter))
    column(inputs(3, 5).requires_grad_()).sum().backward()
    row = RowLinear(seeded(lambda: nn.Linear(world_size, 7)), Exchange(meter=meter))
    row(inputs(3, 1).requires_grad_()).sum().backward()
    column(inputs(3, 5))  # an input that needs no gradient costs no all-reduce
    return [(span.op, span.nbytes) for span in meter.drain().spans]


def check_convolution(rank, world_size):
    for options in ({"padding": 1}, {"stride": 2, "bias": False}, {"dilation": 2, "padding": 2}):
        conv = seeded(lambda o=options: nn.Conv2d(3, 5, 3, **o))
        for x in (inputs(2, 3, 8, 9), inputs(3, 8, 9)):  # with a batch and without
            assert_same(copy.deepcopy(conv), ChannelConv2d(conv, Exchange()), x)
    whole = seeded(
        lambda: nn.ModuleDict(
            {"conv": nn.Conv2d(2, 5, 3), "drop": nn.Dropout(0.4), "fc": nn.Linear(5 * 9, 4)}
        )
    )
    fc = RowLinear(whole["fc"], Exchange(), blocks=5)
    channels = fc.exchange.share(dim=0, size=5)
    split = nn.ModuleDict(
        {
            "conv": ChannelConv2d(whole["conv"], Exchange(), gather=False),
            "drop": ShareDropout(0.4, channels),
            "fc": fc,
        }
    )

    def run(m, x):
        x = m["drop"](m["conv"](x).relu().flatten(1))
        return nn.functional.dropout(m["fc"](x), 0.5)  # replicated: must drop alike after a share

    assert_same(copy.deepcopy(whole), split, inputs(2, 2, 5, 5), run)
    assert_same(whole.eval(), split.eval(), inputs(2, 2, 5, 5), run)


def check_attention(rank, world_size):
    for heads, dropout in ((4, 0.0), (6, 0.0), (4, 0.3)):
        whole = seeded(lambda h=heads, d=dropout: Attention(24, h, d))
        split = HeadAttention(whole, Exchange())
        assert_same(copy.deepcopy(whole), split, inputs(2, 7, 24))
        assert split.qkv.weight.shape == (3 * split.out.weight.shape[1], 24)
        assert set(shares_of(split)) == {"qkv.weight", "qkv.bias", "out.weight"}
    seen = [split.heads.length(rank) for rank in range(world_size)]
    assert seen == {2: [2, 2], 3: [2, 1, 1], 4: [1, 1, 1, 1]}[world_size]


def check_other_things(rank, world_size):
    linear = seeded(lambda: nn.Linear(5, 7))
    linear.bias.requires_grad_(False)
    column = ColumnLinear(linear, Exchange())
    assert [p.requires_grad for p in (column.weight, column.bias)] == [True, False]
    column.weight.data.zero_()
    assert linear.weight.abs().sum() > 0, "the share has memory of its own"
    twin = copy.deepcopy(column)  # talks to the same ranks
    assert torch.equal(twin(inputs(1, 5)), column(inputs(1, 5)))
    assert "outputs, gather=True" in repr(column)


def refusals(rank, world_size):
    found = {}
    for name, make in {
        "heads": lambda: HeadAttention(Attention(12, 2, 0.0), Exchange()),
        "prime": lambda: HeadAttention(Attention(2, 2, 0.0), Exchange()),
        "channels": lambda: ChannelConv2d(nn.Conv2d(1, 2, 3), Exchange()),
        "groups": lambda: ChannelConv2d(nn.Conv2d(4, 4, 3, groups=2), Exchange()),
        "padding": lambda: ChannelConv2d(nn.Conv2d(4, 4, 3, padding_mode="circular"), Exchange()),
        "blocks": lambda: RowLinear(nn.Linear(10, 2), Exchange(), blocks=4),
    }.items():
        with pytest.raises(UsageError) as caught:
            make()
        found[name] = str(caught.value)
    return found


def check_all(rank, world_size):
    check_linear(rank, world_size)
    check_convolution(rank, world_size)
    check_attention(rank, world_size)
    check_other_things(rank, world_size)
    return check_meter(rank, world_size), refusals(rank, world_size) if world_size == 3 else None


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_layers(run_ranks, world_size):
    results = run_ranks(check_all, world_size)
    for spans, said in results:
        assert spans == [
            ("tensor_all_gather", 3 * 7 * 8),  # the column's output, forward
            ("tensor_all_reduce", 3 * 5 * 8),  # its input's gradient, backward
            ("tensor_all_reduce", 3 * 7 * 8),  # the row's output, forward; backward nothing
            ("tensor_all_gather", 3 * 7 * 8),
        ]
        if said is not None:
            assert said == {
                "heads": "attention has 2 heads, which cannot be split over 3 ranks: each needs "
                "at least one; split over at most 2 ranks, or build the model with heads=3",
                "prime": "attention has 2 heads, which cannot be split over 3 ranks: each needs "
                "at least one; split over at most 2 ranks",
                "channels": "a convolution cannot be split by channels: it has 2 output channels "
                "for 3 ranks; leave it whole",
                "groups": "a convolution cannot be split by channels: it has 2 groups; "
                "leave it whole",
                "padding": "a convolution cannot be split by channels: it pads by 'circular'; "
                "leave it whole",
                "blocks": "a dimension of 10 cannot be dealt out as 1 x 4 equal blocks; "
                "give a number of blocks that divides 10",
            }
