"""Sentences about what averaging hides."""

from __future__ import annotations

import statistics

from drumline.labs.data_parallel.cases import KINDS, SKEWED
from drumline.labs.data_parallel.names import kind_name
from drumline.labs.forms import point_size, tiny
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, plain, points, times
from drumline.report.page.translator import Filling, Text, Translator

_SAME = 0.01
"""accuracies nearer than this are told as the same: one seed cannot tell them apart"""
_CLEAR = 1.5
"""ranks' losses scatter anyway; what is this many times as much comes from their labels"""
_EQUAL = 1e-3
"""losses nearer than this, over a whole run, differ by rounding"""


def say_hiding(
    local: Table,
    averaging: Table,
    alone: Table,
    gap: float | None,
    say: Translator,
    found: Findings,
) -> list[Text]:
    """Tell what the numbers say of skewed labels."""
    said = [
        _about_local(local, say, found),
        _about_parameters(gap, say, found),
        _about_adam("gradients", averaging, say, found),
        _about_adam("parameters", averaging, say, found),
        _about_alone(alone, averaging, say),
    ]
    return [one for one in said if one is not None]


def _about_local(local: Table, say: Translator, found: Findings) -> Text | None:
    """Compare how far ranks' own losses lie apart."""
    spreads = {kind: _spread(local, kind) for kind in (KINDS[0], SKEWED)}
    mixed, skewed = spreads[KINDS[0]], spreads[SKEWED]
    if mixed is None or skewed is None or not mixed:
        return None
    more = skewed > _CLEAR * mixed
    return say(
        "The ranks' own losses lay {skewed} apart on average with {name} and {mixed} with {base} "
        "({ratio}): "
        + ("each rank works on a task of its own." if more else "here the skew hardly shows."),
        "各进程自身损失之间的平均差距：{name} {skewed}，{base} {mixed}（{ratio}）："
        + ("每个进程面对的其实是不同的任务。" if more else "在这里几乎看不出标签倾斜。"),
        name=kind_name(say, SKEWED),
        base=kind_name(say, KINDS[0]),
        skewed=found.cell(
            f"spread of local losses, {SKEWED}", skewed, plain, of="local_losses: loss"
        ),
        mixed=found.cell(
            f"spread of local losses, {KINDS[0]}", mixed, plain, of="local_losses: loss"
        ),
        ratio=found.cell(
            "ratio of the spreads of local losses", skewed / mixed, times, of="local_losses: loss"
        ),
    )


def _spread(local: Table, kind: str) -> float | None:
    """Return the mean over steps of the largest minus the smallest loss of the ranks."""
    by_step: dict[int, list[float]] = {}
    for row in local.rows:
        if row["kind"] == kind:
            by_step.setdefault(row["step"], []).append(row["loss"])
    gaps = [max(losses) - min(losses) for losses in by_step.values()]
    return statistics.fmean(gaps) if gaps else None


def _about_parameters(gap: float | None, say: Translator, found: Findings) -> Text | None:
    if gap is None:
        return None
    ref = found.cell(
        "largest difference of losses, SGD, parameters against gradients",
        gap,
        tiny,
        of=f"runs of {SKEWED}",
    )
    if gap < _EQUAL:
        return say(
            "SGD with momentum is linear in the gradient: averaging parameters after each step "
            "gave the same losses as averaging gradients, to {gap} at most over the whole run.",
            "带动量的 SGD 对梯度是线性的：每步之后平均参数与平均梯度得到相同的损失，"
            "整个训练中最大相差 {gap}。",
            gap=ref,
        )
    return say(
        "Averaging parameters instead of gradients moved SGD's losses by up to {gap}, more than "
        "rounding explains.",
        "用平均参数代替平均梯度后，SGD 的损失最多相差 {gap}，超过舍入误差所能解释的程度。",
        gap=ref,
    )


def _about_adam(averaged: str, averaging: Table, say: Translator, found: Findings) -> Text | None:
    """Compare skewed with mixed parts under Adam."""
    accuracy = {
        row["kind"]: row["accuracy"]
        for row in averaging.rows
        if (row["optimizer"], row["averaged"]) == ("adam", averaged)
    }
    mixed, skewed = accuracy.get(KINDS[0]), accuracy.get(SKEWED)
    if mixed is None or skewed is None:
        return None
    what = (
        say.pick("averaged gradients", "平均梯度")
        if averaged == "gradients"
        else say.pick("averaged parameters", "平均参数")
    )
    loss = mixed - skewed
    if abs(loss) < _SAME:
        ending = (
            "too near to each other to be told apart by one seed.",
            "仅凭一个种子无法区分两者。",
        )
    elif averaged == "gradients":
        ending = ("a difference of {gap}.", "差值为 {gap}。")
    else:
        ending = (
            "a difference of {gap}: each rank scales its step by the gradients of its own digits, "
            "and the mean of such steps is not the step of the mean.",
            "差值为 {gap}：每个进程用自己那几个数字的梯度来缩放步长，"
            "这些步长的平均并不等于平均梯度的步长。",
        )
    holes: dict[str, Filling] = {
        "name": kind_name(say, SKEWED),
        "base": kind_name(say, KINDS[0]),
        "what": what,
        "skewed": averaging.cell(
            "accuracy", points, kind=SKEWED, optimizer="adam", averaged=averaged
        ),
        "mixed": averaging.cell(
            "accuracy", points, kind=KINDS[0], optimizer="adam", averaged=averaged
        ),
    }
    if abs(loss) >= _SAME:
        holes["gap"] = found.cell(
            f"accuracy of {KINDS[0]} against {SKEWED}, adam, {averaged}",
            abs(loss),
            point_size(say),
            of="averaging: accuracy",
        )
    return say(
        "{name} ended at {skewed} with Adam and {what}, {base} at {mixed}: " + ending[0],
        "使用 Adam 与{what}时，{name}最终为 {skewed}，{base}为 {mixed}：" + ending[1],
        **holes,
    )


def _about_alone(alone: Table, averaging: Table, say: Translator) -> Text | None:
    """Tell what one part teaches by itself."""
    parts = [row for row in alone.rows if row["part"] != "mixed" and row["accuracy"] is not None]
    whole = [row for row in averaging.rows if row["kind"] == SKEWED and row["accuracy"] is not None]
    if not parts or not whole:
        return None
    best = max(parts, key=lambda row: row["accuracy"])
    worst = min(parts, key=lambda row: row["accuracy"])
    mixed = [row for row in alone.rows if row["part"] == "mixed"]
    first = say(
        "Without the others, on the test set of all digits, the part {best_part} reached {best} at "
        "best and the part {worst_part} {worst}; all of them, averaged after each step, "
        "{together}.",
        "若不与其他进程聚合，在包含全部数字的测试集上，"
        "最好的一份（{best_part}）达到 {best}，最差的一份（{worst_part}）为 {worst}；"
        "每步聚合全部进程则为 {together}。",
        best_part=best["part"],
        worst_part=worst["part"],
        best=alone.cell("accuracy", points, part=best["part"]),
        worst=alone.cell("accuracy", points, part=worst["part"]),
        together=averaging.cell_at(averaging.rows.index(whole[0]), "accuracy", points),
    )
    if not mixed:
        return first
    return say(
        "{first} About as many samples, but of all digits, reached {mixed} alone.",
        "{first}数量相近、包含全部数字的样本单独训练可达 {mixed}。",
        first=first,
        mixed=alone.cell("accuracy", points, part="mixed"),
    )
