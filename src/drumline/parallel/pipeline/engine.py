"""`TorchEngine`: PyTorch's own pipeline (`torch.distributed.pipelining`), with `Executor`'s words.

PyTorch fixes shapes and the number of microbatches when a schedule is built, ours does neither. So
a call is cut into runs of microbatches of one form, and the schedules are kept, one for each form
and number. Gradients add up over the runs.

Where PyTorch's schedule does not take a number of microbatches, the run is carried out by what
gives the same numbers: 1F1B with fewer microbatches than stages by GPipe, an interleaved one in two
runs.

To learn the shapes of a new schedule, PyTorch runs each chunk once more on memory without content,
with the random numbers put back: layers that count their calls, as batch norm does, see that too.

Importing `torch.distributed.pipelining` imports the compiler, more than a second: it is left until
an engine is built.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline.core.errors import UsageError
from drumline.parallel.pipeline.executor import NoSync, check_schedule
from drumline.parallel.pipeline.p2p_link import TensorMeta
from drumline.parallel.split.balance import Microbatch, SumLoss


class TorchEngine:
    """One rank of a pipeline that PyTorch runs; every rank of the group makes one."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        *,
        group: ProcessGroup,
        device: torch.device,
        schedule: str,
        recompute: bool = False,
        no_sync: NoSync | None = None,
    ) -> None:
        """Make the engine of this rank, of a group that has the stages in order; as `Executor`.

        The group's backend must be able to send from the device. `no_sync` is put around all
        backwards: PyTorch does not say which is the last, so the wrapper averages after all.
        """
        from torch.distributed import pipelining

        self._torch = pipelining
        self._stages, self._rank = dist.get_world_size(group), dist.get_rank(group)
        check_schedule(schedule, stages=self._stages, chunks=len(chunks))
        self._chunks = [_Recomputed(chunk) if recompute else chunk for chunk in chunks]
        self._group, self._device = group, device
        self._schedule = schedule
        self._no_sync = no_sync or contextlib.nullcontext
        self._loss = _ScaledLoss()
        self._built: dict[tuple[TensorMeta, TensorMeta, int], Any] = {}
        self._for_prediction: dict[TensorMeta, Any] = {}

    def train(self, microbatches: Sequence[Microbatch], loss: SumLoss, scale: float) -> list[float]:
        """Run forward and backward of all microbatches; the same as `Executor.train`."""
        if not microbatches:
            raise UsageError("a pipeline needs microbatches, but got 0; cut the batch into some")
        self._loss.loss, self._loss.scale = loss, scale
        losses: list[Tensor] = []
        with self._no_sync():
            for run in self._cut(microbatches):
                losses += self._train_run(run)
        return torch.stack(losses).tolist() if losses else []

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor | None:
        """Run forward only, and return the logits on the last stage; as `Executor.predict`."""
        form = TensorMeta.of(inputs)
        if form not in self._for_prediction:
            name = "interleaved" if len(self._chunks) > 1 else "gpipe"
            self._for_prediction[form] = self._build(name, 1, None)
        given = (inputs.to(self._device),) if self._rank == 0 else ()
        logits: Tensor | None = self._for_prediction[form].step(*given)
        return logits

    def _cut(self, microbatches: Sequence[Microbatch]) -> Iterator[list[Microbatch]]:
        """Cut into runs of one form, and those to what the schedule takes."""
        for _, same in groupby(microbatches, lambda each: tuple(map(TensorMeta.of, each))):
            run = list(same)
            rounds = max(1, len(run) // self._stages)
            if self._schedule == "interleaved" and len(run) % rounds:
                whole = len(run) - len(run) % self._stages
                yield run[:whole]
                yield run[whole:]
            else:
                yield run

    def _train_run(self, run: list[Microbatch]) -> list[Tensor]:
        count = len(run)
        key = (TensorMeta.of(run[0][0]), TensorMeta.of(run[0][1]), count)
        if key not in self._built:
            short = self._schedule == "1f1b" and count < self._stages
            name = "gpipe" if short else self._schedule
            self._built[key] = self._build(name, count, self._loss)
        first, last = self._rank == 0, self._rank == self._stages - 1
        inputs = (torch.cat([each for each, _ in run]).to(self._device),) if first else ()
        target = torch.cat([each for _, each in run]).to(self._device) if last else None
        losses: list[Tensor] = []
        self._built[key].step(*inputs, target=target, losses=losses, return_outputs=False)
        return [each.detach() for each in losses]

    def _build(self, name: str, microbatches: int, loss: SumLoss | None) -> Any:
        stages = [
            self._torch.PipelineStage(
                chunk,
                number * self._stages + self._rank,
                self._stages * len(self._chunks),
                self._device,
                group=self._group,
            )
            for number, chunk in enumerate(self._chunks)
        ]
        classes = {
            "gpipe": self._torch.ScheduleGPipe,
            "1f1b": self._torch.Schedule1F1B,
            "interleaved": self._torch.ScheduleInterleaved1F1B,
        }
        which: Any = stages if name == "interleaved" else stages[0]
        return classes[name](which, microbatches, loss_fn=loss, scale_grads=False)


class _ScaledLoss:
    """The loss of the call under way; schedules are built once, with this in place of it.

    Its value is the sum, and its gradient is scaled: where samples do not count, the scale is 0.
    """

    def __init__(self) -> None:
        self.loss: SumLoss | None = None
        self.scale = 1.0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        assert self.loss is not None
        summed, scale = self.loss(logits, targets), self.scale
        if summed.requires_grad:
            summed.register_hook(lambda gradient: gradient * scale)
        return summed


class _Recomputed(nn.Module):
    """A chunk whose activations are not kept."""

    def __init__(self, chunk: nn.Module) -> None:
        super().__init__()
        self.chunk = chunk

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the chunk, now and again in backward."""
        from torch.utils.checkpoint import checkpoint

        output: Tensor = checkpoint(self.chunk, inputs, use_reentrant=False)
        return output
