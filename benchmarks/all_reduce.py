"""Time drumline's aggregators against `dist.all_reduce` (gloo) on this host.

    python benchmarks/all_reduce.py [--rounds 20] [--json PATH]

For 2 and 4 ranks and buffers of 64 KiB, 1 MiB and 32 MiB of float32, all aggregators take turns in
the same processes. Each operation starts after a barrier; its time is that of the slowest rank.
`allreduce` is gloo's own under our name: how far its ratio is from 1 says how exact the others are.

Bandwidths are those of nccl-tests, in GB/s: algorithm = bytes of the buffer ÷ time, and
bus = algorithm · 2·(n−1)/n, what each rank's link carries if the algorithm moves the least bytes
that an all-reduce can.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from measure import Row, arguments, compare, report

from drumline.parallel import KINDS, Aggregator
from ranks import Times, add_rank_option, leave, start_ranks, take_turns, torchrun

RANKS = (2, 4)
SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "32 MiB": 2**25}
GLOO = "dist.all_reduce"


def race(nbytes: int, rounds: int) -> Times:
    """Time every aggregator in turn; every rank calls this, and gets the slowest rank's times."""
    sums: dict[str, Callable[[torch.Tensor], object]] = {
        GLOO: dist.all_reduce,
        **{kind: Aggregator(kind=kind, average="sum") for kind in KINDS},
    }
    for name, add in sums.items():  # connections are made, memory is there, and the sum is right
        ones = torch.ones(nbytes // 4)
        add(ones)
        if not torch.all(ones == dist.get_world_size()):
            raise SystemExit(f"{name} gives a wrong sum")
    tensor = torch.zeros(nbytes // 4)
    return take_turns({name: partial(add, tensor) for name, add in sums.items()}, rounds)


def be_rank(rounds: int, path: Path) -> None:
    """Be one of the ranks that torchrun has started; rank 0 writes the times."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times = {size: race(nbytes, rounds) for size, nbytes in SIZES.items()}
    if dist.get_rank() == 0:
        path.write_text(json.dumps(times))
    leave()


def compare_all(ranks: int, size: str, times: Times) -> list[Row]:
    rows = []
    for name in KINDS:
        algorithm = SIZES[size] / (statistics.median(times[name]) / 1e3) / 1e9
        bandwidth = {"algbw GB/s": algorithm, "busbw GB/s": algorithm * 2 * (ranks - 1) / ranks}
        case = f"{size}, {ranks} ranks"
        rows.append(compare(times, name, GLOO, case=case, unit="ms", extra=bandwidth))
    return rows


def main() -> None:
    parser = arguments(__doc__, rounds=20)
    add_rank_option(parser)
    args = parser.parse_args()
    if args.be_rank is not None:
        be_rank(args.rounds, args.be_rank)
        return
    rows: list[Row] = []
    for ranks in RANKS:
        for size, times in start_ranks(torchrun(ranks), __file__, args.rounds).items():
            rows += compare_all(ranks, size, times)
    note = (
        "Sum over all ranks of this host, float32, gloo, one thread a rank; a barrier before each "
        "operation, the slowest rank's time. Bandwidths are nccl-tests' algorithm and bus "
        "bandwidth of the median. The rows `allreduce` compare gloo with itself."
    )
    report("Aggregators over dist.all_reduce", note, rows, args.json)


if __name__ == "__main__":
    main()
