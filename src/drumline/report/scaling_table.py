"""The tables of `drumline bench scaling`: a row for each count and strategy, strong and weak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from drumline.report.fitting import KEPT, Column, FittingTable
from drumline.report.model_table import NOTHING, Values, milliseconds

_TITLES = {
    "strong": "strong scaling: all ranks together have the same batch",
    "weak": "weak scaling: each rank has the same batch",
}

_FAR = 10
"""an interval that reaches further says only that nothing is known"""


def scaling_table(rows: Sequence[Values], *, smallest: str) -> RenderableType:
    """Show each mode's rows, and what the columns mean; `smallest`: what all is held against."""
    parts: list[RenderableType] = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        own = [row for row in rows if row["mode"] == mode]
        parts += [Text(_TITLES[mode], style="bold"), _table(once_each(own)), Text("")]
    return Group(*parts, Text(_legend(smallest)))


def once_each(rows: Sequence[Values]) -> list[Values]:
    """Return the rows of one mode, those that several strategies share only once."""
    return list({row["case"]: row for row in rows}.values())


def _table(rows: Sequence[Values]) -> FittingTable:
    def column(name: str, write: Callable[[Values], str], leaves: int = KEPT) -> Column:
        return Column(name=name, cells=[write(row) for row in rows], leaves=leaves)

    names = [row["case"].removeprefix(row["mode"]).split("×")[0].strip() for row in rows]
    several = len({row["nodes"] for row in rows}) > 1
    columns = [
        Column(name="strategy", cells=names, justify="left"),
        *([column("nodes", lambda row: str(row["nodes"]), leaves=4)] if several else []),
        column("ranks", lambda row: str(row["ranks"])),
        column("batch", lambda row: str(row["batch"]), leaves=1),
        column("ms", lambda row: milliseconds(row["median_s"])),
        column("±", lambda row: _wide(row["median_s"], row["high_s"]), leaves=6),
        column("speed-up", lambda row: _times(row["speedup"])),
        column("±", lambda row: _wide(row["speedup"], row["speedup_high"]), leaves=7),
        column("eff.", lambda row: _share(row["efficiency"])),
        column("lost", lambda row: _share(row["lost"]), leaves=5),
        column("compute", lambda row: _share(row["lost_compute"]), leaves=5),
        column("wait", lambda row: _share(row["lost_wait"]), leaves=5),
        column("transfer", lambda row: _share(row["lost_transfer"]), leaves=5),
        column("data", lambda row: _share(row["lost_data"]), leaves=3),
    ]
    return FittingTable(columns=columns, gap=1, elsewhere="--json, --csv")


def _legend(smallest: str) -> str:
    return "\n".join(
        (
            "ms: a step of all ranks, median over rounds. eff.: speed-up per rank.",
            f"speed-up: over {smallest} in the same round, by samples per second.",
            "±: how far the 95 % interval reaches, by Student's t over rounds.",
            f"lost: share of the ranks' time beyond that of {smallest} for the same work:",
            "in compute that takes longer, waiting for ranks, transfer, fetching data.",
        )
    )


def _wide(middle: float | None, high: float | None) -> str:
    """Write how far an interval reaches; down it is as far, by the logarithm."""
    if middle is None or high is None or high == middle:
        return NOTHING
    return f"{high / middle - 1:.0%}" if high < _FAR * middle else f">{_FAR}×"


def _times(speedup: float | None) -> str:
    return NOTHING if speedup is None else f"{speedup:.2f}×"


def _share(share: Any) -> str:
    return NOTHING if share is None else f"{share:.0%}".replace("-0%", "0%").replace("-", "−")
