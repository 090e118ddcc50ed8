"""GD's accumulation: the gradient of the full batch, whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from drumline.core.errors import UsageError
from drumline.optim import GD


def samples(count: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(7)
    x = torch.randn(count, 4, generator=rng, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=rng)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(sum))
def test_any_chunks_give_the_gradient_of_the_full_batch(sizes: list[int]) -> None:
    x, y = samples(sum(sizes))
    model = nn.Linear(4, 3).double()
    whole = cross_entropy(model(x), y)
    expected = torch.autograd.grad(whole, list(model.parameters()))

    optimizer = GD(model.parameters(), lr=0.1)
    chunks = zip(x.split(sizes), y.split(sizes), strict=True)
    mean = optimizer.accumulate(
        chunks, lambda c: cross_entropy(model(c[0]), c[1], reduction="sum"), total=len(x)
    )

    assert mean == pytest.approx(whole.item(), abs=1e-12)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)


def test_the_gradient_of_before_is_dropped_and_step_moves_once() -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    optimizer = GD([weight], lr=0.5)
    for _ in range(2):  # the second call must not add to the first
        mean = optimizer.accumulate([[1.0, 2.0], [3.0]], lambda c: weight * sum(c), total=3)
    assert mean == pytest.approx(4.0)
    assert weight.item() == 2.0
    optimizer.step()
    assert weight.item() == pytest.approx(1.0)


def test_ranks_that_share_the_samples_add_up_to_the_whole() -> None:
    x, y = samples(10)
    model = nn.Linear(4, 3).double()
    optimizer = GD(model.parameters())
    sums = torch.zeros(3, 4, dtype=torch.float64)
    for part in (slice(0, 7), slice(7, 10)):
        optimizer.accumulate(
            [(x[part], y[part])],
            lambda c: cross_entropy(model(c[0]), c[1], reduction="sum"),
            total=10,
        )
        assert model.weight.grad is not None
        sums += model.weight.grad
    (expected,) = torch.autograd.grad(cross_entropy(model(x), y), [model.weight])
    torch.testing.assert_close(sums, expected, rtol=0, atol=1e-12)


def test_a_rank_without_samples_has_no_gradient() -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    assert GD([weight]).accumulate([], lambda c: weight, total=3) == 0.0
    assert weight.grad is None


def test_a_total_of_zero_is_refused() -> None:
    weight = nn.Parameter(torch.tensor(2.0))
    with pytest.raises(UsageError, match="total must be the number of samples, 1 or more, got 0"):
        GD([weight]).accumulate([], lambda c: weight, total=0)
