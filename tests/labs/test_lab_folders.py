"""`lab run` and `lab verify` in folders that hold something else, or something damaged."""

from __future__ import annotations

import json
import re

import pytest

from drumline.core.errors import LabError, UsageError
from drumline.labs.runner import LabRequest, build_report, load_lab, lock_lab, run_lab
from drumline.labs.verify import verify_report
from drumline.report.page.render import render_html
from drumline.report.page.translator import Language
from lab_documents import documents
from lab_runs import make_runs


def run(number, folder):
    """Run a lab that must not come to its first experiment."""

    def watch(progress):
        raise AssertionError(progress)

    run_lab(LabRequest(number=number, out=folder), watch=watch, on_figure=lambda _: None)


def test_runs_that_are_no_labs_are_not_replaced(tmp_path):
    """`lab run 1 --out .` beside `runs/`: an experiment has the name of a user's run."""
    mine = tmp_path / "runs" / "gd-1"
    mine.mkdir(parents=True)
    with pytest.raises(UsageError, match="is no lab's; nothing in it is replaced"):
        run(1, tmp_path)
    assert mine.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["runs"]


def test_another_labs_report_stays(tmp_path):
    (tmp_path / "manifest.json").write_text('{"drumline": "0", "lab": 2, "files": {}}')
    with pytest.raises(UsageError, match="holds the report of lab 2, which stays"):
        run(1, tmp_path)
    assert not (tmp_path / "words.md").exists()


def test_a_folder_has_one_lab_run_at_a_time(tmp_path):
    (tmp_path / "words.md").write_text("")
    with lock_lab(tmp_path), pytest.raises(LabError, match="another `drumline lab run` is at work"):
        run(1, tmp_path)
    with lock_lab(tmp_path):
        pass


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report of lab 2, without its figures, which is in order."""
    monkeypatch.setattr("drumline.report.page.render.render_inline", lambda *_: "<svg></svg>")
    lab, results = load_lab(2), make_runs(load_lab(2), tmp_path, documents=documents())
    made = build_report(lab, results, {}, "mine", Language.ZH)
    (tmp_path / "data").mkdir()
    for table in made.tables:
        (tmp_path / "data" / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    page = render_html(made, version="1", made="now")
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    manifest = {"format": 1, "drumline": "0", "lab": 2, "lang": "zh", "files": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def problems(folder, *, rerun=False):
    """Verify a report; nothing is trained for it."""
    return verify_report(folder, rerun=rerun, watch=lambda _: None).problems


@pytest.mark.slow
def test_a_damaged_report_is_told_whatever_was_done_to_it(report):
    assert problems(report) == []
    findings = report / "data" / "findings.csv"
    whole = findings.read_bytes()
    for text in (whole.decode().encode("utf-16"), b"\x00" + whole, b""):
        findings.write_bytes(text)
        assert "data/findings.csv, line 1: the runs give other numbers" in problems(report)
    assert any(one.endswith("are not those in findings.csv") for one in problems(report))
    findings.write_bytes(whole)
    page = report / "report.html"
    text = page.read_text(encoding="utf-8")
    for row in ("x", "", "999", "-1", "²"):
        page.write_text(re.sub('data-row="[0-9]+"', f'data-row="{row}"', text), encoding="utf-8")
        assert any("findings.csv has no such cell" in one for one in problems(report))
        assert len(problems(report)) < 60
    page.write_bytes(b"\xa2\xff")
    (only,) = problems(report)
    assert only.startswith("report.html has 0 numbers where the runs give")


def test_a_number_is_followed_to_the_runs_also_where_page_and_file_agree(report):
    """Whoever changes a page or a file can write its sha256 into the manifest, too."""
    page = report / "report.html"
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"(<data [^>]*>)\d", r"\g<1>999", text, count=1), encoding="utf-8")
    (only,) = problems(report)
    assert "report.html says '999" in only
    assert "where the runs give" in only
    page.write_text(re.sub("(</data>[^<]*)。</p>", r"\g<1>？</p>", text, count=1), encoding="utf-8")
    (only,) = problems(report)  # no number was touched, but a word beside it
    assert "？' where the runs give" in only
    page.write_text(text, encoding="utf-8")
    experiments = report / "data" / "experiments.csv"
    experiments.write_text(experiments.read_text().replace("name,", "nom,"))
    assert "data/experiments.csv, line 1: the runs give other numbers" in problems(report)


@pytest.mark.parametrize("rows", [3, [3], [None], {"a": 1}])
def test_runs_of_another_shape_are_told(report, rows):
    (report / "runs" / "collectives.json").write_text(json.dumps({"rows": rows}))
    assert any("cannot be read as this version's" in one for one in problems(report))


@pytest.mark.parametrize("experiments", [None, 3, ["x", {}], [{"name": "mean-gradients"}]])
def test_without_weights_nothing_is_said_about_training_again(report, experiments):
    manifest = json.loads((report / "manifest.json").read_text())
    (report / "manifest.json").write_text(json.dumps({**manifest, "experiments": experiments}))
    assert any("notes no weights to compare with" in one for one in problems(report, rerun=True))
