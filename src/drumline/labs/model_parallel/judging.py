"""Which of two times is shorter, if the quartiles of their steps tell; and lists with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from drumline.report.page.prose import Sentence, Tongue
from drumline.report.page.sheet import Quote

Row = Mapping[str, Any]


class Pace(StrEnum):
    """How a step of one form compares with that of another."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    """the quartiles of their steps overlap"""


def judge_pace(row: Row, other: Row) -> Pace:
    """Compare the quartiles of two forms' steps."""
    if row["step_ms_high"] < other["step_ms_low"]:
        return Pace.FASTER
    return Pace.SLOWER if row["step_ms_low"] > other["step_ms_high"] else Pace.SAME


def list_quotes(say: Tongue, items: Sequence[tuple[str, Quote | Sentence]]) -> Sentence:
    """List names, each with its number: `tensor: 1.9×; rpc ×4: 1.1×`."""
    parts: list[str | Quote] = []
    for number, (name, quote) in enumerate(items):
        comma = say.pick("; ", ";") if number else ""
        parts.append(comma + name + say.pick(": ", ":"))
        parts += quote.parts if isinstance(quote, Sentence) else [quote]
    return Sentence(tuple(parts))
