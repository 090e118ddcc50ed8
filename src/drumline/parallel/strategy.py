"""Strategies: how the training loop asks its ranks to cooperate, one interface for all of them.

The loop calls the same four things whatever the strategy is:

    with strategy.no_sync(): …            backward passes that only accumulate
    loss.backward()
    strategy.finish()                     after the last backward: gradients are averaged
    optimizer.step()
    strategy.after_step()                 parameters are averaged, where that is the strategy

`blocked_from` tells since when the last `backward()` or `finish()` did nothing but wait.
"""

from __future__ import annotations

import contextlib
import re
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.parallel.aggregate import Aggregator
from drumline.parallel.bucket import FlatParameters
from drumline.parallel.data_parallel import DataParallel, broadcast_state, check_same_model
from drumline.parallel.dynamo import ddp_settings
from drumline.parallel.hook import comm_hook
from drumline.parallel.naive import average_gradients, average_parameters
from drumline.spec.strategy import StrategySpec


class Strategy:
    """One copy of the model, and nothing is averaged; others override what they do differently."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        """what the loop calls for the forward pass"""

    @property
    def blocked_from(self) -> int | None:
        """Since when (ns) backward itself has only waited, if it does the waiting."""
        return None

    def no_sync(self) -> AbstractContextManager[None]:
        """Only accumulate gradients in here."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Block until gradients are averaged, unless backward has done so."""

    def after_step(self) -> None:
        """Block until parameters are averaged, where they are."""


def build_strategy(
    spec: StrategySpec, model: nn.Module, meter: Meter, group: ProcessGroup | None = None
) -> Strategy:
    """Wrap a model in the spec's parallel strategy; every rank calls this, to get rank 0's weights.

    `model` may be the part of one that all ranks of the group hold; None is the group of all ranks.
    """
    if spec.aggregator == "ddp":
        return TorchDDP(spec, model, meter, group)
    if spec.of == "parameters" or not spec.bucketed:
        return AfterBackward(spec, model, meter, group)
    return Bucketed(spec, model, meter, group)


class _Ddp(DistributedDataParallel):
    """DDP that says in a sentence what its own error takes a page for."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module."""
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


class TorchDDP(Strategy):
    """PyTorch's DistributedDataParallel, its all-reduce metered by a communication hook."""

    def __init__(
        self, spec: StrategySpec, model: nn.Module, meter: Meter, group: ProcessGroup | None
    ) -> None:
        check_same_model(model, group)
        device = next(model.parameters()).device
        with ddp_settings():
            self._ddp = _Ddp(
                model,
                process_group=group,
                device_ids=[device] if device.type == "cuda" else None,
                bucket_cap_mb=spec.bucket_bytes / 2**20,
                gradient_as_bucket_view=True,
            )
        self._state, hook = comm_hook(
            "allreduce", average=spec.average, compress=spec.compress, group=group, meter=meter
        )
        self._ddp.register_comm_hook(self._state, hook)
        super().__init__(self._ddp)

    @property
    def blocked_from(self) -> int | None:
        """When the last bucket was handed over: backward returns when gradients are averaged."""
        return self._state.last_ready_ns

    def no_sync(self) -> AbstractContextManager[None]:
        """Only accumulate gradients in here."""
        return self._ddp.no_sync()


class Bucketed(Strategy):
    """Our own bucketed, overlapped averaging of gradients."""

    def __init__(
        self, spec: StrategySpec, model: nn.Module, meter: Meter, group: ProcessGroup | None
    ) -> None:
        self._parallel = DataParallel(
            model,
            spec.aggregator,
            average=spec.average,
            compress=spec.compress,
            bucket_bytes=spec.bucket_bytes,
            group=group,
            meter=meter,
        )
        super().__init__(self._parallel)

    def no_sync(self) -> AbstractContextManager[None]:
        """Only accumulate gradients in here."""
        return self._parallel.no_sync()

    def finish(self) -> None:
        """Block until gradients are averaged."""
        self._parallel.finish()


class AfterBackward(Strategy):
    """Nothing overlaps: gradients one by one after backward, or parameters after the step."""

    def __init__(
        self, spec: StrategySpec, model: nn.Module, meter: Meter, group: ProcessGroup | None
    ) -> None:
        super().__init__(model)
        self._gradients = spec.of == "gradients"
        self._aggregate = Aggregator(
            kind=spec.aggregator,
            average=spec.average,
            compress=spec.compress,
            group=group,
            meter=meter,
        )
        broadcast_state(model, group)
        self._flat = FlatParameters(model, spec.bucket_bytes) if spec.bucketed else None

    def finish(self) -> None:
        """Average each gradient, where gradients are averaged."""
        if self._gradients:
            average_gradients(self.module, self._aggregate)

    def after_step(self) -> None:
        """Average parameters, where parameters are averaged."""
        if self._gradients:
            return
        if self._flat is not None:
            self._flat.average(self._aggregate)
        else:
            average_parameters(self.module, self._aggregate)
