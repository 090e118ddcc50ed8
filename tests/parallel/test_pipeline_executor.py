"""Pipelines on real ranks, by both engines, against the same model in one process."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from drumline.comm import Channel
from drumline.core.errors import UsageError
from drumline.parallel import DataParallel
from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor, read_instructions
from drumline.parallel.pipeline.schedule import SCHEDULES, Backward, Forward, peak_live

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2}
EVEN, UNEVEN, FEW = (3,) * 8, (4, 4, 4, 4, 4, 4, 4, 1, 3), (2,)


def summed(logits, targets):
    return F.cross_entropy(logits, targets, reduction="sum")


def build_parts(count, *, dropout=0.0):
    """Cut a stack of layers into parts that pass on tensors of different widths."""
    torch.manual_seed(3)
    widths = [6, *(5 + number for number in range(count - 1)), 4]
    parts = [
        nn.Sequential(nn.Linear(widths[k], widths[k + 1]), nn.Dropout(dropout), nn.Tanh())
        for k in range(count)
    ]
    return [part.double() for part in parts]


def build_batch(sizes):
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(size, 6, generator=generator, dtype=torch.float64),
            torch.randint(0, 4, (size,), generator=generator),
        )
        for size in sizes
    ]


def build_pipeline(engine, mine, schedule, **options):
    if engine == "torch":
        group = dist.group.WORLD
        return TorchEngine(
            mine, group=group, device=torch.device("cpu"), schedule=schedule, **options
        )
    return Executor(mine, channel=Channel(), schedule=schedule, **options)


def gradients(parts):
    return [param.grad for part in parts for param in part.parameters()]


def differ(ours, expected):
    return max((a - b).abs().max().item() for a, b in zip(ours, expected, strict=True))


def run_one(rank, world_size, engine, schedule, sizes, recompute):
    """Train twice, so that gradients add up and shapes are known the second time; then predict."""
    chunks = CHUNKS[schedule]
    parts, batch = build_parts(world_size * chunks), build_batch(sizes)
    whole = copy.deepcopy(parts)
    alone, scale = nn.Sequential(*whole), 1 / sum(sizes)
    expected_losses = []
    for _ in range(2):
        for inputs, targets in batch:
            loss = summed(alone(inputs), targets)
            (loss * scale).backward()
            expected_losses.append(loss.item())
    pipeline = build_pipeline(engine, parts[rank::world_size], schedule, recompute=recompute)
    losses = pipeline.train(batch, summed, scale) + pipeline.train(batch, summed, scale)
    unmoved = pipeline.train(batch, summed, 0.0)  # samples that do not count have a loss, too
    assert unmoved == pytest.approx(losses[: len(batch)])
    worst = differ(gradients(parts[rank::world_size]), gradients(whole[rank::world_size]))
    for inputs, _ in (batch[0], batch[-1], batch[0]):
        logits = pipeline.predict(inputs)
        assert (logits is not None) == (rank == world_size - 1)
        if logits is not None:
            worst = max(worst, differ([logits], [alone(inputs)]))
    assert len(losses) == (len(expected_losses) if rank == world_size - 1 else 0)
    for ours, theirs in zip(losses, expected_losses, strict=False):
        worst = max(worst, abs(ours - theirs))
    if engine == "ours":
        plan = read_instructions(schedule, rank, world_size, len(sizes), chunks)
        assert pipeline.peak_live == peak_live(plan)
    return worst


def run_all(rank, world_size):
    """All schedules by both engines; UNEVEN has a run of equal microbatches and short ones."""
    cases = [("ours", EVEN, False), ("ours", UNEVEN, True), ("ours", FEW, False)]
    cases += [("torch", UNEVEN, False), ("torch", FEW, True)]
    return {
        (engine, schedule, sizes): run_one(rank, world_size, engine, schedule, sizes, recompute)
        for engine, sizes, recompute in cases
        for schedule in SCHEDULES
    }


@pytest.mark.parametrize("world_size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_losses_and_logits_equal_one_process(run_ranks, world_size):
    for differences in run_ranks(run_all, world_size):
        assert max(differences.values()) <= 1e-12, differences


def drop_out(rank, world_size):
    """Dropout draws the same numbers when a chunk is computed again, and goes on where it was."""
    found = []
    for engine in ("ours", "torch"):
        for recompute in (False, True):
            mine = [build_parts(world_size, dropout=0.5)[rank]]
            pipeline = build_pipeline(engine, mine, "1f1b", recompute=recompute)
            torch.manual_seed(rank)
            for _ in range(2):
                pipeline.train(build_batch(EVEN), summed, 1.0)
            found.append((gradients(mine), torch.rand(1).item()))
    first, *others = found
    assert differ(first[0], gradients([build_without_dropout(rank, world_size)])) > 1e-3
    return max(differ(first[0], other[0]) for other in others), {after for _, after in found}


def build_without_dropout(rank, world_size):
    mine = build_parts(world_size)[rank]
    pipeline = build_pipeline("ours", [mine], "1f1b")
    for _ in range(2):
        pipeline.train(build_batch(EVEN), summed, 1.0)
    return mine


def test_recomputed_dropout_draws_the_same_numbers(run_ranks):
    for worst, after in run_ranks(drop_out, 2):
        assert worst <= 1e-12
        assert len(after) == 1


def replicate(rank, world_size, schedule):
    """Two pipelines of two stages: a wrapper averages once, in the last backward of each chunk."""
    stage, replica = rank % 2, rank // 2
    everywhere = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3], [0, 1], [2, 3])]
    chunks = CHUNKS[schedule]
    mine = nn.ModuleList(build_parts(2 * chunks)[stage::2])
    parallel = DataParallel(mine, "allreduce", group=everywhere[stage], bucket_bytes=1)
    contexts = []

    def no_sync():
        contexts.append(1)
        return parallel.no_sync()

    channel = Channel(everywhere[2 + replica])
    executor = Executor(list(mine), channel=channel, schedule=schedule, no_sync=no_sync)
    batch = build_batch((3,) * 8)
    executor.train(batch[replica::2], summed, 1.0)
    parallel.finish()
    whole = build_parts(2 * chunks)
    for inputs, targets in batch:
        (summed(nn.Sequential(*whole)(inputs), targets) / 2).backward()
    return differ(gradients(mine), gradients(whole[stage::2])), len(contexts)


def replicate_all(rank, world_size):
    return {schedule: replicate(rank, world_size, schedule) for schedule in SCHEDULES}


def test_a_data_parallel_wrapper_averages_in_the_last_backward(run_ranks):
    for found in run_ranks(replicate_all, 4):
        for schedule, (worst, contexts) in found.items():
            assert worst <= 1e-12, schedule
            assert contexts == 3 * CHUNKS[schedule]


def take_notes(rank, world_size):
    notes = []
    parts = build_parts(2 * world_size)
    executor = Executor(
        parts[rank::world_size],
        channel=Channel(),
        schedule="interleaved",
        note=lambda *note: notes.append(note),
    )
    executor.train(build_batch(EVEN), summed, 1.0)
    return notes


def test_every_computation_is_noted_in_order(run_ranks):
    for rank, notes in enumerate(run_ranks(take_notes, 2)):
        plan = read_instructions("interleaved", rank, 2, len(EVEN), 2)
        assert [note[:3] for note in notes] == [
            (type(at).__name__.lower(), at.microbatch, at.chunk)
            for at in plan
            if isinstance(at, Forward | Backward)
        ]
        clock = [tick for note in notes for tick in note[3:]]
        assert clock == sorted(clock)


class Frozen(nn.Module):
    """Tokens to vectors, without anything to train; the gradient ends behind it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 5, dtype=torch.float64).requires_grad_(False)

    def forward(self, tokens):
        return self.table(tokens).transpose(0, 1)  # not contiguous


def odd_stages(rank, world_size):
    """A frozen first stage with whole numbers in, an output that is not contiguous; one rank."""
    torch.manual_seed(0)
    parts = [Frozen(), nn.Linear(5, 4, dtype=torch.float64)]
    whole = copy.deepcopy(parts)
    tokens = torch.arange(12).view(3, 4) % 4
    batch = [(tokens, tokens.t()), (tokens[:2], tokens[:2].t())]

    def loss(logits, targets):
        return summed(logits.flatten(0, 1), targets.flatten())

    for inputs, targets in batch:
        loss(whole[1](whole[0](inputs)), targets).backward()
    executor = Executor([parts[rank]], channel=Channel(), schedule="1f1b")
    executor.train(batch, loss, 1.0)
    worst = differ(gradients(parts[1:]), gradients(whole[1:])) if rank == 1 else 0.0
    alone = Executor(parts, channel=Channel(members=[rank]), schedule="interleaved")
    parts[1].zero_grad()
    losses = alone.train(batch, loss, 1.0)
    assert len(losses) == 2
    return max(worst, differ(gradients(parts[1:]), gradients(whole[1:])))


def test_frozen_and_uncontiguous_stages_and_a_pipeline_of_one_rank(run_ranks):
    assert max(run_ranks(odd_stages, 2)) <= 1e-12


class Changing(nn.Module):
    def forward(self, inputs):
        self.calls = getattr(self, "calls", 0) + 1
        return inputs[:, : 6 - self.calls]


def refuse(rank, world_size):
    messages = []
    for chunks, schedule in ((1, "1b1f"), (2, "1f1b"), (0, "gpipe")):
        with pytest.raises(UsageError) as caught:
            Executor([nn.Identity()] * chunks, channel=Channel(), schedule=schedule)
        messages.append(str(caught.value))
    with pytest.raises(UsageError) as caught:
        Executor([nn.Identity()], channel=Channel(), schedule="1f1b").train([], summed, 1.0)
    messages.append(str(caught.value))
    if rank == 0:
        executor = Executor([Changing()], channel=Channel(), schedule="gpipe")
        with pytest.raises(UsageError) as caught:
            executor.train(build_batch(EVEN), summed, 1.0)
        messages.append(str(caught.value))
    return messages


def test_what_cannot_be_run_is_refused(run_ranks):
    messages = run_ranks(refuse, 2)[0]
    assert "did you mean '1f1b'?" in messages[0]
    assert "set schedule=interleaved, or cut the model into 2 parts instead of 4" in messages[1]
    assert "at least one chunk" in messages[2]
    assert "got 0; cut the batch into at least one" in messages[3]
    assert "gave float64[3, 4] where it gave float64[3, 5]" in messages[4]


class Ends(nn.Module):
    """A stage that is killed, or fails, on its third microbatch."""

    def __init__(self, how):
        super().__init__()
        self.layer = nn.Linear(6, 6, dtype=torch.float64)
        self.how, self.calls = how, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == 3 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls == 3 and self.how == "fails":
            raise ValueError("the stage is broken")
        return self.layer(inputs)


def end_in_the_middle(rank, world_size, how):
    group = dist.new_group(timeout=timedelta(seconds=3))
    stage = Ends(how if rank == 1 else None)
    executor = Executor([stage], channel=Channel(group), schedule="1f1b")
    with pytest.raises((RuntimeError, ValueError)) as caught:
        executor.train(build_batch(EVEN), summed, 1.0)
    return type(caught.value).__name__, str(caught.value)


def test_the_neighbours_of_a_killed_stage_end_with_an_error(run_ranks):
    before, _, behind = run_ranks(end_in_the_middle, 3, "killed", lost=(1,))
    assert before[0] == behind[0] == "RuntimeError"


def test_a_stage_that_fails_raises_and_its_neighbours_time_out(run_ranks):
    before, broken, behind = run_ranks(end_in_the_middle, 3, "fails")
    assert before[0] == behind[0] == "RuntimeError"
    assert broken == ("ValueError", "the stage is broken")


def train_on_a_gpu(rank, world_size, schedule):
    """Two ranks share a GPU; tensors travel through host memory, random numbers are the GPU's."""
    found = []
    for dropout, recompute in ((0.0, False), (0.0, True), (0.5, False), (0.5, True)):
        parts = build_parts(world_size * CHUNKS[schedule], dropout=dropout)
        mine = [part.cuda() for part in parts[rank::world_size]]
        executor = Executor(mine, channel=Channel(), schedule=schedule, recompute=recompute)
        torch.manual_seed(rank)
        for _ in range(2):
            executor.train(build_batch(UNEVEN), summed, 1.0)
        found.append([grad.cpu() for grad in gradients(mine)])
        logits = executor.predict(build_batch(FEW)[0][0])
        assert logits is None or logits.is_cuda
    whole = build_parts(world_size * CHUNKS[schedule])
    for inputs, targets in 2 * build_batch(UNEVEN):
        summed(nn.Sequential(*whole)(inputs), targets).backward()
    expected = gradients(whole[rank::world_size])
    plain, recomputed, dropped, dropped_again = found
    return max(differ(plain, expected), differ(recomputed, plain), differ(dropped_again, dropped))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_on_a_gpu(run_ranks, schedule):
    assert max(run_ranks(train_on_a_gpu, 2, schedule)) <= 1e-12


WITHOUT_COMPILER = """
import sys
import torch, torch.distributed as dist
from torch import nn
from drumline.comm import Channel
from drumline.parallel.pipeline.executor import Executor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
for recompute in (False, True):
    executor = Executor(layers, channel=Channel(), schedule="interleaved", recompute=recompute)
    batch = [(torch.ones(3, 2), torch.zeros(3, 2))] * 2
    assert len(executor.train(batch, lambda a, b: (a - b).sum(), 1.0)) == 2
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
dist.destroy_process_group()
"""


def test_the_compiler_is_not_imported():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILER], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
