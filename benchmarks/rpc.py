"""Time a pipelined step over RPC against the sequential one, two parts on two ranks of this host.

    python benchmarks/rpc.py [--rounds 15] [--json PATH]

The model is two equal halves, each a chain of wide linear layers, so that computing outweighs
calling. The rivals share one model, and take turns: `sequential` sends the whole batch through the
parts, and one rank works while the other waits; `pipelined` sends it as 4 microbatches, which
overlap. `one by one` sends the same microbatches, each when the one before has come back: what
splitting costs without overlap. One thread a rank. With m microbatches and nothing to pay for calls
the ratio would be (m + 1) / 2m: 0.625.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import Row, arguments, compare, report, turns
from torch import Tensor, nn

from drumline.comm.store import join_store, serve_store
from drumline.optim import build_optimizer
from drumline.parallel.rpc.agents import join_rpc
from drumline.parallel.rpc.leader import RpcModel
from drumline.parallel.rpc.parts import Part
from drumline.spec.learning import OptimizerSpec
from ranks import Times, add_rank_option, start_ranks, torchrun

WIDTH, LAYERS = 768, 6  # of each half
BATCH, MICROBATCHES = 512, 4
SPEC = OptimizerSpec(name="sgd", lr=1e-3)
TIMEOUT_S = 60.0


def half() -> nn.Module:
    layers = [(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*(module for pair in layers for module in pair))


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets, reduction="sum")


def race(model: RpcModel, rounds: int) -> Times:
    """Let the rivals take turns; returns ms a step."""
    batch = (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))
    size = BATCH // MICROBATCHES
    pieces = list(zip(batch[0].split(size), batch[1].split(size), strict=True))

    def train(microbatches: list[tuple[Tensor, Tensor]], overlap: bool) -> None:
        model.overlap = overlap
        model.train(microbatches, squares, 1 / BATCH)

    jobs = {
        "sequential": partial(train, [batch], False),
        "pipelined": partial(train, pieces, True),
        "one by one": partial(train, pieces, False),
    }
    for job in jobs.values():
        job()  # connections are made, memory is there
    times: Times = {name: [] for name in jobs}
    for name in turns(list(jobs), rounds):
        start = time.perf_counter()
        jobs[name]()
        times[name].append((time.perf_counter() - start) * 1e3)
    return times


def be_rank(rounds: int, path: Path) -> None:
    """Be one of the ranks that torchrun has started; rank 0 drives, and writes the times."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)  # distributed backward runs on these
    rank = int(os.environ["RANK"])
    meeting = path.with_name("port")
    if rank == 0:
        store = serve_store("127.0.0.1", 0, TIMEOUT_S)
        meeting.with_suffix(".draft").write_text(str(store.port))
        meeting.with_suffix(".draft").replace(meeting)
    else:
        while not meeting.exists():
            time.sleep(0.01)
        store = join_store("127.0.0.1", int(meeting.read_text()), TIMEOUT_S)
    with join_rpc(store, rank=rank, world_size=2, timeout_s=TIMEOUT_S) as agents:
        part = Part(half(), number=rank)
        if rank > 0:
            agents.serve(part)
            return
        model = RpcModel(agents, part, optimizer=partial(build_optimizer, SPEC))
        times = race(model, rounds)
        model.take_traffic()
        model.train([(torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH))], squares, 1.0)
        traffic = model.take_traffic()
        sent = traffic.activation_bytes + traffic.gradient_bytes
        path.write_text(json.dumps({"times": times, "sent": {"bytes": [sent]}}))


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    add_rank_option(parser)
    args = parser.parse_args()
    if args.be_rank is not None:
        be_rank(args.rounds, args.be_rank)
        return
    found = start_ranks(torchrun(2), __file__, args.rounds)
    megabytes = {"MB sent a rank": max(found["sent"]["bytes"]) / 1e6}
    rows: list[Row] = [
        compare(
            found["times"],
            name,
            "sequential",
            case=f"2 parts, {MICROBATCHES} microbatches",
            unit="ms",
            extra=megabytes,
        )
        for name in ("pipelined", "one by one")
    ]
    note = (
        f"A training step of two halves of {LAYERS} linear layers of width {WIDTH}, batch {BATCH}, "
        f"one thread a rank, over RPC on the loopback. If calls cost nothing, 4 microbatches would "
        f"take 0.625 of the sequential time."
    )
    report("Pipelined over sequential RPC", note, rows, args.json)


if __name__ == "__main__":
    main()
