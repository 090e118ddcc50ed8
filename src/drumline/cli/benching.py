"""Commands that measure: `bench collectives`, `bench aggregation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.app import Json, bench_app

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
def collectives(
    words: Words = None,
    csv: Csv = None,
    figure: Picture = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time a collective by many algorithms and backends, on this host or on simulated links.

    Keys: collective, algorithms (native: the backend's own), backends (gloo, shm), sizes, workers,
    nodes, link.rate, slow_nodes, rounds, timeout_s. Lists have commas. All rivals take turns in
    one run; each is checked for a right result first.

    [bold]Examples[/bold]

      drumline bench collectives

      drumline bench collectives backends=gloo,shm algorithms=native workers=2,4

      drumline bench collectives nodes=4 workers=1 link.rate=1gbit sizes=64KiB,1MiB,32MiB

      drumline bench collectives collective=broadcast sizes=4MiB rounds=20 --json

      drumline bench collectives --csv rows.csv --figure all_reduce.png
    """
    from drumline.cli.bench import Wishes, collectives_command

    wishes = Wishes(as_json=as_json, csv=csv, figure=figure, out=out)
    collectives_command(words or [], wishes)
