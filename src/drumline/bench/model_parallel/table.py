"""The table of `drumline bench model-parallel`: a row for each form that a model was trained in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.bench.fitting_table import KEPT, FittingColumn, FittingTable
from drumline.bench.model_parallel.rows import CaseRow

NOTHING = "—"
_AGREE = 1e-4
"""in float32 the losses of a batch differ by rounding, which is far less early in a training"""


def model_table(rows: Sequence[CaseRow], *, nodes: int) -> RenderableType:
    """Show `bench model-parallel`'s table of what each form costs."""

    def column(name: str, write: Callable[[CaseRow], str], leaves: int = KEPT) -> FittingColumn:
        return FittingColumn(name=name, cells=[write(row) for row in rows], leaves=leaves)

    columns = [
        FittingColumn(name="form", cells=[row.case for row in rows], justify="left"),
        column("ms", lambda row: milliseconds(row.median_s)),
        column("samples/s", lambda row: f"{row.samples_per_s:.0f}", leaves=1),
        column("speed", _speed, leaves=6),
        column("MB", lambda row: _megabytes(row.peak_bytes), leaves=7),
        column("bytes", lambda row: _bytes(_carried(row)), leaves=5),
        column("bubble", _bubble, leaves=4),
        column("idle", lambda row: _idle(row.idle_s), leaves=2),
        column("loss", lambda row: f"{row.loss:.4f}", leaves=3),
    ]
    table = FittingTable(columns=columns, gap=1, elsewhere="--json, --csv")
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


def _carried(row: CaseRow) -> int | None:
    """Return the bytes per step that the busiest node sent, or the busiest rank handed over."""
    found = row.link_bytes or row.payload_bytes
    return None if found is None else max(found)


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


def _speed(row: CaseRow) -> str:
    return NOTHING if row.speedup is None else f"{row.speedup:.2f}×"


def _megabytes(peaks: Sequence[int] | None) -> str:
    return NOTHING if peaks is None else f"{max(peaks) / 1e6:.0f}"


def _bytes(count: int | None) -> str:
    """Write a count in seven characters: `812 B`, `98.3 kB`, `4.2 MB`."""
    if count is None:
        return NOTHING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def _bubble(row: CaseRow) -> str:
    if row.bubble is None or row.bubble_theory is None:
        return NOTHING
    return f"{100 * row.bubble:.0f}|{row.bubble_theory:.0%}"


def _idle(seconds: Sequence[float] | None) -> str:
    return NOTHING if seconds is None else milliseconds(max(seconds))
