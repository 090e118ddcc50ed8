"""Strategies: how the training loop asks its ranks to cooperate, one interface for all of them.

The loop calls the same four things whatever the strategy is:

    with strategy.no_sync(): …            backward passes that only accumulate
    loss.backward()
    strategy.finish()                     after the last backward: gradients are averaged
    optimizer.step()
    strategy.after_step()                 parameters are averaged, where that is the strategy
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.parallel.aggregate import Aggregator
from drumline.parallel.bucket import average_grouped, group_parameters
from drumline.parallel.data_parallel import DataParallel, broadcast_state, check_same_model
from drumline.parallel.dynamo import ddp_settings
from drumline.parallel.hook import HookState, comm_hook
from drumline.parallel.naive import average_gradients, average_parameters
from drumline.spec.strategy import StrategySpec


def _do_nothing() -> None:
    """Average nothing."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What the loop calls; by default for one copy of the model, where nothing is averaged."""

    module: nn.Module
    """for the forward pass"""
    no_sync: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    finish: Callable[[], None] = _do_nothing
    """blocks until gradients are averaged, unless backward has done so"""
    after_step: Callable[[], None] = _do_nothing
    """blocks until parameters are averaged, where they are"""
    hook: HookState | None = None
    """where backward itself does the waiting"""

    @property
    def blocked_from(self) -> int | None:
        """Since when (ns) backward itself has only waited, if it does the waiting."""
        return None if self.hook is None else self.hook.last_ready_ns


def build_strategy(
    spec: StrategySpec, model: nn.Module, meter: Meter, group: ProcessGroup | None = None
) -> Strategy:
    """Wrap a model in the spec's parallel strategy; every rank calls this, to get rank 0's weights.

    `model` may be the part of one that all ranks of the group hold; None is the group of all ranks.
    """
    if spec.aggregator == "ddp":
        return _build_ddp(spec, model, meter, group)
    if spec.of == "gradients" and spec.bucketed:
        parallel = DataParallel(
            model,
            spec.aggregator,
            average=spec.average,
            compress=spec.compress,
            bucket_bytes=spec.bucket_bytes,
            group=group,
            meter=meter,
        )
        return Strategy(module=parallel, no_sync=parallel.no_sync, finish=parallel.finish)
    # nothing overlaps: gradients one by one after backward, or parameters after the step
    aggregate = Aggregator(
        kind=spec.aggregator, average=spec.average, compress=spec.compress, group=group, meter=meter
    )
    broadcast_state(model, group)
    if spec.of == "gradients":
        return Strategy(module=model, finish=partial(average_gradients, model, aggregate))
    if spec.bucketed:
        groups = group_parameters(model.parameters(), spec.bucket_bytes)
        return Strategy(module=model, after_step=partial(average_grouped, groups, aggregate))
    return Strategy(module=model, after_step=partial(average_parameters, model, aggregate))


def _build_ddp(
    spec: StrategySpec, model: nn.Module, meter: Meter, group: ProcessGroup | None
) -> Strategy:
    """Use PyTorch's DistributedDataParallel, its all-reduce metered by a communication hook."""
    check_same_model(model, group)
    device = next(model.parameters()).device
    with ddp_settings():
        ddp = _Ddp(
            model,
            process_group=group,
            device_ids=[device] if device.type == "cuda" else None,
            bucket_cap_mb=spec.bucket_bytes / 2**20,
            gradient_as_bucket_view=True,
        )
    state, hook = comm_hook(
        "allreduce", average=spec.average, compress=spec.compress, group=group, meter=meter
    )
    ddp.register_comm_hook(state, hook)
    return Strategy(module=ddp, no_sync=ddp.no_sync, hook=state)


class _Ddp(DistributedDataParallel):
    """DDP that says in a sentence what its own error takes a page for."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        try:
            return super().forward(*inputs, **options)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            said = str(error)
            if "finished reduction in the prior iteration" not in said:
                raise
        listed = re.search(r"did not receive grad for rank \d+: ([\d ]+)", said)
        trained = [name for name, p in self.module.named_parameters() if p.requires_grad]
        idle = [trained[int(k)] for k in listed.group(1).split()] if listed else ["some"]
        raise UsageError(
            f"strategy ddp needs a gradient for every parameter on every rank, but "
            f"{', '.join(idle[:4])}{' …' if len(idle) > 4 else ''} got none; "
            f"set strategy=allreduce, which does without"
        )
