"""Measure what observing a program costs: `drumline run` puts its hooks into plain PyTorch.

    python benchmarks/observer_overhead.py [--rounds 60] [--json PATH]

Two ranks train with DistributedDataParallel over gloo, batches from a DataLoader, one thread each;
where there is a GPU, one rank over NCCL. In each round they take STEPS steps with the hooks in
place and as many without any, in turns. The ratio minus 1 is the overhead. The first job takes
about 20 ms a step on one core of a server.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist
from measure import arguments, compare, report, turns
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from drumline.core.rundir import EventWriter
from drumline.core.status import StatusWriter
from drumline.observer.hooks import Hooks
from drumline.observer.recorder import Recorder
from ranks import add_rank_option, leave, start_ranks, torchrun

STEPS = 10
OBSERVED, PLAIN = "observed", "not observed"
Contexts = dict[str, Callable[[], AbstractContextManager[None]]]
ON_GPU = torch.cuda.is_available()
WIDTHS = {"wide mlp, 2 buckets": 28672 if ON_GPU else 1536, "small mlp": 64}
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


class Program:
    """A plain DDP program."""

    def __init__(self, width: int) -> None:
        layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        model = nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
        self.loader = DataLoader(data, batch_size=64)

    def run(self) -> None:
        """Take some steps."""
        for _, (inputs, targets) in zip(range(STEPS), self.loader, strict=False):
            self.optimizer.zero_grad()
            scores = self.model(inputs.to(DEVICE))
            nn.functional.cross_entropy(scores, targets.to(DEVICE)).backward()
            self.optimizer.step()
        if ON_GPU:
            torch.cuda.synchronize()


@contextlib.contextmanager
def observed(folder: Path) -> Iterator[None]:
    """Observe what this rank does in the context."""
    rank = dist.get_rank()
    with EventWriter(folder / f"rank-{rank}.jsonl") as events:
        recorder = Recorder(events, StatusWriter(folder / f"rank-{rank}.status"))
        with Hooks(recorder):
            yield
        recorder.close()


def be_rank(rounds: int, path: Path) -> None:
    """Be one of the ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as folder:
        contexts: Contexts = {
            OBSERVED: lambda: observed(Path(folder)),
            PLAIN: contextlib.nullcontext,
        }
        times = {case: race(Program(width), contexts, rounds) for case, width in WIDTHS.items()}
    if dist.get_rank() == 0:
        path.write_text(json.dumps(times))
    leave()


def race(program: Program, contexts: Contexts, rounds: int) -> dict[str, list[float]]:
    """Let a program run in each context in turn; returns ms a step."""
    took: dict[str, list[float]] = {name: [] for name in contexts}
    for name in turns(list(contexts), rounds):
        with contexts[name]():
            program.run()  # what comes first after a change is not measured
            dist.barrier()
            start = time.perf_counter()
            program.run()
            took[name].append((time.perf_counter() - start) * 1e3 / STEPS)
    return took


def main() -> None:
    parser = arguments(__doc__, rounds=60)
    add_rank_option(parser)
    args = parser.parse_args()
    if args.be_rank is not None:
        be_rank(args.rounds, args.be_rank)
        return
    times = start_ranks(torchrun(1 if ON_GPU else 2), __file__, args.rounds)
    rows = [compare(took, OBSERVED, PLAIN, case=case, unit="ms") for case, took in times.items()]
    note = (
        f"A step of a plain DDP program that is observed over one that is not; the ratio minus 1 "
        f"is the overhead. {'One rank, NCCL' if ON_GPU else 'Two ranks, gloo, one thread each'}; "
        f"{STEPS} steps each in turns."
    )
    report("What observing costs", note, rows, args.json)


if __name__ == "__main__":
    main()
