"""`Executor`: carries out a pipeline schedule over plain messages.

    instructions             one dispatch table                  links
    ReceiveActivation   ──>  input of the chunk             <──  activations, from the stage before
    Forward             ──>  output; a SavedForward is kept
    SendActivation      ──>  output                         ──>  activations, to the stage behind
    ReceiveGradient     ──>  gradient of the output         <──  gradients, from the stage behind
    Backward            ──>  .grad of parameters; gradient of the input; it is dropped
    SendGradient        ──>  gradient of the input          ──>  gradients, to the stage before

The loss is a sum over predictions, and its gradient is `scale`: what the last stage starts backward
with in place of a message. So microbatches of different sizes add up to the gradient of the mean.

`schedule.py` trusts its arguments, so that the algorithms stay short: they are checked here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from drumline.comm import Channel, Meter
from drumline.comm.meter import NoteWork
from drumline.core.errors import UsageError
from drumline.core.formatting import nearest
from drumline.parallel.pipeline.p2p_link import P2PLink, TensorMeta
from drumline.parallel.pipeline.schedule import (
    SCHEDULES,
    Backward,
    Forward,
    Instruction,
    ReceiveActivation,
    ReceiveGradient,
    SendActivation,
    SendGradient,
)
from drumline.parallel.split.balance import Microbatch, SumLoss


def check_schedule(schedule: str, *, stages: int, chunks: int) -> None:
    """Refuse a pipeline schedule that nobody knows, or that cannot have so many chunks a rank."""
    if schedule not in SCHEDULES:
        hint = nearest(schedule, SCHEDULES, "name one of them")
        raise UsageError(f"no schedule {schedule!r} among {', '.join(SCHEDULES)}; {hint}")
    if chunks < 1 or stages < 1:
        raise UsageError(
            f"a pipeline of {stages} stages with {chunks} chunks each has nothing to run; give "
            f"every rank at least one chunk of the model"
        )
    if chunks > 1 and schedule != "interleaved":
        raise UsageError(
            f"schedule {schedule} has one chunk a rank, but this rank got {chunks}; set "
            f"schedule=interleaved, or cut the model into {stages} parts instead of "
            f"{stages * chunks}"
        )


def read_instructions(
    schedule: str, stage: int, stages: int, microbatches: int, chunks: int
) -> tuple[Instruction, ...]:
    """Return the instructions of a rank in a pipeline schedule; without microbatches, refuse."""
    check_schedule(schedule, stages=stages, chunks=chunks)
    if microbatches < 1:
        raise UsageError(
            f"a pipeline needs microbatches, but got {microbatches}; cut the batch into at least "
            f"one, better {4 * stages} or more for {stages} stages"
        )
    more = (chunks,) if schedule == "interleaved" else ()
    return tuple(SCHEDULES[schedule](stage, stages, microbatches, *more))


Run = Callable[[Tensor], Tensor]


class SavedForward:
    """What one microbatch's forward through one chunk leaves for its backward: the graph."""

    def __init__(self, run: Run, inputs: Tensor) -> None:
        self._run = run
        self._inputs = inputs
        self._root: Tensor | None = None

    def forward(self) -> Tensor:
        """Return the output, cut off from the graph that is kept."""
        self._root = self._run(self._inputs)
        return self._root.detach()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Add to the parameters' gradients; return the input's, if anybody wants it."""
        assert self._root is not None
        if self._root.requires_grad:  # not where all layers up to here are frozen
            torch.autograd.backward(self._root, gradient)
        if not self._inputs.requires_grad:
            return None
        return torch.zeros_like(self._inputs) if self._inputs.grad is None else self._inputs.grad


class Checkpointed(SavedForward):
    """Activation checkpointing: keep the input and the random state, compute the graph again.

    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; GPipe does it for each
    microbatch. Dropout draws the same numbers again; layers that count their calls, as batch norm
    does, count twice. PyTorch's own `torch.utils.checkpoint` does the same for any part of a graph,
    and imports the compiler.
    """

    def __init__(self, run: Run, inputs: Tensor) -> None:
        super().__init__(run, inputs)
        self._gpu = [inputs.device] if inputs.is_cuda else []
        self._random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpu)]

    def forward(self) -> Tensor:
        """Return the output; no graph is kept."""
        with torch.no_grad():
            return self._run(self._inputs)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Go forward again with the same random numbers, and then back."""
        with torch.random.fork_rng(self._gpu, device_type="cuda"):
            torch.set_rng_state(self._random[0])
            for device, state in zip(self._gpu, self._random[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            self._root = self._run(self._inputs)
        return super().backward(gradient)


NoSync = Callable[[], AbstractContextManager[None]]
Key = tuple[int, int]
"""microbatch and chunk"""

_FORWARD_ONLY = (ReceiveActivation, Forward, SendActivation)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What one call of `train` or `predict` is about."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor] = ()
    loss: SumLoss | None = None
    scale: float = 1.0

    @property
    def trains(self) -> bool:
        """Whether a backward follows each forward."""
        return self.loss is not None

    def topic(self, instruction: Instruction) -> tuple[bool, int, TensorMeta]:
        """Name what decides about the form of a chunk's output."""
        inputs = self.inputs[instruction.microbatch]
        return self.trains, instruction.chunk, TensorMeta.of(inputs)


_NOTHING = _Batch(inputs=())


class Executor:
    """One rank of a pipeline: its chunks of the model, and the messages to its neighbours.

    All ranks of the channel make one, those with several in the same order. Where a stage fails,
    its error is raised there; its neighbours end with the backend's error for a peer that is gone,
    or does not answer within the group's timeout. The executors are of no use then.
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        *,
        channel: Channel,
        schedule: str,
        recompute: bool = False,
        note: NoteWork | None = None,
        no_sync: NoSync | None = None,
        meter: Meter | None = None,
    ) -> None:
        """Make the executor of this rank, of a channel that has the stages in order.

        Chunk c is virtual stage c*stages + rank. With `recompute` only inputs are kept, and a chunk
        runs again for its backward. `no_sync` is a data-parallel wrapper's, to put around all
        backwards of a chunk but the last. `note` is told of computations, `meter` of messages.
        """
        check_schedule(schedule, stages=channel.size, chunks=len(chunks))
        self._chunks = tuple(chunks)
        self._stage, self._stages = channel.rank, channel.size
        self._schedule = schedule
        self._saved_forward = Checkpointed if recompute else SavedForward
        self._note = note
        self._no_sync: NoSync = no_sync or contextlib.nullcontext
        tensors = [t for chunk in chunks for t in (*chunk.parameters(), *chunk.buffers())]
        self._device = tensors[0].device if tensors else torch.device("cpu")
        before, behind = (self._stage - 1) % self._stages, (self._stage + 1) % self._stages
        link = partial(P2PLink, window=self._stages * len(chunks), device=self._device, meter=meter)
        self._activations = link(channel, to=behind, source=before)
        back = Channel(channel.group, channel.members, ranks_per_node=channel.ranks_per_node)
        self._gradients = link(back, to=before, source=behind)
        self._plans: dict[int, tuple[Instruction, ...]] = {}
        self.peak_live = 0
        """how many forwards waited for their backward at most in the latest `train`, counted"""
        self._begin(_NOTHING)

    def train(self, microbatches: Sequence[Microbatch], loss: SumLoss, scale: float) -> list[float]:
        """Run forward and backward of all microbatches; gradients are added to `.grad`.

        Every rank calls this with the same microbatches, which may differ in size: the first stage
        uses the inputs, the last one the targets, and all the inputs' shapes. It blocks until this
        rank's part is done. `scale` times the summed loss is the loss whose gradient is wanted.
        Returns the summed loss of each microbatch on the last stage, none on the others.
        """
        inputs, targets = zip(*microbatches, strict=True) if microbatches else ((), ())
        batch = _Batch(inputs=inputs, targets=targets, loss=loss, scale=scale)
        self.peak_live = 0
        losses = self._carry_out(self._plan(len(microbatches)), batch)
        return torch.stack(losses).tolist() if losses else []

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor | None:
        """Run forward only, and return the logits on the last stage, None on the others.

        Every rank calls this with the same inputs, in whatever mode (`eval()`) the chunks are.
        """
        forwards = [each for each in self._plan(1) if isinstance(each, _FORWARD_ONLY)]
        logits = self._carry_out(forwards, _Batch(inputs=(inputs,)))
        return logits[0] if logits else None

    def _plan(self, microbatches: int) -> tuple[Instruction, ...]:
        if microbatches not in self._plans:
            self._plans[microbatches] = read_instructions(
                self._schedule, self._stage, self._stages, microbatches, len(self._chunks)
            )
        return self._plans[microbatches]

    def _carry_out(self, plan: Sequence[Instruction], batch: _Batch) -> list[Tensor]:
        """Do what the plan says; return the last stage's losses or logits."""
        self._begin(batch)
        self._activations.expect(batch.topic(at) for at in plan if type(at) is ReceiveActivation)
        self._gradients.expect(batch.topic(at) for at in plan if type(at) is ReceiveGradient)
        for instruction in plan:
            began = time.monotonic_ns()
            _ACTS[type(instruction)](self, instruction)
            if self._note is not None:
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                if (kind := _NOTED.get(type(instruction))) is not None:
                    ended = time.monotonic_ns()
                    self._note(kind, instruction.microbatch, instruction.chunk, began, ended)
        self._activations.finish()
        self._gradients.finish()
        results = self._results
        self._begin(_NOTHING)  # let go of the batch
        return results

    def _begin(self, batch: _Batch) -> None:
        self._batch = batch
        self._live: dict[Key, SavedForward] = {}
        self._taken: dict[Key, Tensor] = {}  # received, for the computation that follows
        self._made: dict[Key, Tensor] = {}  # computed, for the send that follows
        self._results: list[Tensor] = []

    def _is_last(self, chunk: int) -> bool:
        return (self._stage, chunk) == (self._stages - 1, len(self._chunks) - 1)

    def _receive_activation(self, at: Instruction) -> None:
        received = self._activations.receive()
        self._taken[at.microbatch, at.chunk] = received.requires_grad_(self._batch.trains)

    def _forward(self, at: Instruction) -> None:
        key, batch = (at.microbatch, at.chunk), self._batch
        run: Run = self._chunks[at.chunk]
        last = self._is_last(at.chunk)
        if last and batch.loss is not None:
            targets = batch.targets[at.microbatch].to(self._device, non_blocking=True)
            run = partial(_run_with_loss, run, batch.loss, targets)
        inputs = self._taken.pop(key, None)
        if inputs is None:
            inputs = batch.inputs[at.microbatch].to(self._device, non_blocking=True)
        saved = self._saved_forward(run, inputs)
        output = saved.forward()
        if last:
            self._results.append(output)
        else:
            self._made[key] = output
        if batch.trains:
            self._live[key] = saved
            self.peak_live = max(self.peak_live, len(self._live))
            self._gradients.know(batch.topic(at), TensorMeta.of(output))

    def _send_activation(self, at: Instruction) -> None:
        output = self._made.pop((at.microbatch, at.chunk))
        self._activations.send(output, self._batch.topic(at))

    def _receive_gradient(self, at: Instruction) -> None:
        self._taken[at.microbatch, at.chunk] = self._gradients.receive()

    def _backward(self, at: Instruction) -> None:
        key = at.microbatch, at.chunk
        if self._is_last(at.chunk):
            gradient = torch.full_like(self._results[at.microbatch], self._batch.scale)
        else:
            gradient = self._taken.pop(key)
        # All schedules take the backwards of a chunk in the order of the microbatches.
        last = at.microbatch == len(self._batch.inputs) - 1
        with contextlib.nullcontext() if last else self._no_sync():
            of_inputs = self._live.pop(key).backward(gradient)
        if of_inputs is not None:
            self._made[key] = of_inputs

    def _send_gradient(self, at: Instruction) -> None:
        self._gradients.send(self._made.pop((at.microbatch, at.chunk)))


_ACTS: Mapping[type[Instruction], Callable[[Executor, Instruction], None]] = MappingProxyType(
    {
        ReceiveActivation: Executor._receive_activation,
        Forward: Executor._forward,
        SendActivation: Executor._send_activation,
        ReceiveGradient: Executor._receive_gradient,
        Backward: Executor._backward,
        SendGradient: Executor._send_gradient,
    }
)
_NOTED: Mapping[type[Instruction], str] = MappingProxyType(
    {Forward: "forward", Backward: "backward"}
)
"""messages are the meter's"""


def _run_with_loss(run: Run, loss: SumLoss, targets: Tensor, inputs: Tensor) -> Tensor:
    return loss(run(inputs), targets)
