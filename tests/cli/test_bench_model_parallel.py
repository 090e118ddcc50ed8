"""`drumline bench model-parallel` as a user calls it: real runs, few steps, a small model."""

from __future__ import annotations

import csv
import json
import signal
import time

import pytest

from namespaces import need_namespaces

SMALL = ("model.width=32", "model.layers=2", "data.sequence=16", "data.samples=400", "steps=4")
ACTIVATIONS = 32 * 16 * 32 * 4
"""bytes that cross a cut of that model in a step: batch × sequence × width × float32"""
LOGITS = 32 * 16 * 65 * 4
"""by RPC they go back to the leader, and their gradients to the last part"""
TIED = 65 * 32 * 4
"""the embedding, which is both first and last: letters × width × float32"""


def bench(drumline, *words, code=0):
    answer = drumline("bench", "model-parallel", *words)
    assert answer.code == code, answer.err
    return answer


@pytest.mark.slow
def test_forms_on_this_host(drumline):
    answer = bench(
        drumline,
        *(*SMALL, "forms=alone,rpc,pipeline,tensor", "microbatches=4", "schedules=1f1b", "--json"),
        *("--csv", "rows.csv", "--figure", "f.png", "--traces", "traces", "--out", "kept"),
    )
    assert answer.err.splitlines() == [
        "case 1 of 4: alone",
        "case 2 of 4: rpc ×4",
        "case 3 of 4: pipeline 1f1b ×4",
        "case 4 of 4: tensor",
    ]
    document = answer.json
    alone, rpc, pipeline, tensor = document["rows"]
    assert (document["failed"], document["skipped"]) == ([], [])
    assert [row["ranks"] for row in document["rows"]] == [1, 2, 2, 2]
    for row in document["rows"]:
        assert len(row["losses"]) == 4
        assert row["losses"] == pytest.approx(alone["losses"], abs=1e-4)
        assert row["loss_difference"] <= 1e-4
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
        assert row["speedup"] == pytest.approx(alone["median_s"] / row["median_s"])
        assert len(row["peak_bytes"]) == row["ranks"]
        assert min(row["peak_bytes"]) > 0
        assert row["link_bytes"] is None
    assert pipeline["bubble_theory"] == 0.2
    assert 0 < pipeline["bubble"] < 1
    assert len(pipeline["bubble_idle_s"]) == len(pipeline["idle_s"]) == 2
    assert pipeline["payload_bytes"] == [ACTIVATIONS + TIED] * 2
    assert rpc["payload_bytes"] == [ACTIVATIONS + LOGITS + TIED] * 2
    assert len(pipeline["cuts"]) == 2
    assert alone["bubble"] is tensor["bubble"] is None
    assert alone["idle_s"] == [0], "it has nobody to wait for"
    with (drumline.folder / "rows.csv").open() as file:
        assert [line["case"] for line in csv.DictReader(file)] == [
            row["case"] for row in document["rows"]
        ]
    assert (drumline.folder / "f.png").read_bytes().startswith(b"\x89PNG")
    trace = json.loads((drumline.folder / "traces" / "pipeline-1f1b-x4.json").read_text())
    assert {"forward 0", "backward 3"} <= {event["name"] for event in trace["traceEvents"]}
    kept = drumline.folder / "kept" / "pipeline-1f1b-x4"
    shown = drumline("show", str(kept), COLUMNS="80")
    assert "measured, 20% by theory (2 stages, 4 microbatches)" in shown.out
    again = bench(drumline, *SMALL, "forms=alone", "--out", "kept", code=2)
    assert "exists already; name a folder of its own" in again.err


@pytest.mark.slow
def test_bytes_that_leave_simulated_nodes(drumline):
    need_namespaces()
    words = ("nodes=2", "link=100mbit", "forms=pipeline", "microbatches=4", "schedules=1f1b")
    (row,) = bench(drumline, *SMALL, *words, "model.tied=false", "--json").json["rows"]
    assert row["speedup"] is row["loss_difference"] is None
    for sent in row["link_bytes"]:  # activations one way, their gradients the other
        assert ACTIVATIONS <= sent <= 1.2 * ACTIVATIONS + 10_000


@pytest.mark.slow
def test_a_case_that_fails_is_named_and_the_others_are_shown(drumline):
    words = ("model=faulty:build", "data.samples=400", "batch=40", "steps=4", "microbatches=1")
    forms = "forms=alone,data,pipeline"
    answer = drumline(
        *("bench", "model-parallel", *words, forms), FAULT="1:3:raise", COLUMNS="80", NO_COLOR="1"
    )
    assert answer.code == 1
    assert "1 of 3 cases failed:\ndata: rank 1 failed:" in answer.err
    assert "ValueError: the sky fell" in answer.err
    assert "give --out DIR to keep the logs" in answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "faulty:build on mnist-mini, batch 40, 4 steps: alone, and on 2 ranks"
    assert lines[3].startswith("alone ")
    assert lines[4].startswith("pipeline ×1 ")
    assert max(map(len, lines)) <= 80


def test_a_model_that_cannot_be_cut_so_often(drumline):
    """Its layers are known to the ranks alone."""
    words = ("model=faulty:build", "data.samples=400", "batch=40", "steps=2", "workers=3")
    refused = bench(drumline, *words, "forms=pipeline", "microbatches=1", code=2)
    assert refused.err.splitlines()[-1].startswith("drumline: pipeline ×1: ")


def test_ctrl_c_leaves_nothing_behind(drumline):
    process = drumline.start("bench", "model-parallel", *SMALL, "steps=10000")
    while "case 1" not in process.stderr.readline():
        time.sleep(0.01)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "drumline: interrupted in case 1 of 9: alone; nothing is left running"
    assert not (drumline.folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("forms=alone,pipelines",), "did you mean 'pipeline'?"),
        (("forms=mixed",), "takes 4 ranks or more"),
        (("schedules=zero",), "must be gpipe, 1f1b or interleaved"),
        (("microbatches=0",), "must be 1 or more"),
        (("engine=torch",), "unknown key 'engine'; did you mean 'engines'?"),
        (("rounds=3",), "unknown key 'rounds'"),
        (("steps=1",), "must be 2 or more"),
        (("link=1gbit",), "set nodes=2 or more"),
        (("spec.yaml",), "is not key=value; write it as in drumline bench model-parallel"),
        (("--figure", "a.pdf"), "expected a name that ends in .png or .svg"),
        (("--traces", "faulty.py"), "that is a file; name a folder"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(drumline, words, why):
    answer = bench(drumline, *words, code=2)
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert why in line
