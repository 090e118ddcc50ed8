"""The labs by number: what they are called, and where their texts are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from drumline.core.errors import UsageError
from drumline.report.page.prose import Lang


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One lab, in the list."""

    number: int
    titles: tuple[str, str]
    """in English and in Chinese"""


LABS = (
    Entry(number=1, titles=("Optimizers", "梯度下降与优化器")),
    Entry(number=2, titles=("Communication and aggregation", "通信模型与参数聚合")),
    Entry(number=3, titles=("Data parallelism", "数据并行")),
    Entry(number=4, titles=("Model parallelism", "模型并行")),
)
_PRINCIPLE = ("## Principle", "## 原理")


def find_lab(number: int) -> Entry:
    """Return the lab of that number.

    Raises:
        UsageError: there is none; names those that there are.
    """
    for entry in LABS:
        if entry.number == number:
            return entry
    known = ", ".join(f"{entry.number} ({entry.titles[0]})" for entry in LABS)
    raise UsageError(f"there is no lab {number}; the labs are {known}")


def read_sheet(entry: Entry, lang: Lang) -> str:
    """Return a lab's task sheet."""
    name = "TASK.zh.md" if lang == "zh" else "TASK.md"
    sheet = files("drumline.labs").joinpath("starters", str(entry.number), name)
    return sheet.read_text(encoding="utf-8")


def read_principle(entry: Entry, lang: Lang) -> str:
    """Return the part of the task sheet that says why it works."""
    lines: list[str] = []
    inside = False
    for line in read_sheet(entry, lang).splitlines():
        if line.startswith("## "):
            inside = line.startswith(_PRINCIPLE)
        elif inside:
            lines.append(line)
    return "\n".join(lines).strip()
