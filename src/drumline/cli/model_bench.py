"""`drumline bench model-parallel`: progress by cases, and what came of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from drumline.bench.cases import plan_cases
from drumline.bench.model_parallel import run_model_parallel
from drumline.cli.bench import OutputOptions, tell_files, write_files
from drumline.cli.case_bench import check_cases, raise_failed, say, watched_cases
from drumline.cli.printing import print_json
from drumline.core.errors import UsageError
from drumline.core.model_bench import ModelParallelSpec
from drumline.report.model_figure import draw_model_parallel
from drumline.report.model_table import agreement, model_table
from drumline.spec.load import read_words

_EXAMPLE = "drumline bench model-parallel model.layers=8 workers=2 forms=alone,pipeline,tensor"


def model_parallel_command(words: list[str], wishes: OutputOptions, traces: Path | None) -> None:
    """Train one model in many forms, and show what each costs."""
    spec = read_words(ModelParallelSpec, words, _EXAMPLE)
    plan = plan_cases(spec)
    wishes.check()
    if traces is not None and traces.exists() and not traces.is_dir():
        raise UsageError(f"--traces {traces}: that is a file; name a folder")
    check_cases(plan.cases, wishes.out)
    with watched_cases() as watch:
        result = run_model_parallel(spec, plan, out=wishes.out, traces=traces, watch=watch)
    document = result.to_json()
    pictures = write_files(document["rows"], wishes, draw_model_parallel) if result.rows else []
    if wishes.as_json:
        print_json(document)
    else:
        _print(Console(), spec, document)
        tell_files(Console(), document["machine"], wishes, pictures)
        if traces is not None and result.rows:
            say(Console(), f"traces: {traces}/*.json; open them in Perfetto (ui.perfetto.dev)")
    raise_failed(result.failed, len(result.rows) + len(result.failed))


def _print(console: Console, spec: ModelParallelSpec, document: dict[str, Any]) -> None:
    where = f" on {spec.nodes} nodes" if spec.nodes > 1 else ""
    ranks = f"{spec.ranks} rank{'s' if spec.ranks > 1 else ''}"
    title = (
        f"{spec.model.name} on {spec.data.name}, batch {spec.batch}, {spec.steps} steps: "
        f"alone, and on {ranks}{where}"
    )
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    rows = document["rows"]
    if rows:
        console.print(model_table(rows, nodes=spec.nodes))
        said = agreement(rows)
        if said is not None:
            say(console, said)
    for skipped in document["skipped"]:
        say(console, f"{skipped['case']} was left out: {skipped['why']}")
