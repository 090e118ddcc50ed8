"""Lab 2, written up from documents and run directories that nobody measured."""

from __future__ import annotations

import json
import re

import pytest

from drumline.core.errors import DataError, SpecError
from drumline.labs.catalogue import find_lab, read_code
from drumline.labs.communication.chapters import LAB
from drumline.labs.experiment import LabSettings, Training
from drumline.report.page.blocks import Picture
from drumline.report.plots import FigureStyle
from lab_documents import documents
from lab_runs import make_runs, quotes_of, words_of, wrong_quotes

BAD = re.compile(r"\b(nan|None|inf)\b")


def made(tmp_path, **more):
    return make_runs(LAB, tmp_path, documents=documents(), **more)


def test_both_languages_say_what_was_measured(tmp_path):
    results = made(tmp_path)
    numbers = []
    for lang in ("en", "zh"):
        found = LAB.write_up(results, lang)
        assert wrong_quotes(found) == []
        assert not BAD.search(words_of(found, lang))
        numbers.append(sorted((q.table, q.row, q.column) for q in quotes_of(found)))
        pictures = [block for block in found.results if isinstance(block, Picture)]
        assert [one.name for one in pictures] == [
            "sizes",
            "splits",
            "strategies",
            "delays",
            "curves",
        ]
    assert numbers[0] == numbers[1]
    said = words_of(LAB.write_up(results, "en"), "en")
    assert "With 4 ranks ring moved 2.0× the bytes of chunked_ring: 3.0× the tensor" in said
    assert "native all_reduce was the fastest way" in said
    assert "to within 10 % in half of the 18 cases" in said
    assert "a step took from 2.2× (1.9–2.6) by parameter_server to 3.0× (2.5–3.7) by" in said
    style = FigureStyle(lang="en")
    for one in pictures:
        with style.drawing():
            assert one.draw(style).axes


def test_a_sum_that_ran_away_is_a_result(tmp_path):
    results = made(tmp_path, diverged=["sum-parameters"])
    found = LAB.write_up(results, "en")
    assert wrong_quotes(found) == []
    assert "no number any more at step 1: each step multiplies" in words_of(found, "en")
    runs = {one.name: one for one in LAB.experiments(LabSettings())}
    assert runs["sum-parameters"].may_diverge
    assert not runs["mean-parameters"].may_diverge


def test_bytes_that_nobody_counted_are_not_compared(tmp_path):
    results = made(tmp_path)
    file = tmp_path / "runs" / "collectives.json"
    document = json.loads(file.read_text())
    for row in document["rows"]:
        row["payload_bytes"] = [0]
    file.write_text(json.dumps(document))
    for log in (tmp_path / "runs").glob("compress-*/events/*.jsonl"):
        log.write_text(log.read_text().replace('"all_reduce", 4000', '"all_reduce", 0'))
    said = words_of(LAB.write_up(results, "en"), "en")
    assert "the bytes of chunked_ring" not in said
    assert "fp16 sent" not in said


@pytest.mark.parametrize("left", [(), ("collectives",), ("even-allreduce", "late-allreduce")])
def test_what_failed_is_left_out(left, tmp_path):
    without = [one.name for one in LAB.experiments(LabSettings()) if one.name not in left]
    found = LAB.write_up(made(tmp_path, without=without), "zh")
    assert wrong_quotes(found) == []
    assert bool(found.results) == bool(left)


def test_the_fastest_is_told_from_all_others(tmp_path):
    results = made(tmp_path)
    file = tmp_path / "runs" / "collectives.json"
    document = json.loads(file.read_text())
    for row in document["rows"]:
        if row["algorithm"] != "native":  # slower by the median, but not always
            row["low_s"] = 0.0
    file.write_text(json.dumps(document))
    said = words_of(LAB.write_up(results, "en"), "en")
    assert "the fastest way" not in said
    assert "At 4MiB on 4 ranks native all_reduce took" in said
    assert "At 4MiB on 4 ranks, 0.5 % (ring) to 1.9 % (native all_reduce) of a call was" in said


def test_more_nodes_than_a_bench_takes_are_refused():
    with pytest.raises(SpecError, match="nodes=20 workers=1 makes 20 ranks"):
        LAB.experiments(LabSettings(nodes=20))


def test_without_all_of_mnist_the_long_form_takes_the_small_one(monkeypatch):
    def refuse(_):
        raise DataError("nothing here")

    monkeypatch.setattr("drumline.labs.experiment.find_files", refuse)
    runs = [one for one in LAB.experiments(LabSettings(full=True)) if isinstance(one, Training)]
    assert {one.spec.data.name for one in runs} == {"mnist-mini"}


def test_the_code_it_shows_is_there():
    for code in read_code(find_lab(2)):
        assert code.text
