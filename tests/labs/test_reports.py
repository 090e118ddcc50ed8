"""The reports of all labs in both languages, as a reader meets them: in Chromium, number by number.

Their runs are made up, so nothing is trained. What Chromium shows is looked at on a laptop's width
and on a phone's; every number that is shown is held against its cell of the CSV file.
"""

from __future__ import annotations

import csv
import html
import re
from dataclasses import dataclass

import pytest

from browser import browsing, find_browser
from drumline.labs.runner import build_report, load_lab
from drumline.report.page.folder import PAGE, audit_numbers
from drumline.report.page.render import render_html
from drumline.report.page.translator import Language
from drumline.report.plots import render_inline
from lab_documents import documents
from lab_runs import make_runs
from model_parallel_runs import make_runs as make_model_parallel_runs

MACHINE = {"cpu": "one with a long name @ 2.10GHz", "cpu_count": 2, "packages": {"torch": "2"}}
NUMBER = re.compile(r"([+-]?\d[\d ]*(?:\.\d+)?(?:e[+-]\d+)?)(?: ?(%|×|[A-Za-z]+|个百分点))?")
SCALES = {
    **dict.fromkeys(("%", "points", "个百分点"), 100.0),
    **{unit: 1000.0**-power for power, unit in enumerate(("B", "kB", "MB", "GB"))},
    **{unit: 1024.0**-power for power, unit in enumerate(("KiB", "MiB"), start=1)},
}
"""by which a value is multiplied for its unit"""
A4 = 718
"""its width in pixels, between the margins"""
HALF_WIDTH = re.compile(r"[一-鿿][,;:()]|[,;:)][一-鿿]")


@dataclass(frozen=True)
class Shown:
    """A number of a page, and the cells that it shows: the value, the ends of its interval."""

    text: str
    column: str
    cells: list[str]

    def faults(self) -> list[str]:
        """Tell which numbers are not the cells', rounded."""
        cells = [cell for cell in self.cells if cell]
        found = NUMBER.findall(self.text)
        if not cells:
            return [] if self.text == "–" else [f"{self.text!r}, but the cell is empty"]
        if len(found) != len(cells):
            return [f"{self.text!r} shows {len(found)} numbers of {len(cells)} cells"]
        return [
            f"{self.text!r} shows {number}, but the cell has {cell}"
            for (number, unit), cell in zip(found, cells, strict=True)
            if not self._rounded(number, unit or found[0][1], float(cell))
        ]

    def _rounded(self, number: str, unit: str, cell: float) -> bool:
        milli = unit == "ms" and "ms" not in self.column.split("_")  # seconds, written as ms
        value = cell * (1000 if milli else SCALES.get(unit, 1))
        digits, _, power = number.replace(" ", "").partition("e")
        last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
        if abs(float(digits)) >= 1000:
            last = max(last, abs(value) / 100)  # three digits of a large one are enough
        return abs(float(number.replace(" ", "")) - value) <= 0.5001 * last


def shown_numbers(page, folder):
    """Give every number of a page, read without the product's own reader."""
    files = {}
    for attributes, text in re.findall(r"<data ([^>]*)>([^<]*)</data>", page):
        said = {key: html.unescape(one) for key, one in re.findall(r'([\w-]+)="(.*?)"', attributes)}
        name, row = said["data-sheet"], int(said["data-row"])
        if name not in files:
            with (folder / "data" / f"{name}.csv").open(encoding="utf-8") as file:
                files[name] = list(csv.DictReader(file))
        columns = [said["data-column"], *(said.get(f"data-{end}") for end in ("low", "high"))]
        cells = [files[name][row][column] for column in columns if column]
        yield Shown(html.unescape(text), said["data-column"], cells)


def make(number, folder):
    """Leave all runs of a lab."""
    match number:
        case 2:
            return make_runs(load_lab(2), folder, documents=documents())
        case 4:
            return make_model_parallel_runs(folder)
    return make_runs(load_lab(number), folder)


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch):
    """Draw a lab's figures for its Chinese page, and keep them for the other: it takes long."""
    drawn: dict[str, str] = {}

    def draw(picture, lang):
        if picture.name not in drawn:
            drawn[picture.name] = render_inline(picture, lang)
        return drawn[picture.name]

    monkeypatch.setattr("drumline.report.page.render.render_inline", draw)


def write(number, results, lang, folder):
    """Write a lab's page and data, without the files of its figures."""
    report = build_report(load_lab(number), results, MACHINE, "*mine*", Language(lang))
    (folder / "data").mkdir(parents=True)
    for table in report.tables:
        (folder / "data" / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    page = render_html(report, version="1", made="now")
    (folder / PAGE).write_text(page, encoding="utf-8")
    return page


def analysis_of(page):
    """Return the sentences of the analysis, without the numbers that name their cells."""
    part = page.partition('<section id="analysis">')[2].partition("</section>")[0]
    return html.unescape(re.sub(r"<data [^>]*>[^<]*</data>|<[^>]*>", "", part))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=() if number == 2 else pytest.mark.slow)
        for number in (1, 2, 3, 4)
    ],
)
def test_a_reader_sees_the_whole_report_and_the_numbers_of_its_files(number, tmp_path):
    results = make(number, tmp_path / "lab")
    for lang in ("zh", "en"):
        page = write(number, results, lang, tmp_path / lang)
        assert list(audit_numbers(tmp_path / lang)) == []
        shown = list(shown_numbers(page, tmp_path / lang))
        assert len(shown) > 100
        assert [fault for one in shown for fault in one.faults()] == []
        # what was measured is quoted; α = 0.5 is a parameter
        assert re.findall(r"\d+\.\d+", analysis_of(page).replace("α = 0.5", "")) == []
        assert not HALF_WIDTH.search(analysis_of(page))
    find_browser()
    with browsing() as browser:
        for lang in ("en", "zh"):
            for width in (1280, 390):
                browser.open(tmp_path / lang / PAGE, width=width, dark=width == 390)
                assert browser.faults() == [], (number, lang, width)
            browser.open(tmp_path / lang / PAGE, width=A4, paper=True)
            assert browser.faults() == [], (number, lang, "on paper")


def test_a_number_that_is_not_its_cell_is_found():
    assert Shown("71 % (66–75)", "share", ["0.7134", "0.66", "0.7499"]).faults() == []
    assert Shown("850 ms (1.2 s)", "train_s", ["0.8502", "1.24"]).faults() == []
    assert Shown("12.3 ms", "step_ms", ["12.34"]).faults() == []
    assert Shown("+0.30 points (-0.10 … +0.70)", "gap", ["0.003", "-0.001", "0.007"]).faults() == []
    assert Shown("4MiB", "bytes", ["4194304"]).faults() == []
    assert len(Shown("71 % (66–76)", "share", ["0.7134", "0.66", "0.7499"]).faults()) == 1
    assert len(Shown("12.4 ms", "step_ms", ["12.34"]).faults()) == 1
    assert len(Shown("3", "count", ["3", "4", "5"]).faults()) == 1
    assert len(Shown("3", "count", [""]).faults()) == 1
