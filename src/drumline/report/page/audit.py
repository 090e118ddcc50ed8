"""Whether a report is what its program wrote: its files, and every number of its page.

The page carries for each number which cell of which CSV file it is (`<data data-sheet=…>`); here
it is read as a browser would, and each number is held against the file.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from drumline.core.files import hash_file
from drumline.report.page.blocks import Report
from drumline.report.page.folder import PAGE
from drumline.report.page.render import render_html

_SENTENCES = ("p", "li")
_MOST = 5
"""numbers that are told one by one, of each file"""


@dataclass(frozen=True, kw_only=True)
class Cited:
    """A number on the page."""

    value: str
    table: str
    row: int
    column: str
    text: str
    sentence: str = field(default="", compare=False)
    """the paragraph or the item of a list that it stands in"""


class _Reader(HTMLParser):
    """Collects the numbers of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Cited] = []
        self._open: dict[str, str] | None = None
        self._text = ""
        self._sentence = ""
        self._first = 0
        """how many numbers there were before the paragraph"""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SENTENCES:
            self._sentence, self._first = "", len(self.found)
        if tag == "data":
            self._open = {name: value or "" for name, value in attrs}
            self._text = ""

    def handle_data(self, data: str) -> None:
        self._sentence += data
        if self._open is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag in _SENTENCES:
            self.found[self._first :] = [
                replace(cited, sentence=self._sentence) for cited in self.found[self._first :]
            ]
        if tag == "data" and self._open is not None:
            row = self._open.get("data-row", "")
            self.found.append(
                Cited(
                    value=self._open.get("value", ""),
                    table=self._open.get("data-sheet", ""),
                    row=int(row) if row.isdecimal() else -1,
                    column=self._open.get("data-column", ""),
                    text=self._text,
                )
            )
            self._open = None


def read_citations(page: str) -> list[Cited]:
    """Return every number of a report's page that names its table's cell."""
    reader = _Reader()
    reader.feed(page)
    return reader.found


def audit_files(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Give a sentence for each file of a report that is not as it was written."""
    for name, expected in manifest["files"].items():
        file = folder / name
        try:
            found = hash_file(file)
        except FileNotFoundError:
            yield f"{name} is missing"
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}"
        else:
            if not expected:
                yield f"{name} is of a report that was never finished; make it again"
            elif found != expected:
                yield f"{name} was changed after it was written"


def audit_numbers(folder: Path) -> Iterator[str]:
    """Give a sentence for each number of a report's page that its CSV file does not have."""
    tables: dict[str, list[dict[str, str]]] = {}
    wrong: Counter[str] = Counter()
    for cited in read_citations(_read(folder / PAGE)):
        if cited.table not in tables:
            tables[cited.table] = _read_csv(folder / "data" / f"{cited.table}.csv")
        rows = tables[cited.table]
        cell = rows[cited.row].get(cited.column) if 0 <= cited.row < len(rows) else None
        if cell == cited.value:
            continue
        wrong[cited.table] += 1
        if wrong[cited.table] > _MOST:
            continue
        if cell is None:
            yield f"{PAGE} says {cited.text!r}, but {cited.table}.csv has no such cell"
        else:
            yield (
                f"{PAGE} says {cited.text!r} ({cited.value}), but {cited.table}.csv has {cell} in "
                f"row {cited.row + 1}, {cited.column}"
            )
    for table, count in wrong.items():
        if count > _MOST:
            yield f"{count - _MOST} more numbers of {PAGE} are not those in {table}.csv"


def audit_texts(folder: Path, report: Report) -> Iterator[str]:
    """Give a sentence where a report's page says other numbers, or of them, than its runs."""
    theirs = read_citations(_read(folder / PAGE))
    ours = read_citations(render_html(report, version="", made="", draws=False))
    for there, here in zip(theirs, ours, strict=False):
        if there != here:
            yield (
                f"{PAGE} says {there.text!r} where the runs give {here.text!r} ({here.table}.csv, "
                f"row {here.row + 1}, {here.column})"
            )
            return
        if there.sentence != here.sentence:
            yield f"{PAGE} says {there.sentence!r} where the runs give {here.sentence!r}"
            return
    if len(theirs) != len(ours):
        yield f"{PAGE} has {len(theirs)} numbers where the runs give {len(ours)}"


def _read_csv(file: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(_read(file), newline="")))
    except csv.Error:
        return []


def _read(file: Path) -> str:
    """Read a file, whatever was done to it; one that cannot be read has nothing in it."""
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""
