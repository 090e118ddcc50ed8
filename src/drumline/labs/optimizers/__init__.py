"""Lab 1, optimizers: GD, SGD, momentum and Adam, ours beside torch's, on one machine."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.labs.chapter import write_chapters
from drumline.labs.lab import Lab, WriteUp
from drumline.labs.optimizers import cases
from drumline.labs.optimizers.chance import write_chance
from drumline.labs.optimizers.descent import write_descent
from drumline.labs.optimizers.engines import write_engines
from drumline.labs.optimizers.names import optimizer_name
from drumline.labs.optimizers.profile import write_profile
from drumline.labs.optimizers.rates import write_rates
from drumline.labs.results import Results
from drumline.report.page.table import Table, plain, points
from drumline.report.page.translator import Text, Translator


def write_up(results: Results, say: Translator) -> WriteUp:
    """Write the chapters that the runs allow."""
    of = cases.plan(results.settings)
    writers = (write_descent, write_engines, write_profile, write_rates, write_chance)
    return write_chapters(writers, results, of, say, lambda tables: _summarize(tables, say))


def _summarize(tables: Mapping[str, Table], say: Translator) -> Text:
    """Say what came out, as far as it was measured."""
    ends, equal = tables.get("ends"), tables.get("equal")
    rows = [] if ends is None else [row for row in ends.rows if row["accuracy"] is not None]
    if ends is None or equal is None or not rows:
        return say("Nothing came to its end.", "没有任何实验完成。")
    best, *others = sorted(rows, key=lambda row: -row["accuracy"])
    by_samples = [row for row in equal.rows if row["by"] == "samples"]
    first = min(by_samples, key=lambda row: row["loss"])
    last = max(by_samples, key=lambda row: row["loss"])
    behind: Text = (
        say(
            ", before {name} with {accuracy}",
            "，其次是 {name}：{accuracy}",
            name=optimizer_name(say, others[0]["optimizer"]),
            accuracy=ends.cell("accuracy", points, optimizer=others[0]["optimizer"]),
        )
        if others
        else ""
    )
    return say(
        "{best} ended with the highest mean test accuracy, {accuracy}{behind}. At equal samples "
        "the training loss lay between {low} with {first} and {high} with {last}.",
        "{best} 的平均最终测试准确率最高：{accuracy}{behind}。"
        "样本数相同时，训练损失从 {first} 的 {low} 到 {last} 的 {high}。",
        behind=behind,
        best=optimizer_name(say, best["optimizer"]),
        accuracy=ends.cell("accuracy", points, optimizer=best["optimizer"]),
        low=equal.cell("loss", plain, by="samples", optimizer=first["optimizer"]),
        high=equal.cell("loss", plain, by="samples", optimizer=last["optimizer"]),
        first=optimizer_name(say, first["optimizer"]),
        last=optimizer_name(say, last["optimizer"]),
    )


LAB = Lab(
    number=1,
    experiments=cases.experiments,
    code=(
        ("optim/gd.py", "GD"),
        ("optim/sgd.py", "SGD"),
        ("optim/adam.py", "Adam"),
        ("optim/foreach.py", "ForeachOptimizer.step"),
        ("optim/build.py", "build_optimizer"),
        ("train/whole.py", "WholeModel.forward_backward"),
        ("train/step.py", "TrainStep.take"),
    ),
    write_up=write_up,
)
