"""Pipeline schedules: what each stage does, in which order, as a list of small instructions.

A schedule is a pure function of the stage's number; `executor.py` carries it out.

- `gpipe`: Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline
  Parallelism". All forwards, then all backwards.
- `one_f_one_b`: Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN
  Training", in the form that waits for all microbatches at the end of a step (PipeDream-Flush).
- `interleaved`: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
  Clusters Using Megatron-LM". Each rank has several chunks of the model.

The bubble is the share of a step in which a stage has nothing to do. With p stages and m
microbatches it is (p-1)/(m+p-1) for `gpipe` and for `one_f_one_b`, which differ in memory: m and at
most p microbatches are live at a time. With v chunks a rank, a stage waits for p-1 chunks where it
waited for p-1 whole stages, so `interleaved` idles 1/v as long: (p-1)/(v*m+p-1)
(`spec.strategy.bubble`).

In the diagrams F2 and B2 are forward and backward of microbatch 2; both are drawn as one tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Instruction:
    """Something that a rank does with one microbatch in one of its chunks."""

    microbatch: int
    chunk: int = 0


class Forward(Instruction):
    """Compute the chunk's output, and keep what its backward needs."""


class Backward(Instruction):
    """Add to the gradients of the chunk's parameters, and compute that of its input."""


class ReceiveActivation(Instruction):
    """Take the chunk's input from the stage before."""


class SendActivation(Instruction):
    """Give the chunk's output to the stage behind."""


class ReceiveGradient(Instruction):
    """Take the gradient of the chunk's output from the stage behind."""


class SendGradient(Instruction):
    """Give the gradient of the chunk's input to the stage before."""


def gpipe(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """Yield a pipeline stage's instructions: (1) all forwards, (2) all backwards.

    clock    0  1  2  3  4  5  6  7  8  9 10 11
    stage 0 F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3
    stage 1  . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
    stage 2  .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .
             (1) ------------------ (2) -------

    The paper takes the backwards last microbatch first; here they come in the order of the
    forwards, so that all schedules add gradients up in one order, and end with the same bits.
    """
    position = _StagePosition(stage, stages, 1)
    for microbatch in range(microbatches):
        yield from position.forward(microbatch, 0)  # (1)
    for microbatch in range(microbatches):
        yield from position.backward(microbatch, 0)  # (2)


def one_f_one_b(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    """Yield a pipeline stage's instructions: (1) warm up, (2) one forward, one backward, (3) drain.

    clock    0  1  2  3  4  5  6  7  8  9 10 11
    stage 0 F0 F1 F2  .  . B0 F3 B1  . B2  . B3      two forwards ahead, then F2 B0, F3 B1
    stage 1  . F0 F1  . B0 F2 B1 F3 B2  . B3  .      one ahead, then F1 B0, F2 B1, F3 B2
    stage 2  .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .      none ahead
    """
    order = [(microbatch, 0) for microbatch in range(microbatches)]
    return _alternate(_StagePosition(stage, stages, 1), order, order, ahead=stages - 1 - stage)


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> Iterator[Instruction]:
    """Yield the instructions of a pipeline rank with several chunks: warm up, alternate, drain.

    Chunk c of rank r is virtual stage c*stages + r, so an output of the last rank goes on to the
    first rank's next chunk. Lower case is chunk 1:

    clock    0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17
    rank 0  F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1  . b2  . b3 B2 B3
    rank 1   . F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3  .

    Microbatches go in rounds of `stages`: all of a round through the first chunk, then through the
    second, … The last round takes in what does not divide. A rank runs ahead by what its first
    backward needs (all chunks but one of a round), and twice the way to the last rank.
    """
    starts = range(0, max(microbatches - stages, 0) + 1, stages)
    ends = [*starts[1:], microbatches]
    rounds = [range(start, end) for start, end in zip(starts, ends, strict=True)]
    forwards = [(k, chunk) for each in rounds for chunk in range(chunks) for k in each]
    backwards = [(k, chunk) for each in rounds for chunk in reversed(range(chunks)) for k in each]
    ahead = (chunks - 1) * len(rounds[-1]) + 2 * (stages - 1 - stage)
    return _alternate(_StagePosition(stage, stages, chunks), forwards, backwards, ahead=ahead)


SCHEDULES: Mapping[str, Callable[..., Iterator[Instruction]]] = MappingProxyType(
    {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved}
)


def peak_live(instructions: Iterable[Instruction]) -> int:
    """Return how many activations a pipeline stage keeps: forwards that wait for their backward."""
    live = peak = 0
    for instruction in instructions:
        live += isinstance(instruction, Forward) - isinstance(instruction, Backward)
        peak = max(peak, live)
    return peak


@dataclass(frozen=True)
class _StagePosition:
    """Where a rank stands in the pipeline, which decides what it receives and sends."""

    stage: int
    stages: int
    chunks: int

    def forward(self, microbatch: int, chunk: int) -> Iterator[Instruction]:
        if (self.stage, chunk) != (0, 0):
            yield ReceiveActivation(microbatch, chunk)
        yield Forward(microbatch, chunk)
        if (self.stage, chunk) != (self.stages - 1, self.chunks - 1):
            yield SendActivation(microbatch, chunk)

    def backward(self, microbatch: int, chunk: int) -> Iterator[Instruction]:
        if (self.stage, chunk) != (self.stages - 1, self.chunks - 1):
            yield ReceiveGradient(microbatch, chunk)
        yield Backward(microbatch, chunk)
        if (self.stage, chunk) != (0, 0):
            yield SendGradient(microbatch, chunk)


def _alternate(
    position: _StagePosition,
    forwards: Sequence[tuple[int, int]],
    backwards: Sequence[tuple[int, int]],
    *,
    ahead: int,
) -> Iterator[Instruction]:
    """Yield forwards that run ahead, then one forward, one backward, then the backwards left."""
    ahead = min(ahead, len(forwards))
    for forward in forwards[:ahead]:
        yield from position.forward(*forward)
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield from position.forward(*forward)
        yield from position.backward(*backward)
    for backward in backwards[len(forwards) - ahead :]:
        yield from position.backward(*backward)
