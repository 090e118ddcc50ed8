"""The four labs: their names, what they are about, which files a student writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from drumline.core.errors import UsageError
from drumline.report.page.translator import Language


@dataclass(frozen=True)
class Both:
    """One thing said in both languages, before it is known which is asked for."""

    en: str
    zh: str

    def within(self, language: Language) -> str:
        """Return it in one language."""
        return self.zh if language == Language.ZH else self.en


TASK = Both("TASK.md", "TASK.zh.md")
"""the task sheet of every lab"""
_PRINCIPLE = re.compile(r"## (\d+\. )?(Principle|原理)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One lab, as the list has it."""

    number: int
    name: str
    title: Both
    about: Both
    """what a student does in it"""
    needs: Both
    """what its checks start"""
    modules: tuple[str, ...]
    """files with holes, without their .py"""


LABS: tuple[Entry, ...] = (
    Entry(
        number=1,
        name="optimizers",
        title=Both("Optimizers on one machine", "单机优化器"),
        about=Both(
            "GD, SGD with momentum and Adam by hand, and the loop that decides what a step sees",
            "手写 GD、带动量的 SGD 与 Adam，以及决定每一步看到哪些样本的训练循环",
        ),
        needs=Both("one process", "一个进程"),
        modules=("optimizers", "training"),
    ),
    Entry(
        number=2,
        name="aggregation",
        title=Both("Communication and aggregation", "通信与参数聚合"),
        about=Both(
            "the mean of gradients by all_gather, by reduce and broadcast, around a ring; a timer",
            "分别用 all_gather、reduce 加 broadcast、环形传递求梯度平均；以及一个计时器",
        ),
        needs=Both("2 to 3 processes, gloo", "2 到 3 个进程，gloo"),
        modules=("aggregation", "timing"),
    ),
    Entry(
        number=3,
        name="data-parallel",
        title=Both("Data parallelism", "数据并行"),
        about=Both(
            "samplers for random partition and random sampling; one model for all at the start",
            "随机划分与随机采样两种采样器；训练开始时让所有进程持有同一个模型",
        ),
        needs=Both("3 processes, gloo", "3 个进程，gloo"),
        modules=("samplers", "replicas"),
    ),
    Entry(
        number=4,
        name="model-parallel",
        title=Both("Model parallelism by RPC", "基于 RPC 的模型并行"),
        about=Both(
            "a model in two parts with micro-batches that overlap, and a report of its sizes",
            "把模型拆成两部分，让微批次在其中重叠执行，并报告各部分的大小",
        ),
        needs=Both("3 processes, torch RPC", "3 个进程，torch RPC"),
        modules=("two_parts",),
    ),
)


def find_lab(number: int) -> Entry:
    """Return a lab by its number.

    Raises:
        UsageError: there is no such lab.
    """
    for lab in LABS:
        if lab.number == number:
            return lab
    raise UsageError(f"there is no lab {number}; expected 1, 2, 3 or 4 (drumline lab list)")


def read_principle(entry: Entry, language: Language) -> str:
    """Return the part of a lab's task sheet that says why things work."""
    starters = files("drumline.labs").joinpath("starters", str(entry.number))
    sheet = starters.joinpath(TASK.within(language))
    lines: list[str] = []
    inside = False
    for line in sheet.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            inside = _PRINCIPLE.match(line) is not None
        elif inside:
            lines.append(line)
    return "\n".join(lines).strip()
