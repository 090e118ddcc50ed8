"""`drumline bench scaling` as a user calls it: real runs, few steps, a small model."""

from __future__ import annotations

import csv

import pytest

from namespaces import need_namespaces

SMALL = ("model=linear", "data.samples=400", "batch=40", "steps=5")


def bench(drumline, *words, code=0):
    answer = drumline("bench", "scaling", *words, timeout_s=300, COLUMNS="80")
    assert answer.code == code, answer.err
    return answer


@pytest.mark.slow
def test_one_and_two_workers(drumline):
    words = (*SMALL, "workers=2,1", "kinds=chunked_ring", "repeats=2", "mode=weak")
    files = ("--csv", "rows.csv", "--figure", "f.png", "--out", "kept")
    answer = bench(drumline, *words, *files, "--json")
    assert answer.err.splitlines() == [
        "case 1 of 4: alone, round 1",
        "case 2 of 4: weak chunked_ring ×2, round 1",
        "case 3 of 4: weak chunked_ring ×2, round 2",
        "case 4 of 4: alone, round 2",
    ]
    document = answer.json
    assert document["failed"] == []
    alone, two = document["rows"]
    assert (alone["case"], alone["batch"], alone["speedup"]) == ("alone", 40, 1)
    assert (two["case"], two["batch"], two["backend"]) == ("weak chunked_ring ×2", 80, "gloo")
    for row in (alone, two):
        assert (row["rounds"], row["threads"]) == (2, 1)
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["ranks"])
        parts = [row[f"lost_{name}"] for name in ("compute", "data", "wait", "transfer", "other")]
        assert sum(parts) == pytest.approx(row["lost"])
    assert two["wait_s"] + two["transfer_s"] > 0
    ratios = [2 * a / b for a, b in zip(alone["round_s"], two["round_s"], strict=True)]
    assert two["speedup"] == pytest.approx(sum(ratios) / 2)  # the median of two
    (fit,) = document["fits"]
    assert (fit["law"], fit["share"]) == ("Gustafson", pytest.approx(2 - two["speedup"]))
    with (drumline.folder / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["speedup"]) for line in lines] == [1, two["speedup"]]
    assert lines[1]["round_s"].split() == [str(seconds) for seconds in two["round_s"]]
    assert (drumline.folder / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (drumline.folder / "f.svg").read_text()
    kept = drumline.folder / "kept"
    assert two["run_dirs"] == [str(kept / f"weak-chunked_ring-x2-round-{n}") for n in (1, 2)]
    assert "chunked_ring" in drumline("show", two["run_dirs"][1]).out
    again = bench(drumline, *words, "--out", "kept", code=2)
    assert "exists already; name a folder of its own" in again.err
    assert not (drumline.folder / "runs").exists()


@pytest.mark.slow
def test_a_table_and_sentences(drumline):
    words = (*SMALL, "workers=2,3", "kinds=ddp", "repeats=1", "mode=strong")
    lines = bench(drumline, *words).out.splitlines()
    assert lines[0] == "linear on mnist-mini by workers=2,3: 5 steps, 1 round"
    assert any(line.startswith("ddp      ") for line in lines)
    assert "no 1 among the workers: all is held against 2 workers" in lines
    assert any(line.startswith("Amdahl, strong ddp: serial share ") for line in lines)
    assert any("strong ddp ×3: " in line for line in lines)


@pytest.mark.slow
def test_too_few_samples_for_a_grown_batch(drumline):
    words = (*SMALL, "workers=1,2", "kinds=ddp", "mode=weak", "batch=300", "repeats=1")
    answer = bench(drumline, *words, code=2)
    assert answer.err.splitlines()[-1].startswith(
        "drumline: weak ddp ×2: a step has 400 samples at most, not 600"
    )


@pytest.mark.slow
def test_nodes_behind_a_narrow_link(drumline):
    need_namespaces()
    words = ("model=mlp", "data.samples=400", "batch=40", "steps=5", "nodes=1,2", "link=20mbit")
    document = bench(
        drumline, *words, "kinds=chunked_ring", "mode=strong", "repeats=2", "--json"
    ).json
    _, two = document["rows"]
    assert (two["nodes"], two["workers"], two["backend"]) == (2, 1, "gloo")
    gradients = 4 * 784 * 10  # at least, whatever the model has besides; each node sends as many
    assert two["median_s"] > 0.9 * gradients * 8 / 20e6
    assert two["lost_transfer"] > 0
    assert 0 < two["efficiency"] < 1


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_are_shown(drumline):
    words = ("model=faulty:build", "data.samples=400", "batch=40", "steps=4", "repeats=1")
    answer = drumline(
        *("bench", "scaling", *words, "workers=1,2", "kinds=allreduce", "mode=strong"),
        FAULT="1:3:raise",
    )
    assert answer.code == 1
    assert "1 of 2 cases failed:\nstrong allreduce ×2, round 1: rank 1 failed:" in answer.err
    assert "give --out DIR to keep the logs" in answer.err
    assert "alone" in answer.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workers=0",), "must be 1 or more"),
        (("spec.yaml",), "is not key=value; write it as in drumline bench scaling"),
        (("--figure", "a.pdf"), "expected a name that ends in .png or .svg"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(drumline, words, why):
    answer = bench(drumline, *words, code=2)
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert why in line
