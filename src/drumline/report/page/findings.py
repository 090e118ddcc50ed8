"""`Findings`: numbers that were computed from others, e.g. a ratio: one sheet for all of a page."""

from __future__ import annotations

from drumline.report.page.table import CellRef, Form, Table


class Findings:
    """A sheet of named numbers, each quoted where it is found."""

    def __init__(self) -> None:
        self.table = Table(
            name="findings", columns=("name", "value", "value_low", "value_high", "from")
        )

    def cell(
        self,
        name: str,
        value: float | None,
        form: Form,
        *,
        low: float | None = None,
        high: float | None = None,
        of: str = "",
    ) -> CellRef:
        """Note a number, and quote it.

        Args:
            name: what it is, unique on the page: `bytes of ring over chunked_ring`.
            value: the number.
            form: how it is written.
            low: where its interval begins, if it has one.
            high: where it ends.
            of: what it was computed from: sheets and columns.
        """
        row = self.table.add(
            **{"name": name, "value": value, "value_low": low, "value_high": high, "from": of}
        )
        return self.table.cell_at(row, "value", form)
