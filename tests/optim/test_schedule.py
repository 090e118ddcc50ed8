from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from drumline.core.errors import SpecError
from drumline.optim import lr_at
from drumline.optim.schedule import Length, build_schedule
from drumline.spec.learning import ScheduleSpec


def rates(steps: int, per_epoch: int = 2, **options: Any) -> list[float]:
    """The learning rates of a run, and of one step beyond its end."""
    spec = ScheduleSpec(**options)
    return [
        lr_at(spec, base_lr=0.8, step=step, total_steps=steps, steps_per_epoch=per_epoch)
        for step in range(steps + 1)
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.8, 0.8, 0.8, 0.8, 0.8]),
        ({"warmup_steps": 3}, [0.2, 0.4, 0.6, 0.8, 0.8]),
        ({"name": "linear"}, [0.8, 0.6, 0.4, 0.2, 0.0]),
        ({"name": "linear", "floor": 0.5}, [0.8, 0.7, 0.6, 0.5, 0.4]),
        ({"name": "linear", "warmup_steps": 1}, [0.4, 0.8, 1.6 / 3, 0.8 / 3, 0.0]),
        ({"name": "cosine"}, [0.8, 0.6828427, 0.4, 0.1171573, 0.0]),
        ({"name": "cosine", "floor": 0.25}, [0.8, 0.7121320, 0.5, 0.2878680, 0.2]),
        ({"name": "cosine", "warmup_steps": 2}, [0.8 / 3, 1.6 / 3, 0.8, 0.4, 0.0]),
        ({"name": "step"}, [0.8, 0.8, 0.08, 0.08, 0.008]),
        ({"name": "step", "gamma": 0.5, "every": 2}, [0.8, 0.8, 0.8, 0.8, 0.4]),
        ({"name": "step", "gamma": 0.5, "warmup_steps": 3}, [0.2, 0.4, 0.3, 0.4, 0.2]),
        ({"name": "linear", "warmup_steps": 9}, [0.08, 0.16, 0.24, 0.32, 0.0]),
    ],
    ids=str,
)
def test_four_steps_of_two_epochs(options: dict[str, Any], expected: list[float]) -> None:
    assert rates(4, **options) == pytest.approx(expected)


@given(
    name=st.sampled_from(["constant", "linear", "cosine", "step"]),
    warmup=st.integers(0, 20),
    floor=st.floats(0, 1),
    steps=st.integers(0, 30),
    per_epoch=st.integers(0, 10),
)
def test_it_rises_then_never_again_and_stays_in_bounds(
    name: str, warmup: int, floor: float, steps: int, per_epoch: int
) -> None:
    found = rates(steps, per_epoch, name=name, warmup_steps=warmup, floor=floor)
    assert all(0 <= rate <= 0.8 * (1 + 1e-12) for rate in found)
    after = found[warmup:]
    assert all(a >= b - 1e-12 for a, b in pairwise(after))
    assert all(rate > 0 for rate in found[:-1])


def plateau(optimizer: Optimizer) -> ReduceLROnPlateau:
    return ReduceLROnPlateau(optimizer)


@pytest.mark.parametrize("per", ["step", "epoch"])
def test_a_plateau_of_ones_own_needs_the_score_of_an_epoch(per: str) -> None:
    """Its name does not tell what it is, so only the run can."""
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    spec = ScheduleSpec(name=f"{__name__}:plateau", per=per)
    length = Length(total_steps=4, steps_per_epoch=2)
    with pytest.raises(SpecError, match="looks at the score of an epoch"):
        build_schedule(spec, optimizer, length).epoch_ended(None)
