"""The aggregators as communication hooks, for programs that use PyTorch's DDP already.

    ddp.register_comm_hook(*drumline.comm_hook("chunked_ring"))
    ddp.register_comm_hook(*drumline.comm_hook("allreduce", compress="bf16"))    half the bytes

DDP keeps its own buckets and hands each one over when it is full, in the same order on all ranks.
Lightning takes the pair as `DDPStrategy(ddp_comm_state=…, ddp_comm_hook=…)`, but uses it with GPUs
only; on a CPU, register it from a callback (examples/lightning_hydra). With Accelerate, register
it on the prepared model.
"""

# No `from __future__ import annotations`: DDP reads the hook's annotations and wants real types.

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import GradBucket, ProcessGroup
from torch.futures import Future

from drumline.comm import Meter
from drumline.comm.stream import CommStream
from drumline.parallel.aggregate import Aggregator, Average
from drumline.spec.strategy import Compress


@dataclass
class HookState:
    """What the hook needs to know: how to aggregate, and on which thread."""

    aggregate: Aggregator
    stream: CommStream | None = None
    """made with the first bucket, for its device"""
    last_ready_ns: int = 0
    """when DDP handed over its latest bucket: from there on, backward only waits"""


Hook = Callable[[HookState, GradBucket], "Future[Tensor]"]


def comm_hook(
    kind: str,
    *,
    average: Average = "mean",
    compress: Compress = "none",
    group: ProcessGroup | None = None,
    meter: Meter | None = None,
) -> tuple[HookState, Hook]:
    """Return the (state, hook) pair that `DistributedDataParallel.register_comm_hook` takes.

    `kind` is an aggregator (allreduce, ring, chunked_ring, …), and `group` the one that DDP was
    given. With `compress` fp16 or bf16, 16 bits are sent for each element, on CPUs, too.
    """
    aggregate = Aggregator(kind=kind, average=average, compress=compress, group=group, meter=meter)
    return HookState(aggregate), _run_hook


def _run_hook(state: HookState, bucket: GradBucket) -> Future[Tensor]:
    """Reduce one of DDP's buckets on the communication thread."""
    flat = bucket.buffer()
    state.last_ready_ns = time.monotonic_ns()
    devices: list[int | str | torch.device] | None = [flat.device] if flat.is_cuda else None
    reduced: Future[Tensor] = Future(devices=devices)

    def job() -> None:
        try:
            state.aggregate(flat)
        except Exception as error:  # DDP's backward raises it
            reduced.set_exception(error)  # type: ignore[arg-type]
        else:
            reduced.set_result(flat)

    if state.stream is None:
        state.stream = CommStream(flat.device)
    state.stream.submit(job)
    return reduced
