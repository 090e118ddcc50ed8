"""Time our 1F1B pipeline against PyTorch's own, two stages on this host.

    python benchmarks/pipeline.py [--rounds 40] [--json PATH]

Four blocks of gpt-mini (width 128, 4 heads) with an embedding before and a head behind them, two
blocks a stage, gloo, one thread a rank. Both pipelines run the same modules in the same processes
and take turns: forward and backward of all microbatches, gradients added up. A step starts after a
barrier; its time is that of the slowest rank. Every schedule is compared with PyTorch's form of it.

`one process` is the same work on one rank without any pipeline, while the other one rests: over it,
one sees what two stages save.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from measure import Row, arguments, compare, report
from torch import Tensor, nn

from drumline.comm import Channel
from drumline.models.gpt import Block
from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor
from drumline.spec.strategy import bubble
from ranks import Job, add_rank_option, leave, start_ranks, take_turns, torchrun

STAGES, BLOCKS, WIDTH, HEADS, CLASSES, LENGTH = 2, 4, 128, 4, 65, 64
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2}  # with so many chunks a rank
SHAPES = {"8 × 4": (8, 4), "8 × 1": (8, 1)}  # microbatches × samples
ALONE = "one process"


def build_parts(count: int) -> list[nn.Module]:
    """Cut the stack into equal parts; the same on every rank."""
    torch.manual_seed(1)
    each = BLOCKS // count
    parts: list[list[nn.Module]] = [
        [Block(WIDTH, HEADS, 0.0) for _ in range(each)] for _ in range(count)
    ]
    first, last = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
    wholes = [[first, *parts[0]], *parts[1:-1], [*parts[-1], last]]
    return [nn.Sequential(*part) for part in wholes]


def build_batch(microbatches: int, samples: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randint(0, CLASSES, (2, microbatches, samples, LENGTH), generator=generator)
    return list(zip(drawn[0], drawn[1], strict=True))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def build_jobs(batch: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Job]:
    """Make a step by each engine and schedule, and check that they give the same gradients."""
    rank = dist.get_rank()
    scale = 1 / sum(targets.numel() for _, targets in batch)
    jobs: dict[str, Job] = {}
    for schedule, chunks in SCHEDULES.items():
        mine = nn.ModuleList(build_parts(STAGES * chunks)[rank::STAGES])
        ours = Executor(list(mine), channel=Channel(), schedule=schedule)
        world, cpu = dist.group.WORLD, torch.device("cpu")
        assert world is not None
        theirs = TorchEngine(list(mine), group=world, device=cpu, schedule=schedule)
        pipelines: dict[str, Executor | TorchEngine] = {
            f"drumline {schedule}": ours,
            f"torch {schedule}": theirs,
        }
        found = []
        for name, pipeline in pipelines.items():

            def step(pipeline: Executor | TorchEngine = pipeline, mine: nn.Module = mine) -> None:
                mine.zero_grad()
                pipeline.train(batch, loss, scale)

            step()
            grads = [param.grad for param in mine.parameters()]
            found.append([grad.clone() for grad in grads if grad is not None])
            jobs[name] = step
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)
    whole = nn.Sequential(*build_parts(STAGES))

    def alone() -> None:
        whole.zero_grad()
        for inputs, targets in batch if rank == 0 else ():
            (loss(whole(inputs), targets) * scale).backward()

    return {**jobs, ALONE: alone}


def be_rank(rounds: int, path: Path) -> None:
    """Be one of the ranks that torchrun has started; rank 0 writes the times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times = {}
    for case, shape in SHAPES.items():
        jobs = build_jobs(build_batch(*shape))
        take_turns(jobs, 2)
        times[case] = take_turns(jobs, rounds)
    if dist.get_rank() == 0:
        path.write_text(json.dumps(times))
    leave()


def main() -> None:
    parser = arguments(__doc__, rounds=40)
    add_rank_option(parser)
    args = parser.parse_args()
    if args.be_rank is not None:
        be_rank(args.rounds, args.be_rank)
        return
    rows: list[Row] = []
    for case, times in start_ranks(torchrun(STAGES), __file__, args.rounds).items():
        for schedule, chunks in SCHEDULES.items():
            extra = {"bubble": bubble(STAGES, SHAPES[case][0], chunks)}
            for rival in (f"torch {schedule}", ALONE):
                name = f"drumline {schedule}"
                rows.append(compare(times, name, rival, case=case, unit="ms", extra=extra))
    note = (
        f"Forward and backward of {BLOCKS} blocks of width {WIDTH} in {STAGES} stages, microbatches"
        f" × samples of {LENGTH} tokens; gloo, one thread a rank, a barrier before each step, the "
        f"slowest rank's time. The bubble is the papers', (p−1)/(v·m+p−1)."
    )
    report("Pipelines over torch.distributed.pipelining", note, rows, args.json)


if __name__ == "__main__":
    main()
