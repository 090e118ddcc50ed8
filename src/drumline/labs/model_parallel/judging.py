"""Which of two steps is shorter, if their quartiles tell; and lists with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from drumline.report.interval import read_interval
from drumline.report.order import Order, compare
from drumline.report.page.table import CellRef
from drumline.report.page.translator import Sentence, Translator

Row = Mapping[str, Any]


class Pace(StrEnum):
    """How a step of one form compares with that of another."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    """the quartiles overlap, or the machine itself changed by more than they differ"""


def judge_pace(row: Row, other: Row, *, drift: float = 0.0) -> Pace:
    """Compare the quartiles of two forms' steps.

    Args:
        row: of one form.
        other: of another.
        drift: by which share the machine changed while both ran; they differ if by more than that.
    """
    one, two = read_interval(row, "step_ms"), read_interval(other, "step_ms")
    fast, slow = sorted((one.middle, two.middle))
    if slow <= (1 + drift) * fast:
        return Pace.SAME
    return {Order.LESS: Pace.FASTER, Order.MORE: Pace.SLOWER}.get(compare(one, two), Pace.SAME)


def list_quotes(say: Translator, items: Sequence[tuple[str, CellRef | Sentence]]) -> Sentence:
    """List names, each with its number: `tensor: 1.9×; rpc ×4: 1.1×`."""
    parts: list[str | CellRef] = []
    for number, (name, ref) in enumerate(items):
        comma = say.pick("; ", "；") if number else ""
        parts.append(comma + name + say.pick(": ", "："))
        parts += ref.parts if isinstance(ref, Sentence) else [ref]
    return Sentence(tuple(parts))
