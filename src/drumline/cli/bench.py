"""What the bench commands do and print, and where their results go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from drumline.bench.case_runner import Failure, Runnable
from drumline.bench.communication.aggregation import run_aggregation
from drumline.bench.communication.collectives import run_collectives
from drumline.bench.communication.plots import draw_aggregation, draw_collectives
from drumline.bench.communication.tables import aggregation_table, collectives_table, fits_table
from drumline.bench.model_parallel.plot import draw_model_parallel
from drumline.bench.model_parallel.rows import ModelParallelResult, run_model_parallel
from drumline.bench.model_parallel.spec import ModelParallelSpec, plan_cases
from drumline.bench.model_parallel.table import agreement, model_table
from drumline.bench.scaling.plot import draw_scaling
from drumline.bench.scaling.rows import ScalingRow
from drumline.bench.scaling.run import ScalingResult, run_scaling
from drumline.bench.scaling.spec import ScalingSpec, plan_rounds, plan_scaling
from drumline.bench.scaling.table import scaling_table
from drumline.bench.specs import AggregationSpec, CollectivesSpec
from drumline.cli.printing import print_json, say
from drumline.cli.progress import watched, watched_cases
from drumline.core.errors import RunDirError, UsageError, WorkerError
from drumline.core.formatting import counted, format_bytes
from drumline.launch.mpirun import refuse_without_mpi
from drumline.launch.preflight import refuse_without_gpu
from drumline.report.page.table import Table
from drumline.spec.load import read_options

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")

_NO_COLUMNS = ("times_s", "losses", "cuts", "mesh")
"""too long for CSV, or no plain values; JSON has them"""
_AGGREGATION = "drumline bench aggregation model=mlp nodes=4 link=1gbit bottleneck=2"
_MODEL_PARALLEL = (
    "drumline bench model-parallel model.layers=8 workers=2 forms=alone,pipeline,tensor"
)
_SCALING = "drumline bench scaling workers=1,2,4 kinds=ddp,chunked_ring mode=strong"
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


def collectives_command(overrides: list[str], options: OutputOptions) -> None:
    """Measure collectives, and show what came out."""
    spec = read_options(CollectivesSpec, overrides, _COLLECTIVES)
    options.check()
    with watched() as watch:
        result = run_collectives(spec, out=options.out, watch=watch)
    pictures = write_files(result.rows, options, draw_collectives)
    if options.as_json:
        print_json(result.to_json())
        return
    console = Console()
    console.print(collectives_table(result.rows))
    if result.fits:
        console.print()
        console.print(fits_table(result.fits))
    for backend, why in spec.unusable_backends.items():
        say(console, f"{backend} was left out: it {why}")
    tell_files(console, result.machine, options, pictures)


def aggregation_command(overrides: list[str], options: OutputOptions) -> None:
    """Measure how strategies average gradients, and show what came out."""
    spec = read_options(AggregationSpec, overrides, _AGGREGATION)
    options.check()
    with watched() as watch:
        result = run_aggregation(spec, out=options.out, watch=watch)
    pictures = write_files(result.rows, options, draw_aggregation)
    if options.as_json:
        print_json(result.to_json())
        return
    console = Console()
    sizes = result.buckets
    where = f"{spec.nodes} nodes" if spec.nodes > 1 else "one node"
    buckets = "1 bucket" if len(sizes) == 1 else f"{len(sizes)} buckets"
    ranks = spec.nodes * spec.workers
    say(
        console,
        f"gradients of {spec.model.name}: {format_bytes(sum(sizes))} in {buckets}, "
        f"{ranks} ranks on {where}\n",
    )
    console.print(aggregation_table(result.rows))
    tell_files(console, result.machine, options, pictures)


def model_parallel_command(
    overrides: list[str], options: OutputOptions, traces: Path | None
) -> None:
    """Train one model in many forms, and show what each costs."""
    spec = read_options(ModelParallelSpec, overrides, _MODEL_PARALLEL)
    plan = plan_cases(spec)
    options.check()
    if traces is not None and traces.exists() and not traces.is_dir():
        raise UsageError(f"--traces {traces}: that is a file; name a folder")
    check_cases(plan.cases, options.out)
    with watched_cases() as watch:
        result = run_model_parallel(spec, plan, out=options.out, traces=traces, watch=watch)
    pictures = write_files(result.rows, options, draw_model_parallel) if result.rows else []
    if options.as_json:
        print_json(result.to_json())
    else:
        _print_model_parallel(Console(), result)
        tell_files(Console(), result.machine, options, pictures)
        if traces is not None and result.rows:
            say(Console(), f"traces: {traces}/*.json; open them in Perfetto (ui.perfetto.dev)")
    raise_failed(result.failed, len(result.rows) + len(result.failed))


def _print_model_parallel(console: Console, result: ModelParallelResult) -> None:
    spec, rows = result.spec, result.rows
    where = f" on {spec.nodes} nodes" if spec.nodes > 1 else ""
    ranks = f"{spec.ranks} rank{'s' if spec.ranks > 1 else ''}"
    title = (
        f"{spec.model.name} on {spec.data.name}, batch {spec.batch}, {spec.steps} steps: "
        f"alone, and on {ranks}{where}"
    )
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    if rows:
        console.print(model_table(rows, nodes=spec.nodes))
        said = agreement(rows)
        if said is not None:
            say(console, said)
    for skipped in result.skipped:
        say(console, f"{skipped.case} was left out: {skipped.why}")


def scaling_command(overrides: list[str], options: OutputOptions) -> None:
    """Train one model by ever more ranks, and show what they gain and lose."""
    spec = read_options(ScalingSpec, overrides, _SCALING)
    runs = plan_rounds(plan_scaling(spec), spec.repeats)
    options.check()
    check_cases(runs, options.out)
    with watched_cases() as watch:
        result = run_scaling(spec, runs, out=options.out, watch=watch)

    def draw(path: Path, _: list[ScalingRow]) -> list[Path]:
        return draw_scaling(path, result)

    pictures = write_files(result.rows, options, draw) if result.rows else []
    if options.as_json:
        print_json(result.to_json())
    else:
        _print_scaling(Console(), result)
        tell_files(Console(), result.machine, options, pictures)
    raise_failed(result.failed, len(runs))


def _print_scaling(console: Console, result: ScalingResult) -> None:
    spec = result.spec
    counts = ",".join(map(str, getattr(spec, spec.varies)))
    title = (
        f"{spec.model.name} on {spec.data.name} by {spec.varies}={counts}: "
        f"{spec.steps} steps, {counted(spec.repeats, 'round')}"
    )
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    if result.rows:
        smallest = counted(getattr(spec, spec.varies)[0], spec.varies[:-1])
        console.print(scaling_table(result.rows, smallest=smallest))
    for title, sentences in (
        ("where the time went", result.losses),
        ("what stays serial", result.laws),
        ("to know", result.notes),
    ):
        if sentences:
            console.print(f"\n{title}", style="bold", highlight=False, markup=False)
        for sentence in sentences:
            say(console, sentence)


def check_cases(cases: Iterable[Runnable], out: Path | None) -> None:
    """Refuse what cannot run or be kept, before anything is trained.

    Raises:
        UsageError: a folder is taken, or the machine has not what a backend needs.
    """
    for case in cases:
        if out is not None and (out / case.slug).exists():
            raise UsageError(
                f"--out {out}: {out / case.slug} exists already; name a folder of its own"
            )
        refuse_without_gpu(case.spec)
        if case.spec.backend == "mpi":
            refuse_without_mpi()


def raise_failed(failed: Sequence[Failure], ran: int) -> None:
    """Raise one error that names all failed cases.

    Raises:
        WorkerError: there are some.
    """
    if failed:
        told = [f"{failure.case}: {failure.error}" for failure in failed]
        raise WorkerError(f"{len(told)} of {ran} cases failed:\n" + "\n".join(told))


def write_files(
    rows: list[Row], options: OutputOptions, draw: Callable[[Path, list[Row]], list[Path]]
) -> list[Path]:
    """Write the rows as CSV and draw them, where that is wished; returns the pictures.

    Raises:
        RunDirError: the CSV file cannot be written.
    """
    if options.csv is not None:
        columns = [field.name for field in fields(rows[0]) if field.name not in _NO_COLUMNS]
        table = Table(name=options.csv.stem, columns=columns, rows=[vars(row) for row in rows])
        try:
            options.csv.write_text(table.to_csv(), encoding="utf-8")
        except OSError as error:
            raise RunDirError(f"cannot write {options.csv}: {error.strerror}") from None
    return draw(options.figure, rows) if options.figure is not None else []


def tell_files(
    console: Console, machine: Mapping[str, object], options: OutputOptions, pictures: list[Path]
) -> None:
    """Say how busy the machine was, and which files were written."""
    cores = machine["cpu_count"]
    say(console, f"load {machine['load_1min']:.1f} on {cores} cores at the end")
    files = [*([options.csv] if options.csv else []), *pictures]
    if files:
        say(console, f"written: {', '.join(map(str, files))}")
