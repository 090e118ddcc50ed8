"""Pages about runs: what is there is shown, what is not is said, and nothing is made up."""

from __future__ import annotations

import json

import pytest

from drumline.core.rundir import RunDir
from drumline.report.page.folder import audit_numbers, read_citations, write_report
from drumline.report.page.translator import Language
from drumline.report.runs.page import build_runs_report
from drumline.report.runs.record import find_differences, read_record
from drumline.spec.load import validate_spec, write_run_spec

STEP = 10_000_000  # ns


def make_run(path, *, steps=8, slow=None, done=True, **words):
    """A run of two ranks as training leaves it; `slow`: a rank that comes late by half a step."""
    run = RunDir.create("x", root=path.parent, exact=path)
    spec = validate_spec({"name": path.name, "model": "mlp", "max_steps": steps, **words})
    write_run_spec(run, spec)
    run.write_json("manifest.json", {"started": "2026-01-01", "hosts": ["h"], "packages": {}})
    for rank in range(2):
        with run.rank_events(rank).open("w") as file:
            _write(file, "start", rank=rank, attempt=0)
            for step in range(1, steps + 1):
                began = step * 2 * STEP
                arrived = began + (STEP if rank == slow else STEP // 2)
                ended = began + STEP + STEP // 5
                _write(
                    file,
                    "step",
                    step=step,
                    epoch=0,
                    loss=2.0 / step + rank,
                    samples=32,
                    t=began,
                    data=1000,
                    total=ended - began + step * 1000,
                    blocked=[[arrived, ended]],
                    spans=[["allreduce", 4000, arrived, ended, []]],
                )
            if rank == 0:
                _write(file, "epoch", step=steps, epoch=0, loss=1.0, test_loss=0.5, accuracy=0.9)
            if done:
                _write(file, "end", step=steps, peak_bytes=1000 * (rank + 1), sent=1)
    if done:
        run.write_json("summary.json", {"accuracy": 0.9, "weights_sha256": "ab" * 32})
    return run


def _write(file, event, **fields):
    file.write(json.dumps({"event": event, **fields}) + "\n")


@pytest.fixture
def runs(tmp_path):
    good = make_run(tmp_path / "good", slow=1)
    other = make_run(tmp_path / "other", optimizer={"name": "adam"}, data={"batch": 64})
    crashed = make_run(tmp_path / "crashed", done=False, steps=3)
    with crashed.rank_events(1).open("a") as file:
        file.write('{"event":"step","step":4,"lo')  # torn by a kill
    old = make_run(tmp_path / "old")
    old.spec_file.write_text(old.spec_file.read_text() + "a_word_of_the_past: 3\n")
    empty = RunDir.create("x", root=tmp_path, exact=tmp_path / "empty")
    return [good, other, crashed, old, empty]


def test_what_can_be_shown_is_shown_in_both_languages(runs, tmp_path):
    records = [read_record(run) for run in runs]
    assert [point.loss for point in records[0].curve][:2] == [2.5, 1.5]
    assert records[0].curve[-1].samples == 8 * 64
    assert records[0].peak_bytes == [1000, 2000]
    assert [len(record.curve) for record in records] == [8, 8, 3, 8, 0]
    gaps = " / ".join(gap for record in records for gap in record.say_gaps(Language.EN))
    assert "crashed: has no result; its events end at step 3" in gaps
    assert "old: its spec is damaged, or of another version" in gaps
    assert "a_word_of_the_past" in gaps
    assert "empty: there is no spec.yaml / empty: no rank has logged anything" in gaps
    cited = []
    for lang in ("en", "zh"):
        page = write_report(build_runs_report(records, lang), tmp_path / lang, {})
        assert list(audit_numbers(tmp_path / lang)) == []
        text = page.read_text()
        assert "nan" not in text.lower().replace("finance", "")
        assert "None" not in text
        cited.append([(one.table, one.row, one.column) for one in read_citations(text)])
    assert cited[0] == cited[1]
    assert "等待进程 1" in text
    assert "crashed：没有结果，事件日志到第 3 步为止" in text


def test_one_run_and_one_without_anything(runs, tmp_path):
    for run in (runs[0], runs[-1]):
        report = build_runs_report([read_record(run)], "en")
        assert "differences" not in [section.slug for section in report.sections]
        write_report(report, tmp_path / f"page-{run.path.name}", {})
    assert str(report.summary) == "There is nothing to tell yet."


def test_events_are_read_where_the_spec_cannot_be(runs):
    for text in (
        b"x: [",
        b"just words",
        b"workers: many\nnodes: 2\n",
        b"\xff\xfe",
        b"x: 2026-99-99",
    ):
        runs[0].spec_file.write_bytes(text)
        record = read_record(runs[0])
        assert len(record.curve) == 8
        gaps = record.say_gaps(Language.EN)
        assert any("its spec is damaged, or of another version" in gap for gap in gaps)


def test_differences_are_those_of_the_words(runs):
    words = [read_record(run).spec_values for run in runs[:2]]
    found = find_differences(words)
    assert found["optimizer.name"] == ["sgd", "adam"]
    assert found["data.batch"] == ["128", "64"]
    assert "name" not in found
    assert find_differences([words[0], {**words[0], "name": "else"}]) == {}


def test_faster_is_said_only_where_quartiles_do_not_meet(runs):
    records = [read_record(run) for run in runs[:2]]
    said = " ".join(
        str(one)
        for section in build_runs_report(records, "en").sections
        if section.slug == "analysis"
        for one in section.blocks[0].said
    )
    assert "their quartiles overlap" in said
    assert "the same weights, bit for bit" in said
    assert "% of the time that ranks lost to communication was waiting for rank 1" in said


def analysis(*runs):
    """Return what a page about runs says of them."""
    report = build_runs_report([read_record(run) for run in runs], "en")
    found = [section for section in report.sections if section.slug == "analysis"]
    return " ".join(str(one) for section in found for one in section.blocks[0].said)


def test_one_step_has_no_quartiles(runs, tmp_path):
    one = make_run(tmp_path / "one", steps=1)
    said = analysis(one, runs[0])
    assert "one: the one step took 12 ms, and the test accuracy" in said
    assert "with one step alone, nothing is known about its scatter" in said
    assert "good: a step took 12 ms (12–12) (median and quartiles)" in said


def test_where_nobody_waited_no_rank_is_blamed(tmp_path):
    run = make_run(tmp_path / "even")
    for rank in range(2):  # both come to every collective at the same moment
        text = run.rank_events(0).read_text()
        run.rank_events(rank).write_text(text)
    assert "waiting for rank" not in analysis(run)


def test_the_error_that_ended_a_run_is_told(runs):
    crashed = runs[2]
    with crashed.rank_events(0).open("a") as file:
        _write(file, "error", message="a rank was lost", consequence=True)
    with crashed.rank_events(1).open("w") as file:
        _write(file, "error", message="of an attempt before")
        _write(file, "start", rank=1, attempt=1)
        _write(file, "error", message="the loss is nan\nat step 1")
    record = read_record(crashed)
    assert record.say_gaps(Language.EN) == [
        f"{record.name}: has no result; its events end at its start: the loss is nan"
    ]
    assert record.say_gaps(Language.ZH) == [
        f"{record.name}：没有结果，事件日志到开头为止：the loss is nan"
    ]


def test_ranks_without_a_step_in_common_are_told(runs):
    runs[0].rank_events(1).write_text("\xff garbage")
    record = read_record(runs[0])
    assert record.say_gaps(Language.EN) == [
        f"{record.name}: there is no step that all ranks have logged"
    ]


def test_specs_that_cannot_be_read_are_not_called_the_same(runs):
    for run in runs[:2]:
        run.spec_file.unlink()
    report = build_runs_report([read_record(run) for run in runs[:2]], "en")
    assert "differences" not in [section.slug for section in report.sections]
    # those that can be read are compared, without the others
    records = [read_record(run) for run in (runs[0], *runs[2:])]
    (section,) = [
        one for one in build_runs_report(records, "en").sections if one.slug == "differences"
    ]
    assert section.blocks[0].table.columns == ["key", "crashed", "old"]


def test_accuracies_are_compared_where_they_can_be(runs, tmp_path):
    """Not that of a run that was cut short, nor those of other data."""
    good, other, crashed = runs[:3]
    assert "other's test accuracy is +0.00 percentage points from good's" in analysis(good, other)
    said = analysis(good, crashed)
    assert "the test accuracy when it was last looked at was 90.00 %" in said
    assert "percentage points" not in said
    text = make_run(tmp_path / "text", model="gpt-mini", data={"name": "shakespeare"})
    assert "percentage points" not in analysis(good, text)
