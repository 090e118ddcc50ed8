"""What lab 2's training runs say: sum against mean, gradients against parameters, fp16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drumline.labs.communication.experiments import OF
from drumline.labs.communication.sheets import CommunicationSheets
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, points, times
from drumline.report.page.translator import Sentence, Translator

_CHANCE = 0.2
"""an accuracy below that is not far from guessing one of ten digits"""
_SAME_POINTS = 0.01
_SUMMED = {
    "gradients": (
        ("gradients", "梯度"),
        (
            "a sum is a mean with a learning rate as many times larger as there are ranks",
            "求和相当于求平均并把学习率乘以进程数",
        ),
    ),
    "parameters": (
        ("parameters", "参数"),
        (
            "each step multiplies the parameters by the number of ranks",
            "每一步都把参数乘以进程数",
        ),
    ),
}
"""what is summed, and what summing it means"""


def say_choices(tables: CommunicationSheets, say: Translator) -> Iterator[Sentence]:
    """Compare sums with means, and gradients with parameters."""
    rows = {(row["of"], row["average"]): row for row in tables.choices.rows}
    for of in OF:
        mean, total = rows.get((of, "mean")), rows.get((of, "sum"))
        if mean is not None and total is not None and mean["accuracy"] is not None:
            yield from _sum_against_mean(tables.choices, of, mean, total, say)
    gradients, parameters = rows.get(("gradients", "mean")), rows.get(("parameters", "mean"))
    if gradients and parameters and None not in (gradients["accuracy"], parameters["accuracy"]):
        yield say(
            "Averaging gradients gave {a}, averaging parameters after each step {b}.",
            "对梯度求平均的测试准确率为 {a}，每步之后对参数求平均的为 {b}。",
            a=tables.choices.cell("accuracy", points, of="gradients", average="mean"),
            b=tables.choices.cell("accuracy", points, of="parameters", average="mean"),
        )


def _sum_against_mean(
    choices: Table, of: str, mean: Mapping[str, Any], total: Mapping[str, Any], say: Translator
) -> Iterator[Sentence]:
    name, why = _SUMMED[of]
    holes: dict[str, Any] = {
        "of": say.pick(*name),
        "why": say.pick(*why),
        "mean": choices.cell("accuracy", points, of=of, average="mean"),
    }
    if total["diverged_at"] is not None:
        yield say(
            "The mean of {of} reached {mean}; with their sum the loss was no number any more at "
            "step {step}: {why}.",
            "对{of}求平均的测试准确率为 {mean}；求和时损失在第 {step} 步已不再是有限的数：{why}。",
            step=choices.cell("diverged_at", count, of=of, average="sum"),
            **holes,
        )
    if total["accuracy"] is None:
        return
    holes["sum"] = choices.cell("accuracy", points, of=of, average="sum")
    gap = total["accuracy"] - mean["accuracy"]
    if total["accuracy"] < _CHANCE:
        yield say(
            "The mean of {of} reached {mean}, their sum {sum}, which is hardly better than "
            "guessing: {why}.",
            "对{of}求平均的测试准确率为 {mean}，求和仅为 {sum}，与随机猜测相差无几：{why}。",
            **holes,
        )
    elif abs(gap) < _SAME_POINTS:
        yield say(
            "The mean of {of} reached {mean} and their sum {sum}, too near to each other to be "
            "told apart by one seed, although {why}.",
            "对{of}求平均的测试准确率为 {mean}，求和为 {sum}，"
            "仅凭一个种子无法区分两者，尽管{why}。",
            **holes,
        )
    else:
        more = ("more", "高于") if gap > 0 else ("less", "低于")
        yield say(
            "The sum of {of} reached {sum}, {more} than their mean with {mean} (one seed): {why}.",
            "对{of}求和的测试准确率为 {sum}，{more}求平均的 {mean}（一个种子）：{why}。",
            more=say.pick(*more),
            **holes,
        )


def say_compression(
    tables: CommunicationSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    """Compare 16 bits on the way with 32."""
    rows = {row["compress"]: row for row in tables.compression.rows}
    if len(rows) < 2 or not rows["none"]["bytes_per_step"]:
        return
    full, half = rows["none"], rows["fp16"]
    ratio = findings.cell(
        "bytes of fp16 over full size",
        half["bytes_per_step"] / full["bytes_per_step"],
        times,
        of="compression.csv: bytes_per_step",
    )
    step = findings.cell(
        "step of fp16 over full size",
        half["step_ms"] / full["step_ms"],
        times,
        low=half["step_ms_low"] / full["step_ms_high"],
        high=half["step_ms_high"] / full["step_ms_low"],
        of="compression.csv: step_ms",
    )
    yield say(
        "fp16 sent {ratio} the bytes; a step took {step} as long (what the quartiles of both "
        "allow), and the test accuracy was {half} against {full} with 32 bits.",
        "fp16 发送的字节为原来的 {ratio}；每步用时为原来的 {step}"
        "（括号内为两者四分位数所允许的范围），"
        "测试准确率为 {half}，32 位时为 {full}。",
        ratio=ratio,
        step=step,
        half=tables.compression.cell("accuracy", points, compress="fp16"),
        full=tables.compression.cell("accuracy", points, compress="none"),
    )
