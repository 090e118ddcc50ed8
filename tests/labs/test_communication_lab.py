"""Lab 2, written up from documents and run directories that nobody measured."""

from __future__ import annotations

import re

import pytest

from drumline.core.lab import LabSettings
from drumline.labs.communication import LAB
from drumline.labs.communication.experiments import KINDS
from drumline.report.page.blocks import Picture
from drumline.report.page.pen import Pen
from drumline.report.page.prose import Tongue
from drumline.report.page.source import excerpt
from lab_runs import make_runs, quotes_of, words_of, wrong_quotes

BAD = re.compile(r"\b(nan|None|inf)\b")


def collectives():
    """Two algorithms and the backend's own; chunked_ring is twice as fast as ring."""
    rows = []
    for ranks in (2, 4):
        for size in (4096, 2**20, 2**22):
            for algorithm, factor, moved in (
                ("native", 1.0, None),
                ("ring", 4.0, ranks - 1),
                ("chunked_ring", 2.0, 2 * (ranks - 1) / ranks),
            ):
                median = 1e-4 + factor * size / 1e9
                rows.append(
                    {
                        "algorithm": algorithm,
                        "ranks": ranks,
                        "size": size,
                        "asked_size": size,
                        "median_s": median,
                        "low_s": median * 0.95,
                        "high_s": median * 1.05,
                        "predicted_s": median * 1.1,
                        "prediction_error": 0.1,
                        "payload_bytes": None if moved is None else [int(moved * size * ranks)],
                    }
                )
    return {"rows": rows}


def aggregation():
    rows = [
        {
            "situation": situation,
            "kind": kind,
            "rank": rank,
            "compute_ms": 1.0,
            "wait_ms": 2.0 * rank * slow,
            "transfer_ms": 3.0,
            "step_ms": 10.0 * slow + number,
        }
        for situation, slow in (("even", 1), ("slow cpu", 2), ("slow link", 3))
        for number, kind in enumerate(KINDS)
        for rank in range(3)
    ]
    return {"rows": rows}


def made(tmp_path, **more):
    documents = {"collectives": collectives(), "aggregation": aggregation()}
    return make_runs(LAB, tmp_path, documents=documents, **more)


def test_both_languages_say_what_was_measured(tmp_path):
    results = made(tmp_path)
    numbers = []
    for lang in ("en", "zh"):
        found = LAB.write_up(results, Tongue(lang))
        assert wrong_quotes(found) == []
        assert not BAD.search(words_of(found, lang))
        numbers.append(sorted((q.sheet, q.row, q.column) for q in quotes_of(found)))
        pictures = [block for block in found.results if isinstance(block, Picture)]
        assert [one.name for one in pictures] == ["sizes", "strategies", "delays", "curves"]
    assert numbers[0] == numbers[1]
    said = words_of(LAB.write_up(results, Tongue("en")), "en")
    assert "With 4 ranks ring moved 2.0× the bytes of chunked_ring: 3.0× the tensor" in said
    assert "chunked_ring was the fastest of ours" in said
    assert "to within 10 % in half of the 18 cases" in said
    assert "With a slow link of one node, a step took 2.2× (parameter_server) to 3.0×" in said
    pen = Pen(lang="en")
    for one in pictures:
        with pen.drawing():
            assert one.draw(pen).axes


def test_a_sum_that_ran_away_is_a_result(tmp_path):
    results = made(tmp_path, diverged=["sum-parameters"])
    found = LAB.write_up(results, Tongue("en"))
    assert wrong_quotes(found) == []
    runs = {one.name: one for one in LAB.experiments(LabSettings())}
    assert runs["sum-parameters"].may_diverge
    assert not runs["mean-parameters"].may_diverge


@pytest.mark.parametrize("left", [(), ("collectives",), ("even-allreduce", "late-allreduce")])
def test_what_failed_is_left_out(left, tmp_path):
    without = [one.name for one in LAB.experiments(LabSettings()) if one.name not in left]
    found = LAB.write_up(made(tmp_path, without=without), Tongue("zh"))
    assert wrong_quotes(found) == []
    assert bool(found.results) == bool(left)


def test_the_code_it_shows_is_there():
    for path, symbol in LAB.code:
        assert excerpt(path, symbol).text
