"""Sharing layers out: the best partition there is, and the user's own where it fits."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.models import build_model
from drumline.models.partial import build_outline
from drumline.parallel.split.balance import count_bytes, measure_times, parse_balance, partition
from drumline.parallel.split.layers import Layer, find_layers
from drumline.spec.parts import ModelSpec


@pytest.mark.parametrize(
    ("costs", "parts", "cuts"),
    [
        ([4, 1, 1, 2, 2], 2, [0, 2, 5]),
        ([4, 1, 1, 2, 2], 3, [0, 1, 3, 5]),
        ([5, 1, 1, 1], 2, [0, 1, 4]),
        ([1, 1, 1, 1], 2, [0, 2, 4]),
        ([1, 1, 1, 9], 2, [0, 3, 4]),
        ([1, 1, 9], 3, [0, 1, 2, 3]),
        ([1, 1, 1, 1, 9], 3, [0, 2, 4, 5]),
        ([0.1] * 6, 3, [0, 2, 4, 6]),
        ([0, 0, 0, 0], 2, [0, 2, 4]),
        ([7], 1, [0, 1]),
        ([1, 2, 3], 1, [0, 3]),
    ],
)
def test_the_dearest_part_is_as_cheap_as_can_be(
    costs: list[float], parts: int, cuts: list[int]
) -> None:
    assert partition(costs, parts) == cuts


def rank_of(costs: list[float], cuts: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
    parts = list(pairwise(cuts))
    dearest = max(math.fsum(costs[a:b]) for a, b in parts)
    return dearest, sum((b - a) ** 2 for a, b in parts), cuts


@given(
    costs=st.lists(st.one_of(st.integers(0, 4), st.floats(0, 1e6)), min_size=1, max_size=8),
    parts=st.integers(1, 8),
)
def test_no_other_partition_is_better(costs: list[float], parts: int) -> None:
    count = len(costs)
    if parts > count:
        with pytest.raises(UsageError, match=f"has {count} layers?, but {parts} stages"):
            partition(costs, parts)
        return
    all_cuts = [(0, *inner, count) for inner in combinations(range(1, count), parts - 1)]
    assert partition(costs, parts) == list(min(all_cuts, key=lambda cuts: rank_of(costs, cuts)))


def test_too_many_stages_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"has 3 layers, but 4 stages need .*; set workers=3"):
        partition([1, 1, 1], 4)
    with pytest.raises(UsageError, match=r"has 1 layer, but 2 stages .*; set workers=1, or cut"):
        partition([1], 2)


def layers_of(name: str) -> tuple[nn.Module, list[Layer]]:
    model = build_model(ModelSpec(name=name), classes=10, seed=0)
    return model, find_layers(model)


def test_counts_by_hand_become_cuts() -> None:
    _, layers = layers_of("cnn")
    assert parse_balance([1, 3], layers, 2) == [0, 1, 4]
    assert parse_balance([2, 1, 1], layers, 3) == [0, 2, 3, 4]
    assert parse_balance([4], layers, 1) == [0, 4]


@pytest.mark.parametrize(
    ("balance", "words"),
    [
        ([1, 2], r"\[1, 2\] adds up to 3, but the model has 4 layers \(conv1, conv2, fc1, fc2\)"),
        ([1, 1, 2], r"\[1, 1, 2\] is for 3 stages, but there are 2; .*or set workers=3"),
        ([4, 0], r"\[4, 0\] leaves stage 1 without a layer, so without a parameter"),
        ([-1, 5], r"\[-1, 5\] leaves stage 0 without a layer"),
        ([], r"\[\] is for 0 stages"),
    ],
)
def test_counts_that_do_not_fit_are_explained(balance: list[int], words: str) -> None:
    _, layers = layers_of("cnn")
    with pytest.raises(UsageError, match=words):
        parse_balance(balance, layers, 2)


def test_bytes_are_those_of_the_parameters() -> None:
    model, layers = layers_of("mlp")
    expected = [4 * (784 * 128 + 128), 4 * (128 * 256 + 256), 4 * (256 * 10 + 10)]
    assert count_bytes(model, layers) == expected
    outline = build_outline(ModelSpec(name="mlp"), classes=10, seed=0, dtype=torch.float64)
    assert count_bytes(outline, layers) == [2 * size for size in expected]


def test_a_tied_parameter_counts_in_each_layer_and_once_in_one() -> None:
    gpt, layers = layers_of("gpt-mini")
    sizes = count_bytes(gpt, layers)
    assert sizes[0] == sizes[-1] == 4 * 10 * 128
    model = nn.Sequential(nn.Linear(2, 2))
    model.alias = model[0]
    assert count_bytes(model, find_layers(model)[:1]) == [24]


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, targets, reduction="sum")


class Clock:
    """A clock that stands still unless a layer moves it; copies of the layers share it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def __deepcopy__(self, memo: object) -> Clock:
        return self

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Slow(nn.Module):
    """Takes so many seconds forward, and twice as many backward; the fourth round ten times."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.clock, self.seconds, self.calls = clock, seconds, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        seconds = self.seconds * (10 if self.calls == 4 else 1)
        self.clock.pass_by(seconds)
        out: Tensor = self.norm(nn.functional.dropout(self.fc(x), 0.1, self.training))
        out.register_hook(lambda _: self.clock.pass_by(2 * seconds))
        return out


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_measured_times_are_medians_and_leave_no_mark(where: str) -> None:
    clock = Clock()
    model = nn.Sequential(Slow(clock, 1), nn.Linear(4, 4), Slow(clock, 5)).to(where).eval()
    state: dict[str, Any] = {name: t.clone() for name, t in model.state_dict().items()}
    example = (torch.rand(8, 4), torch.randint(4, (8,)))
    before = torch.get_rng_state()
    assert measure_times(model, find_layers(model), example, loss, clock=clock) == [3, 0, 15]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in model.parameters())
    assert not model[0].training
    assert {p.device.type for p in model.parameters()} == {where}
    if where == "cpu":
        assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("name", ["lenet", "gpt-mini"])
def test_every_layer_of_a_model_has_its_time(name: str) -> None:
    model, layers = layers_of(name)
    inputs = torch.rand(2, 1, 28, 28) if name == "lenet" else torch.randint(10, (2, 8))
    targets = torch.randint(10, (2,) if name == "lenet" else (2, 8))

    def summed(logits: Tensor, targets: Tensor) -> Tensor:
        return loss(logits.flatten(0, -2), targets.flatten())

    model.get_parameter(layers[0].parameters[0]).requires_grad_(False)
    times = measure_times(model, layers, (inputs, targets), summed)
    assert len(times) == len(layers)
    assert min(times) > 0
