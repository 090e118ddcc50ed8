"""`PartOptimizers`: an optimizer on each rank, for its own part, and torch's hand on all of them.

`DistributedOptimizer` makes an optimizer on every owner of parameters, and steps them all with the
gradients of one autograd context. What it lacks is here: a learning rate that changes, and
gradients of the last step that must not come again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.futures import Future
from torch.optim import Optimizer

from drumline.parallel.rpc.parts import Part, ask

BuildOptimizer = Callable[[list[torch.nn.Parameter]], Optimizer]


class PartOptimizers:
    """The optimizers of all parts, as the leader sees them."""

    def __init__(self, parts: Sequence[Any], build: BuildOptimizer) -> None:
        """Let each owner build its optimizer.

        Args:
            parts: RRefs to the parts.
            build: makes an optimizer from parameters; sent to the owners, so it must be a function
                of a module, or a `functools.partial` of one: `partial(build_optimizer, spec)`.
        """
        from torch.distributed.optim import DistributedOptimizer

        parameters = [ref for part in parts for ref in ask(part, Part.parameter_refs).wait()]
        with _quiet():
            # a class of torch.optim would be exchanged for its TorchScript form: wrapped, it is not
            self._optimizer = DistributedOptimizer(partial(build), parameters)

    def begin(self, lr: float | None) -> list[Future[None]]:
        """Forget the last gradients, and set the learning rate; does not wait."""
        return [ask(ref, _begin, lr) for ref in self._optimizer.remote_optimizers]

    def step(self, context: int) -> None:
        """Let every owner take a step with its gradients of an autograd context."""
        self._optimizer.step(context)


def _begin(local: Any, lr: float | None) -> None:
    """Run on the owner; `local` is torch's _LocalOptimizer, whose `optim` `build` has made."""
    local.optim.zero_grad()
    if lr is not None:
        for group in local.optim.param_groups:
            group["lr"] = lr


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back the advice to use TorchScript, which torch itself has given up."""
    logger = logging.getLogger("torch.distributed.optim.optimizer")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was
