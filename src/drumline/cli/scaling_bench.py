"""`drumline bench scaling`: progress by runs, and what came of them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from drumline.bench.scaling.plot import draw_scaling
from drumline.bench.scaling.rows import ScalingRow
from drumline.bench.scaling.run import ScalingResult, run_scaling
from drumline.bench.scaling.spec import ScalingSpec, plan_rounds, plan_scaling
from drumline.bench.scaling.table import scaling_table
from drumline.cli.bench import OutputOptions, tell_files, write_files
from drumline.cli.case_bench import check_cases, raise_failed, say, watched_cases
from drumline.cli.printing import print_json
from drumline.core.formatting import counted
from drumline.spec.load import read_options

_EXAMPLE = "drumline bench scaling workers=1,2,4 kinds=ddp,chunked_ring mode=strong"


def scaling_command(words: list[str], wishes: OutputOptions) -> None:
    """Train one model by ever more ranks, and show what they gain and lose."""
    spec = read_options(ScalingSpec, words, _EXAMPLE)
    runs = plan_rounds(plan_scaling(spec), spec.repeats)
    wishes.check()
    check_cases(runs, wishes.out)
    with watched_cases() as watch:
        result = run_scaling(spec, runs, out=wishes.out, watch=watch)

    def draw(path: Path, _: list[ScalingRow]) -> list[Path]:
        return draw_scaling(path, result)

    pictures = write_files(result.rows, wishes, draw) if result.rows else []
    if wishes.as_json:
        print_json(result.to_json())
    else:
        _print(Console(), result)
        tell_files(Console(), result.machine, wishes, pictures)
    raise_failed(result.failed, len(runs))


def _print(console: Console, result: ScalingResult) -> None:
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
