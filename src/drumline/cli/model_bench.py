"""`drumline bench model-parallel`: progress by cases, and what came of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from drumline.bench.cases import Plan, plan_cases
from drumline.bench.model_parallel import run_model_parallel
from drumline.cli.bench import Wishes, tell_files, watched, write_files
from drumline.cli.printing import print_json
from drumline.core.errors import UsageError, WorkerError
from drumline.core.model_bench import ModelParallelSpec
from drumline.core.spec_file import read_words
from drumline.launch.gpu import refuse_without_gpu
from drumline.launch.mpirun import refuse_without_mpi
from drumline.launch.probe import Watch
from drumline.report.model_figure import draw_model_parallel
from drumline.report.model_table import agreement, model_table

_EXAMPLE = "drumline bench model-parallel model.layers=8 workers=2 forms=alone,pipeline,tensor"


def model_parallel_command(words: list[str], wishes: Wishes, traces: Path | None) -> None:
    """Train one model in many forms, and show what each costs."""
    spec = read_words(ModelParallelSpec, words, _EXAMPLE)
    plan = plan_cases(spec)
    wishes.check()
    _check_folders(plan, wishes.out, traces)
    if spec.backend == "mpi":
        refuse_without_mpi()
    for case in plan.cases:
        refuse_without_gpu(case.spec)
    with _watched_cases() as watch:
        result = run_model_parallel(spec, plan, out=wishes.out, traces=traces, watch=watch)
    document = result.to_json()
    pictures = write_files(document["rows"], wishes, draw_model_parallel) if result.rows else []
    if wishes.as_json:
        print_json(document)
    else:
        _print(Console(), spec, document)
        tell_files(Console(), document["machine"], wishes, pictures)
        if traces is not None and result.rows:
            _say(Console(), f"traces: {traces}/*.json; open them in Perfetto (ui.perfetto.dev)")
    if result.failed:
        ran = len(result.rows) + len(result.failed)
        told = [f"{failure['case']}: {failure['error']}" for failure in result.failed]
        raise WorkerError(f"{len(told)} of {ran} cases failed:\n" + "\n".join(told))


def _check_folders(plan: Plan, out: Path | None, traces: Path | None) -> None:
    """Refuse folders that cannot take the files, before anything is trained."""
    if traces is not None and traces.exists() and not traces.is_dir():
        raise UsageError(f"--traces {traces}: that is a file; name a folder")
    for case in plan.cases:
        if out is not None and (out / case.slug).exists():
            raise UsageError(
                f"--out {out}: {out / case.slug} exists already; name a folder of its own"
            )


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
            _say(console, said)
    for skipped in document["skipped"]:
        _say(console, f"{skipped['case']} was left out: {skipped['why']}")


@contextlib.contextmanager
def _watched_cases() -> Iterator[Watch]:
    """Show on stderr which case runs: a bar with its steps, or a line for each."""
    console = Console(stderr=True)
    if console.is_terminal:
        with watched() as watch:
            yield watch
        return
    last = None

    def tell(said: dict[str, Any] | None) -> None:
        nonlocal last
        if said is not None and said["case"] != last:
            last = said["case"]
            _say(console, said["case"])

    yield tell


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
