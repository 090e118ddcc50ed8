"""`drumline bench model-parallel`: progress by cases, and what came of them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from drumline.bench.model_parallel.plot import draw_model_parallel
from drumline.bench.model_parallel.rows import ModelParallelResult, run_model_parallel
from drumline.bench.model_parallel.spec import ModelParallelSpec, plan_cases
from drumline.bench.model_parallel.table import agreement, model_table
from drumline.cli.bench import OutputOptions, tell_files, write_files
from drumline.cli.case_bench import check_cases, raise_failed, say, watched_cases
from drumline.cli.printing import print_json
from drumline.core.errors import UsageError
from drumline.spec.load import read_options

_EXAMPLE = "drumline bench model-parallel model.layers=8 workers=2 forms=alone,pipeline,tensor"


def model_parallel_command(words: list[str], wishes: OutputOptions, traces: Path | None) -> None:
    """Train one model in many forms, and show what each costs."""
    spec = read_options(ModelParallelSpec, words, _EXAMPLE)
    plan = plan_cases(spec)
    wishes.check()
    if traces is not None and traces.exists() and not traces.is_dir():
        raise UsageError(f"--traces {traces}: that is a file; name a folder")
    check_cases(plan.cases, wishes.out)
    with watched_cases() as watch:
        result = run_model_parallel(spec, plan, out=wishes.out, traces=traces, watch=watch)
    pictures = write_files(result.rows, wishes, draw_model_parallel) if result.rows else []
    if wishes.as_json:
        print_json(result.to_json())
    else:
        _print(Console(), result)
        tell_files(Console(), result.machine, wishes, pictures)
        if traces is not None and result.rows:
            say(Console(), f"traces: {traces}/*.json; open them in Perfetto (ui.perfetto.dev)")
    raise_failed(result.failed, len(result.rows) + len(result.failed))


def _print(console: Console, result: ModelParallelResult) -> None:
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
