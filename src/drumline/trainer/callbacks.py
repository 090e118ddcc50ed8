"""Callbacks: objects of the user's own, whose methods are called while a run trains.

A callback has any of these methods, each called with a `Moment`, on every rank, by all ranks at the
same point of the program (so it may use collectives, if all ranks do; `moment.rank == 0` is where
to print):

    on_train_begin   before the first step, or the first after a restart
    on_step_end      after the optimizer's step
    on_epoch_end     after evaluation, before the checkpoint; if it returns True on any rank, the
                     run ends here, on all
    on_train_end     after the last step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from drumline.spec.learning import CallbackSpec

METHODS = ("on_train_begin", "on_step_end", "on_epoch_end", "on_train_end")
_KIND = CallbackSpec.factories


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run is, as this rank sees it."""

    step: int
    """steps taken so far"""
    epoch: int
    rank: int
    world_size: int
    model: nn.Module
    """what this rank holds of the model"""
    loss: float | None = None
    """after a step: of this rank's samples; after an epoch: the mean over the epoch, of all"""
    scores: Mapping[str, float] = field(default_factory=dict)
    """after an epoch: test_loss and metrics, and with val_ in front those of the validation set"""


def build_callbacks(specs: Sequence[CallbackSpec]) -> list[Any]:
    """Build the callbacks that a spec names.

    Raises:
        SpecError: a name or an option is wrong, or what was made has none of the methods.
    """
    made = []
    for spec in specs:
        callback = _KIND.build(spec.name, spec.options)
        if not any(hasattr(callback, method) for method in METHODS):
            raise _KIND.wrong_result(spec.name, callback)
        made.append(callback)
    return made


def call_back(callbacks: Sequence[Any], method: str, moment: Moment) -> bool:
    """Call a method of all callbacks that have it; return whether one of them returned True."""
    found = [getattr(callback, method, None) for callback in callbacks]
    answers = [method(moment) for method in found if method is not None]
    return any(answer is True for answer in answers)
