"""What the bench commands do and print, and where their results go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from drumline.bench.case_runner import BenchResult, RunCase
from drumline.bench.communication import display as communication
from drumline.bench.communication.aggregation import AggregationResult, run_aggregation
from drumline.bench.communication.collectives import CollectivesResult, run_collectives
from drumline.bench.model_parallel import display as model_parallel
from drumline.bench.model_parallel.rows import ModelParallelResult, run_model_parallel
from drumline.bench.model_parallel.spec import ModelParallelSpec, plan_cases
from drumline.bench.scaling.display import draw_scaling_study, scaling_table
from drumline.bench.scaling.run import ScalingResult, run_scaling
from drumline.bench.scaling.spec import ScalingSpec, plan_rounds, plan_scaling
from drumline.bench.specs import AggregationSpec, CollectivesSpec
from drumline.cli.app import print_json, print_text
from drumline.cli.commands.bench import OutputOptions
from drumline.cli.display import watched
from drumline.core.errors import RunDirError, UsageError, WorkerError
from drumline.core.formatting import counted, format_bytes
from drumline.launcher.mpirun import require_mpirun
from drumline.launcher.preflight import refuse_without_gpu
from drumline.report.plots import FigureStyle, write_figure
from drumline.spec.load import read_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R = TypeVar("R", bound=BenchResult[Any])

_AGGREGATION = "drumline bench aggregation model=mlp nodes=4 link=1gbit bottleneck=2"
_MODEL_PARALLEL = (
    "drumline bench model-parallel model.layers=8 workers=2 forms=alone,pipeline,tensor"
)
_SCALING = "drumline bench scaling workers=1,2,4 kinds=ddp,chunked_ring mode=strong"
_COLLECTIVES = "drumline bench collectives nodes=4 workers=1 link=1gbit sizes=64KiB,32MiB"


def _check(output: OutputOptions, cases: Iterable[RunCase] = ()) -> None:
    """Refuse what cannot be written, kept or run here (UsageError), before any measurement."""
    for option, path in (("--csv", output.csv), ("--figure", output.figure)):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
    if output.figure is not None and output.figure.suffix not in (".png", ".svg"):
        raise UsageError(
            f"--figure {output.figure}: expected a name that ends in .png or .svg; both are written"
        )
    for case in cases:
        if output.out is not None and (kept := output.out / case.slug).exists():
            raise UsageError(f"--out {output.out}: {kept} exists already; name a folder of its own")
        refuse_without_gpu(case.spec)
        if case.spec.backend == "mpi":
            require_mpirun()


def collectives_command(args: list[str], output: OutputOptions) -> None:
    """Run `drumline bench collectives`, and show what came out."""
    spec = read_spec(CollectivesSpec, args, _COLLECTIVES)
    _check(output)
    with watched() as watch:
        result = run_collectives(spec, out=output.out, watch=watch)
    draw = partial(communication.draw_collectives, rows=result.rows)
    _show(result, output, draw, _print_collectives)


def _print_collectives(console: Console, result: CollectivesResult) -> None:
    console.print(communication.collectives_table(result.rows))
    if result.fits:
        console.print("", communication.fits_table(result.fits))
    for skipped in result.skipped:
        print_text(console, f"{skipped.backend} was left out: it {skipped.why}")


def aggregation_command(args: list[str], output: OutputOptions) -> None:
    """Run `drumline bench aggregation`, and show what came out."""
    spec = read_spec(AggregationSpec, args, _AGGREGATION)
    _check(output)
    with watched() as watch:
        result = run_aggregation(spec, out=output.out, watch=watch)
    draw = partial(communication.draw_aggregation, rows=result.rows)
    _show(result, output, draw, _print_aggregation)


def _print_aggregation(console: Console, result: AggregationResult) -> None:
    spec, sizes = result.spec, result.bucket_bytes
    where = f"{spec.nodes} nodes" if spec.nodes > 1 else "one node"
    print_text(
        console,
        f"gradients of {spec.model.name}: {format_bytes(sum(sizes))} in "
        f"{counted(len(sizes), 'bucket')}, {spec.nodes * spec.workers} ranks on {where}\n",
    )
    console.print(communication.aggregation_table(result.rows))


def model_parallel_command(args: list[str], output: OutputOptions, traces: Path | None) -> None:
    """Run `drumline bench model-parallel`, and show what each form costs."""
    spec = read_spec(ModelParallelSpec, args, _MODEL_PARALLEL)
    plan = plan_cases(spec)
    if traces is not None and traces.exists() and not traces.is_dir():
        raise UsageError(f"--traces {traces}: that is a file; name a folder")
    _check(output, plan.cases)
    with watched(by_case=True) as watch:
        result = run_model_parallel(spec, plan, out=output.out, traces=traces, watch=watch)
    ran = len(result.rows) + len(result.failed)
    draw = partial(model_parallel.draw_model_parallel, rows=result.rows)
    _show(result, output, draw, _print_model_parallel, ran=ran, traces=traces)


def _print_model_parallel(console: Console, result: ModelParallelResult) -> None:
    spec, rows = result.spec, result.rows
    where = f" on {spec.nodes} nodes" if spec.nodes > 1 else ""
    print_text(
        console,
        f"{spec.model.name} on {spec.data.name}, batch {spec.batch}, {spec.steps} steps: "
        f"alone, and on {counted(spec.ranks, 'rank')}{where}",
        "bold",
    )
    if rows:
        console.print(model_parallel.model_table(rows, nodes=spec.nodes))
        if (said := model_parallel.describe_agreement(rows)) is not None:
            print_text(console, said)
    for skipped in result.skipped:
        print_text(console, f"{skipped.case} was left out: {skipped.why}")


def scaling_command(args: list[str], output: OutputOptions) -> None:
    """Run `drumline bench scaling`, and show what more ranks gain and lose."""
    spec = read_spec(ScalingSpec, args, _SCALING)
    runs = plan_rounds(plan_scaling(spec), spec.repeats)
    _check(output, runs)
    with watched(by_case=True) as watch:
        result = run_scaling(spec, runs, out=output.out, watch=watch)
    _show(result, output, partial(draw_scaling_study, result=result), _print_scaling, ran=len(runs))


def _print_scaling(console: Console, result: ScalingResult) -> None:
    spec = result.spec
    counts = ",".join(map(str, getattr(spec, spec.varies)))
    rounds = counted(spec.repeats, "round")
    trained = f"{spec.model.name} on {spec.data.name} by {spec.varies}={counts}"
    print_text(console, f"{trained}: {spec.steps} steps, {rounds}", "bold")
    if result.rows:
        smallest = counted(getattr(spec, spec.varies)[0], spec.varies[:-1])
        console.print(scaling_table(result.rows, smallest=smallest))
    told = {
        "where the time went": result.losses,
        "what stays serial": result.laws,
        "to know": result.notes,
    }
    for title, sentences in told.items():
        if sentences:
            print_text(console, f"\n{title}", "bold")
        for sentence in sentences:
            print_text(console, sentence)


def _show(
    result: R,
    output: OutputOptions,
    draw: Callable[[FigureStyle], Figure],
    print_result: Callable[[Console, R], None],
    *,
    ran: int = 0,
    traces: Path | None = None,
) -> None:
    """Write the files that were asked for, and print a result of `ran` cases, or its JSON.

    WorkerError names all cases that failed.
    """
    files: list[Path] = []
    if output.csv is not None and result.rows:
        try:
            output.csv.write_text(result.to_csv(), encoding="utf-8")
        except OSError as error:
            raise RunDirError(
                f"cannot write {output.csv}: {error.strerror}; name another file with --csv"
            ) from None
        files.append(output.csv)
    if output.figure is not None and result.rows:
        files += write_figure(draw, [output.figure.with_suffix(end) for end in (".png", ".svg")])
    if output.as_json:
        print_json(result.to_json())
    else:
        console = Console()
        print_result(console, result)
        load, cores = result.machine["load_1min"], result.machine["cpu_count"]
        print_text(console, f"load {load:.1f} on {cores} cores at the end")
        if files:
            print_text(console, f"written: {', '.join(map(str, files))}")
        if traces is not None and result.rows:
            print_text(console, f"traces: {traces}/*.json; open them in Perfetto (ui.perfetto.dev)")
    if result.failed:
        told = [f"{failure.case}: {failure.error}" for failure in result.failed]
        raise WorkerError(f"{len(told)} of {ran} cases failed:\n" + "\n".join(told))
