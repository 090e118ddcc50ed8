"""The table of `drumline bench model-parallel`: a row for each form that a model was trained in."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.fitting_table import NOTHING, FittingColumn, FittingTable, format_known
from drumline.bench.model_parallel.rows import CaseRow
from drumline.core.formatting import format_bytes

_AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""


def model_table(rows: Sequence[CaseRow], *, nodes: int) -> RenderableType:
    """Show `bench model-parallel`'s table of what each form costs."""
    columns: list[FittingColumn[CaseRow]] = [
        FittingColumn("form", lambda row: row.case, justify="left"),
        FittingColumn("ms", lambda row: milliseconds(row.median_s)),
        FittingColumn("samples/s", lambda row: f"{row.samples_per_s:.0f}", leaves=1),
        FittingColumn("speed", lambda row: format_known("{:.2f}×", row.speedup), leaves=6),
        FittingColumn("MB", _megabytes, leaves=7),
        FittingColumn("bytes", _bytes, leaves=5),
        FittingColumn("bubble", _bubble, leaves=4),
        FittingColumn("idle", _idle, leaves=2),
        FittingColumn("loss", lambda row: f"{row.loss:.4f}", leaves=3),
    ]
    table = FittingTable(rows=rows, columns=columns, gap=1, elsewhere="--json, --csv")
    return Group(table, Text(_legend(nodes)))


def describe_agreement(rows: Sequence[CaseRow]) -> str | None:
    """Say how far the losses of all benched forms lie apart; None: nothing to compare."""
    others = [row for row in rows if row.loss_difference is not None and row.form != "alone"]
    if not others:
        return None
    worst = max(others, key=lambda row: row.loss_difference or 0.0)
    apart = worst.loss_difference or 0.0
    if apart == 0:
        return "losses: the same bits as alone, in every step of every form"
    text = f"losses: at most {apart:.1e} from alone, in any step of any form ({worst.case})"
    if apart > _AGREE:
        text += (
            "\nthat is more than rounding; dropout, for one, draws other numbers on other ranks: "
            "set model.dropout=0"
        )
    return text


def _legend(nodes: int) -> str:
    sender = "node" if nodes > 1 else "rank"
    return "\n".join(
        (
            "ms: median step, until its slowest rank is done. speed: against one rank alone.",
            f"MB: peak memory of the largest rank. bytes: per step, from the busiest {sender}.",
            "bubble: share of the ranks' time without work, measured|theory.",
            "idle: ms per step in which the idlest rank did nothing but wait and transfer.",
        )
    )


def milliseconds(seconds: float) -> str:
    """Write a benched step's time in three digits or four: `8.3`, `99.5`, `1200`."""
    return f"{seconds * 1e3:.1f}" if seconds < 0.09995 else f"{seconds * 1e3:.0f}"


def _megabytes(row: CaseRow) -> str:
    return NOTHING if row.peak_bytes is None else f"{max(row.peak_bytes) / 1e6:.0f}"


def _bytes(row: CaseRow) -> str:
    """Write the bytes per step that the busiest node sent, or the busiest rank handed over."""
    sent = row.link_bytes or row.payload_bytes
    return NOTHING if sent is None else format_bytes(max(sent))


def _bubble(row: CaseRow) -> str:
    if row.bubble is None or row.bubble_theory is None:
        return NOTHING
    return f"{100 * row.bubble:.0f}|{row.bubble_theory:.0%}"


def _idle(row: CaseRow) -> str:
    return NOTHING if row.idle_s is None else milliseconds(max(row.idle_s))
