"""A cluster's nodes as a table: a row for each, and as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from drumline.cluster.machine import Machine

_GAP = 2
_LEFT_OUT = ("address", "id", "reached at")
"""where there is no room, in this order; `status --json` and `inventory --list` have all of it"""


def print_machines(
    console: Console, machines: Sequence[Machine], states: Mapping[int, str] | None = None
) -> None:
    """Print a row for each node, with its state where that is known."""
    columns = {
        "node": [f"{one.name}{' (leader)' if one.node == 0 else ''}" for one in machines],
        "state": [states[one.node] for one in machines] if states else [],
        "address": [one.address for one in machines],
        "reached at": [f"{one.user}@{one.host}" for one in machines],
        "id": [one.identity for one in machines],
        "USD/h": [f"{one.price_usd:.3f}" if one.price_usd else "" for one in machines],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    for name in _LEFT_OUT if console.is_terminal else ():  # a file has room for all
        if sum(_widths(columns)) + _GAP * (len(columns) - 1) > console.width:
            columns.pop(name, None)
    rows = zip(*([name, *cells] for name, cells in columns.items()), strict=True)
    for number, row in enumerate(rows):
        cells = (
            cell.ljust(width + _GAP) for cell, width in zip(row, _widths(columns), strict=True)
        )
        style = None if number else "bold"
        console.print("".join(cells).rstrip(), style=style, markup=False, soft_wrap=True)


def _widths(columns: Mapping[str, Sequence[str]]) -> list[int]:
    return [max(map(len, (name, *cells))) for name, cells in columns.items()]
