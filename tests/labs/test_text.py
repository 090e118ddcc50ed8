"""The text of the labs is data: both languages have it, and its holes are filled with cells."""

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Annotated

import pytest

from drumline.labs.chapter import Chapter
from drumline.labs.text import FindingSpec, LabText, lab_text
from drumline.report.intervals import Interval
from drumline.report.page.table import CellRef, Findings, count, points
from drumline.report.page.translator import Language, find_holes, load_texts

NAMES = sorted(
    folder.name
    for folder in files("drumline.labs").joinpath("text").iterdir()
    if folder.joinpath("en.yaml").is_file()
)


@dataclass(frozen=True, kw_only=True)
class Row:
    optimizer: str
    steps: Annotated[int, count]
    accuracy: Annotated[Interval | None, points]


ROW = Row(optimizer="gd", steps=12345, accuracy=Interval(middle=0.9, low=0.89, high=0.91))


def chapter_of(**texts):
    return Chapter(
        text=LabText(Language.EN, {Language.EN: texts}, "here"), findings=Findings(), tables={}
    )


@pytest.mark.parametrize("name", NAMES)
def test_both_languages_have_the_same_keys_and_holes(name):
    texts = load_texts("drumline.labs", f"text/{name}")
    assert texts[Language.EN].keys() == texts[Language.ZH].keys()
    for key, text in texts[Language.EN].items():
        assert find_holes(text) == find_holes(texts[Language.ZH][key]), key


def test_a_lab_has_the_text_of_all_labs_and_its_own():
    text = lab_text("optimizers", Language.EN).within("rates")
    assert text.text("columns.accuracy") == "test accuracy"
    assert text.name("optimizer", "momentum") == "SGD with momentum"
    assert text.name("optimizer", "lion") == "lion"
    assert text.within("figures.rates").text("losses.y") == "loss (cross entropy)"
    with pytest.raises(KeyError, match="no text 'steps' in 'rates'"):
        text.text("steps")


@pytest.mark.parametrize("name", ["optimizers", "communication", "data_parallel", "model_parallel"])
def test_every_finding_fills_a_hole_of_its_texts(name):
    text = lab_text(name, Language.EN)
    for key in text.findings:
        section, _, hole = key.rpartition(".")
        own = text.texts[Language.EN].items()
        below = [one for k, one in own if f"{k}.".startswith(f"{section}.")]
        assert hole in {hole for one in below for hole in find_holes(one)}, key


def test_a_number_that_was_computed_is_noted_and_quoted():
    chapter = chapter_of(**{"here.step.more": "{row.steps} steps, {ratio} as many as {count}"})
    known = {
        "here.step.ratio": FindingSpec(name="{row.optimizer} over {count}", form="times", of="x")
    }
    chapter = replace(chapter, text=replace(chapter.text, findings=known))
    chapter.tabulate("ends", Row, [ROW])
    ratio = Interval(middle=2.5, low=2.0, high=3.0)
    assert chapter.write("step.more", row=ROW, ratio=None, count=7) is None
    said = chapter.write("step.more", row=ROW, ratio=ratio, count=7)
    assert str(said) == "12 345 steps, 2.5× (2.0–3.0) as many as 7"
    noted = {"name": "gd over 7", "value": 2.5, "value_low": 2.0, "value_high": 3.0, "from": "x"}
    assert chapter.findings.table.rows == [noted]
    with pytest.raises(LookupError, match=r"count is not in findings\.yaml"):
        chapter.write("step.more", row=ROW, ratio=ratio, count=7.5)


def test_a_row_fills_holes_with_its_cells_and_names():
    chapter = chapter_of(
        **{
            "here.best": "{row.optimizer} had {row.accuracy} after {row.steps}, {row.steps:plain}",
            "names.optimizer.gd": "gradient descent",
        }
    )
    table = chapter.tabulate("ends", Row, [ROW])
    assert table.columns == ["optimizer", "steps", "accuracy", "accuracy_low", "accuracy_high"]
    assert table.to_csv().splitlines()[1] == "gd,12345,0.9,0.89,0.91"
    said = chapter.write("best", row=ROW)
    expected = "gradient descent had 90.00 % (89.00–91.00) after 12 345, 1.23e+04"
    assert str(said) == expected
    cells = [part for part in said.parts if isinstance(part, CellRef)]
    refs = [(ref.table, ref.row, ref.column, ref.value) for ref in cells]
    assert refs == [("ends", 0, "accuracy", 0.9), *[("ends", 0, "steps", 12345)] * 2]


def test_holes_that_the_text_has_not_are_refused():
    chapter = chapter_of(**{"here.best": "{row.steps} steps"})
    chapter.tabulate("ends", Row, [ROW])
    with pytest.raises(ValueError, match=r"here\.best"):
        chapter.write("best")
    with pytest.raises(ValueError, match=r"here\.best"):
        chapter.write("best", row=ROW, more=1)
    with pytest.raises(LookupError, match="no table of the lab"):
        chapter.write("best", row=Row(optimizer="gd", steps=1, accuracy=None))
