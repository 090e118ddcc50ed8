"""Schedules: the learning rate of each step.

Ours are one pure function of the step (`lr_at`), so a resumed run has its learning rate from the
step alone:

    learning rate = base_lr × warm-up × shape

    warm-up   rises over `warmup_steps` = w steps: the first has 1/(w+1) of base_lr, the last
              w/(w+1), the next all of it. No step is spent at 0.
    shape     constant   1
              linear     from 1, after the warm-up, to `floor` as the last step ends
              cosine     the same along half a cosine (Loshchilov & Hutter, SGDR, 2017; no restarts)
              step       times `gamma` every `every` epochs, counted from the start of the run

base_lr is each parameter group's own. One of the user's own is such a function, too (it returns the
factor), or a factory that gets the `optimizer` and returns one of torch's schedulers.

torch's schedulers keep a state. It is not saved: a resumed run makes the scheduler anew and replays
its steps, with the scores that it was given, which ends in the same bits. What they change of the
optimizer (OneCycleLR cycles momentum, too) is replayed along.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import cos, pi
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from drumline.core.errors import SpecError
from drumline.core.factory import parameters_of
from drumline.spec.learning import ScheduleSpec

_PER_STEP = ("OneCycleLR", "CyclicLR")
_KIND = ScheduleSpec.factories


class Schedule(Protocol):
    """Sets the learning rates of an optimizer's groups; all ranks do the same."""

    def apply(self, step: int) -> None:
        """Set the learning rates for a step; steps count from 0 over the whole run."""

    def epoch_ended(self, score: float | None) -> None:
        """Go on to the next epoch; the score is that of the epoch that ended."""

    def replay(self, steps: int, scores: Sequence[float | None]) -> None:
        """Be as after so many steps, and the epochs that ended with these scores."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a run is."""

    total_steps: int
    steps_per_epoch: int

    @property
    def epochs(self) -> int:
        """Epochs, begun ones too."""
        return -(-self.total_steps // self.steps_per_epoch)


def build_schedule(spec: ScheduleSpec, optimizer: Optimizer, length: Length) -> Schedule:
    """Build the schedule that the spec names, for an optimizer as it was built from the spec.

    Raises:
        SpecError: the name or an option is wrong.
    """
    base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
    if spec.is_ours:
        shape = partial(
            lr_at,
            spec,
            total_steps=length.total_steps,
            steps_per_epoch=length.steps_per_epoch,
        )
        return PureSchedule(optimizer, partial(_shape_all, shape, base_lrs))
    factory = _find(spec)
    _KIND.check_options(spec.name, factory, spec.options)
    takes = parameters_of(factory)
    given = {**vars(length), "epochs": length.epochs}
    if "step" in takes and "optimizer" not in takes:
        factor = partial(_KIND.call, spec.name, factory, spec.options, **given)
        return PureSchedule(optimizer, partial(_scale, base_lrs, factor, spec.name))
    per = spec.per or ("step" if spec.name in _PER_STEP else "epoch")
    return TorchSchedule(
        optimizer,
        lambda: _KIND.call(spec.name, factory, spec.options, optimizer=optimizer, **given),
        per_epoch=None if per == "step" else length.steps_per_epoch,
        name=spec.name,
    )


def _shape_all(shape: Callable[..., float], base_lrs: Sequence[float], step: int) -> list[float]:
    return [shape(base_lr=lr, step=step) for lr in base_lrs]


def _find(spec: ScheduleSpec) -> Callable[..., Any]:
    if ":" in spec.name:
        return _KIND.find(spec.name)
    found: Callable[..., Any] | None = getattr(torch.optim.lr_scheduler, spec.name, None)
    if found is None:
        raise _KIND.error(spec.name, f"is not in torch {torch.__version__}; choose another")
    return found


def _scale(
    base_lrs: Sequence[float], factor: Callable[..., Any], name: str, step: int
) -> list[float]:
    found = factor(step=step)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise SpecError(
            f"schedule {name!r} returned {found!r} at step {step}; return the factor of the "
            f"learning rate, a number",
            key="schedule.name",
        )
    return [lr * found for lr in base_lrs]


class PureSchedule:
    """Learning rates that are a function of the step."""

    def __init__(self, optimizer: Optimizer, lrs_at: Callable[[int], Iterable[float]]) -> None:
        self._optimizer, self._lrs_at = optimizer, lrs_at

    def apply(self, step: int) -> None:
        """Set the learning rates for a step."""
        for group, lr in zip(self._optimizer.param_groups, self._lrs_at(step), strict=True):
            group["lr"] = lr

    def epoch_ended(self, score: float | None) -> None:
        """Nothing to do: the step says it all."""

    def replay(self, steps: int, scores: Sequence[float | None]) -> None:
        """Nothing to do: there is no state."""


class TorchSchedule:
    """One of torch's schedulers, stepped after each step or each epoch."""

    def __init__(
        self,
        optimizer: Optimizer,
        build: Callable[[], Any],
        *,
        per_epoch: int | None,
        name: str,
    ) -> None:
        self._optimizer, self._build, self._name = optimizer, build, name
        self._per_epoch = per_epoch
        self._first = [_options(group) for group in optimizer.param_groups]
        self._scheduler = self._make()

    def apply(self, step: int) -> None:
        """Go on by one step; a run begins with the rates that the scheduler does."""
        if self._per_epoch is None and step > 0:
            self._step()

    def epoch_ended(self, score: float | None) -> None:
        """Go on by one epoch."""
        if self._per_epoch is None:
            return
        if isinstance(self._scheduler, ReduceLROnPlateau):
            if score is None:
                raise _no_score(self._name)
            self._scheduler.step(score)
        else:
            self._step()

    def replay(self, steps: int, scores: Sequence[float | None]) -> None:
        """Begin anew, with the optimizer's first options, and make the same steps again."""
        for group, options in zip(self._optimizer.param_groups, self._first, strict=True):
            group.update(options)
        self._scheduler = self._make()
        if self._per_epoch is None:
            for step in range(steps):
                self.apply(step)
        for score in scores:
            self.epoch_ended(score)

    def _step(self) -> None:
        with warnings.catch_warnings():  # of steps that are replayed before the optimizer's first
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self._scheduler.step()

    def _make(self) -> Any:
        for group in self._optimizer.param_groups:
            group.pop("initial_lr", None)
        made = self._build()
        if not isinstance(made, LRScheduler):
            raise _KIND.wrong_result(self._name, made)
        if isinstance(made, ReduceLROnPlateau) and self._per_epoch is None:
            raise _no_score(self._name)
        return made


def _no_score(name: str) -> SpecError:
    return _KIND.error(
        name, "looks at the score of an epoch; leave schedule.per and evaluate=false out"
    )


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "initial_lr")}


def lr_at(
    spec: ScheduleSpec, *, base_lr: float, step: int, total_steps: int, steps_per_epoch: int
) -> float:
    """Return the optimizer's learning rate at a step; steps count from 0 over the whole run."""
    warmup = min(1.0, (step + 1) / (spec.warmup_steps + 1))
    return base_lr * warmup * _shape(spec, step, total_steps, steps_per_epoch)


def _shape(spec: ScheduleSpec, step: int, total_steps: int, steps_per_epoch: int) -> float:
    way = max(1, total_steps - spec.warmup_steps)  # from the end of the warm-up to that of the run
    done = 1.0 if step >= total_steps else max(0, step - spec.warmup_steps) / way
    match spec.name:
        case "linear":
            return spec.floor + (1 - spec.floor) * (1 - done)
        case "cosine":
            return spec.floor + (1 - spec.floor) * (1 + cos(pi * done)) / 2
        case "step":
            epoch = step // max(1, steps_per_epoch)
            return float(spec.gamma ** (epoch // spec.every))
        case _:
            return 1.0
