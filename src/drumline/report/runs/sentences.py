"""What the numbers of runs say, in sentences: chosen by what was measured, never a fixed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drumline.report.intervals import Order, compare, read_interval
from drumline.report.page.table import Findings, milliseconds, percent, plain, points, times
from drumline.report.page.translator import Sentence, Translator
from drumline.report.runs.record import RunRecord
from drumline.report.runs.tables import RunTables


def say_findings(
    records: Sequence[RunRecord], tables: RunTables, findings: Findings, say: Translator
) -> list[Sentence]:
    """Say how each run went, and how the others compare with the first."""
    said = []
    for number in range(len(records)):
        said += _of_one(number, tables, say)
    for number in range(1, len(records)):
        said += _of_two(number, tables, findings, say)
    return said


def _of_one(number: int, tables: RunTables, say: Translator) -> list[Sentence]:
    row = tables.runs.rows[number]
    name = row["run"]
    said = []
    if row["step_ms"] is not None:
        took = _took(number, tables, say)
        if row["accuracy"] is not None:
            said.append(
                say(
                    "{name}: {took}, and the test accuracy {when} was {accuracy}.",
                    "{name}：{took}，{when}测试准确率 {accuracy}。",
                    name=name,
                    took=took,
                    when=_when(row, say),
                    accuracy=tables.runs.cell_at(number, "accuracy", points),
                )
            )
        else:
            said.append(
                say(
                    "{name}: {took}; the last loss was {loss}.",
                    "{name}：{took}，最后一步损失 {loss}。",
                    name=name,
                    took=took,
                    loss=tables.runs.cell_at(number, "loss", plain),
                )
            )
    if row["waited_share"] is not None:
        said.append(
            say(
                "{name}: {share} of the time that ranks lost to communication was waiting for rank "
                "{rank}, more than for any other.",
                "{name}：各进程因通信损耗的时间中，{share} 是在等待进程 {rank}，多于其他任何进程。",
                name=name,
                share=tables.runs.cell_at(number, "waited_share", percent),
                rank=str(row["waited_for"]),
            )
        )
    return said


def _when(row: Mapping[str, Any], say: Translator) -> str:
    if row["done"] == "yes":
        return say.pick("at the end", "最终")
    return say.pick("when it was last looked at", "最近一次测得的")


def _took(number: int, tables: RunTables, say: Translator) -> Sentence:
    step = tables.runs.cell_at(number, "step_ms", milliseconds)
    if step.low is None:
        return say("the one step took {step}", "仅有的一步用时 {step}", step=step)
    return say(
        "a step took {step} (median and quartiles)",
        "每步用时 {step}（中位数与四分位数）",
        step=step,
    )


def _of_two(number: int, tables: RunTables, findings: Findings, say: Translator) -> list[Sentence]:
    first, other = tables.runs.rows[0], tables.runs.rows[number]
    said = []
    if first["step_ms"] and other["step_ms"]:
        ratio = findings.cell(
            f"step of {other['run']} over {first['run']}",
            other["step_ms"] / first["step_ms"],
            times,
            of="runs.csv: step_ms",
        )
        said.append(_speed(first, other, ratio, say))
    if _comparable(first, other):
        difference = 100 * (other["accuracy"] - first["accuracy"])
        gap = findings.cell(
            f"accuracy of {other['run']} less {first['run']}, in points",
            difference,
            lambda value: f"{value:+.2f}",
            of="runs.csv: accuracy",
        )
        said.append(
            say(
                "{b}'s test accuracy is {gap} percentage points from {a}'s.",
                "{b} 的测试准确率与 {a} 相差 {gap} 个百分点。",
                a=first["run"],
                b=other["run"],
                gap=gap,
            )
        )
    if first["weights_sha256"] and first["weights_sha256"] == other["weights_sha256"]:
        said.append(
            say(
                "{a} and {b} ended with the same weights, bit for bit.",
                "{a} 与 {b} 的最终权重逐位相同。",
                a=first["run"],
                b=other["run"],
            )
        )
    return said


def _comparable(first: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both came to their end, and were looked at with the same test set."""
    known = all(row["accuracy"] is not None and row["done"] == "yes" for row in (first, other))
    return known and bool(first["data"] == other["data"])


def _speed(
    first: Mapping[str, Any], other: Mapping[str, Any], ratio: Any, say: Translator
) -> Sentence:
    """Faster or slower only where the quartiles of the steps do not meet."""
    order = compare(read_interval(other, "step_ms"), read_interval(first, "step_ms"))
    holes = {"a": first["run"], "b": other["run"], "ratio": ratio}
    if order is Order.ONCE:
        return say(
            "A step of {b} took {ratio} the time of one of {a}; with one step alone, nothing is "
            "known about its scatter.",
            "{b} 每步用时是 {a} 的 {ratio}；只有一步，无从得知其波动。",
            **holes,
        )
    if order is Order.LEVEL:
        return say(
            "A step of {b} took {ratio} the time of one of {a}; their quartiles overlap, so that "
            "is no difference to rely on.",
            "{b} 每步用时是 {a} 的 {ratio}；两者的四分位区间重叠，这一差异不可靠。",
            **holes,
        )
    if order is Order.LESS:
        return say(
            "{b} is faster: a step took {ratio} the time of one of {a}, and their quartiles do not "
            "meet.",
            "{b} 更快：每步用时是 {a} 的 {ratio}，两者的四分位区间不相交。",
            **holes,
        )
    return say(
        "{b} is slower: a step took {ratio} the time of one of {a}, and their quartiles do not "
        "meet.",
        "{b} 更慢：每步用时是 {a} 的 {ratio}，两者的四分位区间不相交。",
        **holes,
    )
