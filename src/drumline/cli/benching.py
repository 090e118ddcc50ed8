"""Commands that measure: `bench collectives`, `bench aggregation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, bench_app, flowing

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="What to measure, and where.")
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the rows as CSV.")]
Picture = Annotated[
    Path | None,
    typer.Option("--figure", metavar="PATH.png", help="Also draw a figure, as PNG and SVG."),
]
Out = Annotated[Path | None, typer.Option(help="Keep the run directory there.")]


@bench_app.command()
@flowing
def collectives(
    words: Words = None,
    csv: Csv = None,
    figure: Picture = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time a collective by many algorithms and backends, on this host or on simulated links.

    Keys: collective, algorithms (native: the backend's own), backends (gloo, shm, mpi, nccl),
    sizes, workers, nodes, link.rate, slow_nodes, rounds, timeout_s. Lists have commas. All rivals
    take turns in one run; each is checked for a right result first.

    [bold]Examples[/bold]

      drumline bench collectives

      drumline bench collectives backends=gloo,shm,mpi algorithms=native

      drumline bench collectives nodes=4 workers=1 link=1gbit sizes=64KiB,32MiB

      drumline bench collectives collective=broadcast sizes=4MiB rounds=20 --json

      drumline bench collectives --csv rows.csv --figure all_reduce.png
    """
    from drumline.cli.bench import Wishes, collectives_command

    wishes = Wishes(as_json=as_json, csv=csv, figure=figure, out=out)
    collectives_command(words or [], wishes)


@bench_app.command()
@flowing
def aggregation(
    words: Words = None,
    csv: Csv = None,
    figure: Picture = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time how strategies average a model's gradients, without and with a bottleneck node.

    Keys: model, batch (per rank), bucket_bytes, kinds (the strategies), nodes, workers, link.rate,
    bottleneck (a node: a quarter of the CPU, then a tenth of the link) or slow_nodes, rounds,
    timeout_s. Communication is split into wait and transfer, for every rank.

    [bold]Examples[/bold]

      drumline bench aggregation

      drumline bench aggregation model=cnn nodes=4 link=1gbit bottleneck=2

      drumline bench aggregation kinds=ring,tree slow_nodes.1.rate=100mbit --json

      drumline bench aggregation bucket_bytes=256KiB --figure aggregation.png
    """
    from drumline.cli.bench import Wishes, aggregation_command

    wishes = Wishes(as_json=as_json, csv=csv, figure=figure, out=out)
    aggregation_command(words or [], wishes)
