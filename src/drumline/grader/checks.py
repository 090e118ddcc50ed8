"""`Check`: one question to a student's code; and the list of them for each lab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from drumline.grader import aggregation, optimizers, samplers, timing, training, two_parts
from drumline.grader.submission import Submission

Question = Callable[[Submission], None]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question; it passes where asking raises nothing."""

    name: str
    ask: Question
    files: tuple[str, ...] = ()
    """modules of the student's that must be importable first"""
    imports: str | None = None
    """the module that it imports, where it asks for nothing else"""
    ranks: int = 0
    """how many processes it starts besides its own"""


def _imports(module: str) -> Check:
    def ask(submission: Submission) -> None:
        submission.module(module)

    return Check(name=f"{module}.import", ask=ask, imports=module)


def _of(module: str, name: str, ask: Question, *more: str, ranks: int = 0) -> Check:
    return Check(name=name, files=(module, *more), ask=ask, ranks=ranks)


CHECKS: Mapping[int, tuple[Check, ...]] = MappingProxyType(
    {
        1: (
            _imports("optimizers"),
            _imports("training"),
            _of("optimizers", "gd.step", optimizers.gd),
            _of("optimizers", "sgd.step", optimizers.sgd),
            _of("optimizers", "adam.step", optimizers.adam),
            _of("optimizers", "optimizers.without-gradient", optimizers.without_gradient),
            _of("training", "train.gd", training.gd, "optimizers"),
            _of("training", "train.sgd", training.sgd, "optimizers"),
        ),
        2: (
            _imports("aggregation"),
            _imports("timing"),
            *(
                _of(
                    "aggregation",
                    f"average.{method}",
                    partial(aggregation.average, method),
                    ranks=3,
                )
                for method in aggregation.METHODS
            ),
            _of("timing", "timer", timing.timer, ranks=2),
        ),
        3: (
            _imports("samplers"),
            _imports("replicas"),
            _of("samplers", "partition.parts", samplers.partition_parts),
            _of("samplers", "partition.epochs", partial(samplers.check_epochs, samplers.PARTITION)),
            _of("samplers", "partition.len", partial(samplers.check_len, samplers.PARTITION)),
            _of("samplers", "sampling.draws", samplers.sampling_draws),
            _of("samplers", "sampling.epochs", partial(samplers.check_epochs, samplers.SAMPLING)),
            _of("samplers", "sampling.len", partial(samplers.check_len, samplers.SAMPLING)),
            _of("replicas", "broadcast", samplers.broadcast, ranks=3),
        ),
        4: (
            _imports("two_parts"),
            _of("two_parts", "model.outputs", two_parts.outputs, ranks=3),
            _of("two_parts", "model.overlap", two_parts.overlap, ranks=3),
            _of("two_parts", "model.parameters", two_parts.parameters, ranks=3),
            _of("two_parts", "model.sizes", two_parts.sizes, ranks=3),
        ),
    }
)
"""by lab, in the order in which they are asked"""
