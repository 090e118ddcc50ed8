"""What the bench commands have in common: progress while ranks measure, and where results go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from drumline.bench.communication.aggregation import run_aggregation
from drumline.bench.communication.collectives import run_collectives
from drumline.bench.communication.plots import draw_aggregation, draw_collectives
from drumline.bench.communication.tables import aggregation_table, collectives_table, fits_table
from drumline.bench.specs import AggregationSpec, CollectivesSpec
from drumline.cli.printing import print_json
from drumline.core.errors import RunDirError, UsageError
from drumline.core.formatting import format_bytes
from drumline.launch.probe import Progress as ProbeProgress
from drumline.launch.probe import Watch
from drumline.report.page.table import Table
from drumline.spec.load import read_options

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")

_NO_COLUMNS = ("times_s", "losses", "cuts", "mesh")
"""too long for CSV, or no plain values; JSON has them"""
_QUIET_S = 10.0
"""how often a line is printed where nobody sees a bar"""
_AGGREGATION = "drumline bench aggregation model=mlp nodes=4 link=1gbit bottleneck=2"
_COLLECTIVES = "drumline bench collectives nodes=4 workers=1 link=1gbit sizes=64KiB,32MiB"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the results are to go."""

    as_json: bool
    csv: Path | None
    figure: Path | None
    out: Path | None

    def check(self) -> None:
        """Refuse what cannot be written, before anything is measured.

        Raises:
            UsageError: there is no such folder, or it is no name of a picture.
        """
        for option, path in (("--csv", self.csv), ("--figure", self.figure)):
            if path is not None and not path.absolute().parent.is_dir():
                raise UsageError(
                    f"{option} {path}: there is no folder {path.parent}; make it first"
                )
        if self.figure is not None and self.figure.suffix not in (".png", ".svg"):
            raise UsageError(
                f"--figure {self.figure}: expected a name that ends in .png or .svg; both are "
                f"written"
            )


def collectives_command(words: list[str], wishes: OutputOptions) -> None:
    """Measure collectives, and show what came out."""
    spec = read_options(CollectivesSpec, words, _COLLECTIVES)
    wishes.check()
    with watched() as watch:
        result = run_collectives(spec, out=wishes.out, watch=watch)
    pictures = write_files(result.rows, wishes, draw_collectives)
    if wishes.as_json:
        print_json(result.to_json())
        return
    console = Console()
    console.print(collectives_table(result.rows))
    if result.fits:
        console.print()
        console.print(fits_table(result.fits))
    for backend, why in spec.unusable_backends.items():
        _say(console, f"{backend} was left out: it {why}")
    tell_files(console, result.machine, wishes, pictures)


def aggregation_command(words: list[str], wishes: OutputOptions) -> None:
    """Measure how strategies average gradients, and show what came out."""
    spec = read_options(AggregationSpec, words, _AGGREGATION)
    wishes.check()
    with watched() as watch:
        result = run_aggregation(spec, out=wishes.out, watch=watch)
    pictures = write_files(result.rows, wishes, draw_aggregation)
    if wishes.as_json:
        print_json(result.to_json())
        return
    console = Console()
    sizes = result.buckets
    where = f"{spec.nodes} nodes" if spec.nodes > 1 else "one node"
    buckets = "1 bucket" if len(sizes) == 1 else f"{len(sizes)} buckets"
    ranks = spec.nodes * spec.workers
    _say(
        console,
        f"gradients of {spec.model.name}: {format_bytes(sum(sizes))} in {buckets}, "
        f"{ranks} ranks on {where}\n",
    )
    console.print(aggregation_table(result.rows))
    tell_files(console, result.machine, wishes, pictures)


def write_files(
    rows: list[Row], wishes: OutputOptions, draw: Callable[[Path, list[Row]], list[Path]]
) -> list[Path]:
    """Write the rows as CSV and draw them, where that is wished; returns the pictures.

    Raises:
        RunDirError: the CSV file cannot be written.
    """
    if wishes.csv is not None:
        columns = [field.name for field in fields(rows[0]) if field.name not in _NO_COLUMNS]
        table = Table(name=wishes.csv.stem, columns=columns, rows=[vars(row) for row in rows])
        try:
            wishes.csv.write_text(table.to_csv(), encoding="utf-8")
        except OSError as error:
            raise RunDirError(f"cannot write {wishes.csv}: {error.strerror}") from None
    return draw(wishes.figure, rows) if wishes.figure is not None else []


def tell_files(
    console: Console, machine: Mapping[str, object], wishes: OutputOptions, pictures: list[Path]
) -> None:
    """Say how busy the machine was, and which files were written."""
    cores = machine["cpu_count"]
    _say(console, f"load {machine['load_1min']:.1f} on {cores} cores at the end")
    files = [*([wishes.csv] if wishes.csv else []), *pictures]
    if files:
        _say(console, f"written: {', '.join(map(str, files))}")


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Show on stderr how far the ranks have come: a bar, or a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("starting ranks", total=1.0)

        def watch(progress: ProbeProgress | None) -> None:
            if progress is not None:
                bar.update(task, completed=progress.share, description=progress.now)

        yield watch


class _Lines:
    """Progress where nobody sees a bar; a short run prints nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def __call__(self, progress: ProbeProgress | None) -> None:
        if progress is not None and time.monotonic() - self._last > _QUIET_S:
            self._last = time.monotonic()
            _say(self._console, f"{progress.share:.0%} measured: {progress.now}")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
