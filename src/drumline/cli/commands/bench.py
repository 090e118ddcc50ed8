"""Commands that measure: `bench collectives`, `aggregation`, `model-parallel`, `scaling`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, bench_app

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="What to measure, and where.")
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the rows as CSV.")]
Picture = Annotated[
    Path | None,
    typer.Option("--figure", metavar="PATH.png", help="Also draw a figure, as PNG and SVG."),
]
Outs = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Keep the run directories of all cases.")
]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the results are to go."""

    csv: Csv = None
    figure: Picture = None
    out: Annotated[Path | None, typer.Option(help="Keep the run directory there.")] = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class CasesOutput(OutputOptions):
    """Where the results of a bench that trains are to go."""

    out: Outs = None


@bench_app.command(calls="bench:collectives_command")
def collectives(output: OutputOptions, args: Overrides = None) -> None:
    """Time a collective by many algorithms and backends, on this host or on simulated links.

    Keys: collective, algorithms (native: the backend's own; reduce_broadcast, gather_scatter and
    all_gather: an all_reduce made of others), backends (gloo, shm, mpi, nccl), sizes, workers,
    nodes, link.rate, slow_nodes, rounds, timeout_s. Lists have commas. All rivals take turns in one
    run; each is checked for a right result first.

    Examples:
        drumline bench collectives
        drumline bench collectives backends=gloo,shm,mpi algorithms=native
        drumline bench collectives nodes=4 workers=1 link=1gbit sizes=64KiB,32MiB
        drumline bench collectives collective=broadcast sizes=4MiB rounds=20 --json
        drumline bench collectives --csv rows.csv --figure all_reduce.png
    """


@bench_app.command(calls="bench:aggregation_command")
def aggregation(output: OutputOptions, args: Overrides = None) -> None:
    """Time how strategies average a model's gradients, without and with a bottleneck node.

    Keys: model, batch (per rank), bucket_bytes, kinds (the strategies), nodes, workers, link.rate,
    bottleneck (a node: a quarter of the CPU, then a tenth of the link) or slow_nodes, rounds,
    timeout_s. Communication is split into wait and transfer, for every rank.

    Examples:
        drumline bench aggregation
        drumline bench aggregation model=cnn nodes=4 link=1gbit bottleneck=2
        drumline bench aggregation kinds=ring,tree slow_nodes.1.rate=100mbit --json
        drumline bench aggregation bucket_bytes=256KiB --figure aggregation.png
    """


@bench_app.command("model-parallel", calls="bench:model_parallel_command")
def model_parallel(
    args: Overrides = None,
    csv: Csv = None,
    figure: Picture = None,
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write a trace of each case there, for Perfetto."),
    ] = None,
    out: Outs = None,
    as_json: Json = False,
) -> None:
    """Train one model in many forms, and compare time, memory, bytes and losses.

    Keys: model, data, batch (of all ranks together), steps, workers, nodes, link.rate, slow_nodes,
    forms (alone, data, rpc, pipeline, tensor, mixed), schedules (gpipe, 1f1b, interleaved),
    microbatches, engines (drumline, torch), backend, device, threads, timeout_s. Lists have commas.
    Every case is a real training run with the same seed and the same batches.

    Examples:
        drumline bench model-parallel
        drumline bench model-parallel forms=alone,pipeline microbatches=1,2,4,8
        drumline bench model-parallel nodes=2 link=100mbit --figure model-parallel.png
        drumline bench model-parallel workers=4 engines=drumline,torch --json
        drumline bench model-parallel --traces traces --out cases
    """


@bench_app.command(calls="bench:scaling_command")
def scaling(output: CasesOutput, args: Overrides = None) -> None:
    """Train one model by ever more ranks: speed-up, efficiency, and where the lost time went.

    Keys: workers or nodes (several counts, such as 1,2,4), link.rate, slow_nodes, mode (strong: the
    same batch for all ranks together; weak: for each rank), kinds (the strategies), model, data,
    batch, steps, repeats, threads (of each rank), backend, device, timeout_s. Every count of every
    strategy is a real training run in each of several rounds, which give the 95 % intervals.

    Examples:
        drumline bench scaling workers=1,2,4
        drumline bench scaling workers=1,2 mode=strong kinds=ddp,allreduce,ring,chunked_ring
        drumline bench scaling nodes=1,2,4 link=1gbit --figure scaling.png
        drumline bench scaling model=gpt-mini batch=32 repeats=5 --json --csv scaling.csv
    """
