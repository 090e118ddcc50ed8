"""The table of `drumline bench model-parallel`: a row for each form that a model was trained in.

A terminal of 80 columns has room for most of it; what has none is left out by whole columns, the
least telling first, and never by a digit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.report.tables import narrow_table

Values = Mapping[str, Any]
NOTHING = "—"
_AGREE = 1e-4
"""losses of one batch in float32 differ by rounding: by far less, at the start of a training"""


@dataclass(frozen=True)
class _Column:
    name: str
    cell: Callable[[Values], str]
    keep: int
    """columns with a smaller number go first where room is short"""


_COLUMNS = (
    _Column("ms", lambda row: format_ms(row["median_s"]), 9),
    _Column("samples/s", lambda row: f"{row['samples_per_s']:.0f}", 2),
    _Column("speed", lambda row: _or_nothing(row["speedup"], "{:.2f}×"), 6),
    _Column("memory", lambda row: _megabytes(row["peak_bytes"]), 8),
    _Column("bytes", lambda row: format_bytes_short(carried(row)), 7),
    _Column("bubble", lambda row: _bubble(row), 5),
    _Column("idle", lambda row: _idle(row["idle_s"]), 3),
    _Column("loss", lambda row: f"{row['loss']:.4f}", 4),
)


def model_table(rows: Sequence[Values], *, nodes: int, width: int) -> RenderableType:
    """Show what each form costs, in columns that fit into the given width."""
    chosen, gap = _fitting(rows, width)
    table = narrow_table(gap=gap)
    table.add_column("form", no_wrap=True)
    for column in chosen:
        table.add_column(column.name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["case"], *(column.cell(row) for column in chosen))
    sentences = _legend([column.name for column in chosen], nodes)
    return Group(table, Text(_fold(sentences, width)))


def agreement(rows: Sequence[Values]) -> str | None:
    """Say how far the losses of all forms lie apart; None where nothing is there to compare."""
    others = [row for row in rows if row["loss_difference"] is not None and row["form"] != "alone"]
    if not others:
        return None
    worst = max(others, key=lambda row: float(row["loss_difference"]))
    text = (
        f"losses: {worst['loss_difference']:.1e} from alone's at most, in any step of any form "
        f"({worst['case']})"
    )
    if worst["loss_difference"] > _AGREE:
        text += (
            "\nthat is more than rounding: dropout draws other numbers on other ranks; "
            "set model.dropout=0"
        )
    return text


def carried(row: Values) -> int | None:
    """Return the bytes per step that the busiest node sent, or the busiest rank handed over."""
    found = row["link_bytes"] or row["payload_bytes"]
    return None if found is None else max(found)


def format_ms(seconds: float) -> str:
    """Write a time in ms, with a digit behind the point where that says something."""
    return f"{seconds * 1e3:.1f}" if seconds < 0.09995 else f"{seconds * 1e3:.0f}"


def format_bytes_short(count: int | None) -> str:
    """Write a count of bytes in a few characters: `812 B`, `98.3 kB`, `4.2 MB`."""
    if count is None:
        return NOTHING
    for unit, scale in (("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return (
                f"{count / scale:.3g} {unit}"
                if count < 999.5 * scale
                else f"{count / scale:.0f} {unit}"
            )
    return f"{count} B"


def _fitting(rows: Sequence[Values], width: int) -> tuple[list[_Column], int]:
    """Choose the columns that fit beside the forms' names, and the gap between them."""
    chosen = list(_COLUMNS)
    names = max(len(row["case"]) for row in rows)
    while True:
        wide = [max(len(each.name), *(len(each.cell(row)) for row in rows)) for each in chosen]
        for gap in (2, 1):
            if names + sum(wide) + gap * len(wide) <= width or len(chosen) == 1:
                return chosen, gap
        chosen.remove(min(chosen, key=lambda column: column.keep))


def _legend(shown: Sequence[str], nodes: int) -> list[str]:
    sent = "left the busiest node by its link" if nodes > 1 else "the busiest rank gave to others"
    lines = {
        "ms": "ms: a step of the slowest rank, median.",
        "speed": "speed: against one rank alone.",
        "memory": "memory: peak of the largest rank, in MB.",
        "bytes": f"bytes: what {sent}, per step.",
        "bubble": "bubble: share of the ranks' time without work, measured|theory.",
        "idle": "idle: ms per step in which the idlest rank only waited.",
        "loss": "loss: of the last step.",
    }
    return [text for name, text in lines.items() if name in shown]


def _fold(sentences: Sequence[str], width: int) -> str:
    """Put sentences behind each other, into lines of so many characters."""
    lines = [""]
    for sentence in sentences:
        if lines[-1] and len(lines[-1]) + 1 + len(sentence) > width:
            lines.append("")
        lines[-1] += f" {sentence}" if lines[-1] else sentence
    return "\n".join(lines)


def _or_nothing(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def _megabytes(peaks: Sequence[int] | None) -> str:
    return NOTHING if peaks is None else f"{max(peaks) / 1e6:.0f}"


def _bubble(row: Values) -> str:
    if row["bubble"] is None:
        return NOTHING
    return f"{100 * row['bubble']:.0f}|{row['bubble_theory']:.0%}"


def _idle(seconds: Sequence[float] | None) -> str:
    return NOTHING if seconds is None else format_ms(max(seconds))
