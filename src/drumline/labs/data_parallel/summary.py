"""The lab in two sentences, for the top of its page."""

from __future__ import annotations

from collections.abc import Mapping

from drumline.labs.data_parallel.cases import KINDS, Plan
from drumline.labs.data_parallel.names import kind_name
from drumline.report.page.table import Table, percent, points, times
from drumline.report.page.translator import Sentence, Text, Translator


def summarize(of: Plan, tables: Mapping[str, Table], say: Translator) -> Text:
    """Say what came out, as far as it was measured."""
    parts = [_about_strategies(tables, say), _about_scaling(of, tables, say)]
    told = [part for part in parts if part is not None]
    if not told:
        return say("Nothing came to its end.", "没有任何实验完成。")
    space: tuple[str, ...] = () if say.lang == "zh" else (" ",)
    joined = told[0].parts
    for part in told[1:]:
        joined = (*joined, *space, *part.parts)
    return Sentence(joined)


def _about_strategies(tables: Mapping[str, Table], say: Translator) -> Sentence | None:
    ends = tables.get("strategies")
    rows = [] if ends is None else [row for row in ends.rows if row["accuracy"] is not None]
    if ends is None or len(rows) < 2:
        return None
    best = max(rows, key=lambda row: row["accuracy"])
    worst = min(rows, key=lambda row: row["accuracy"])
    return say(
        "Over {count} ways of dealing out the data, gradients averaged after each step, test "
        "accuracy lay between {low} with {worst} and {high} with {best}.",
        "每步平均梯度时，{count} 种数据划分方式的测试准确率从{worst}的 {low} 到{best}的 {high}。",
        low=ends.cell("accuracy", points, kind=worst["kind"]),
        high=ends.cell("accuracy", points, kind=best["kind"]),
        worst=kind_name(say, worst["kind"]),
        best=kind_name(say, best["kind"]),
        count=len([row for row in rows if row["kind"] in KINDS]),
    )


def _about_scaling(of: Plan, tables: Mapping[str, Table], say: Translator) -> Sentence | None:
    scaling = tables.get("scaling")
    if scaling is None:
        return None
    rows = [row for row in scaling.rows if row["workers"] > 1 and row["speedup"] is not None]
    if not rows:
        return None
    best = max(rows, key=lambda row: row["speedup"])
    return say(
        "The largest speed-up against one worker was {speedup}, on {workers} workers, at an "
        "efficiency of {efficiency}.",
        "相对于单个进程的最大加速比为 {speedup}（{workers} 个进程，效率 {efficiency}）。",
        speedup=scaling.cell("speedup", times, setup=best["setup"]),
        workers=best["setup"],
        efficiency=scaling.cell("efficiency", percent, setup=best["setup"]),
    )
