"""Whole runs through the command line: the ledger, divergence, full disks, results on disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import JOB


def test_a_slow_rank_is_named_with_what_it_cost(drumline):
    """The delay is much longer than a step of this model, so nearly all lost time is rank 1's."""
    words = ["model=linear", "strategy=allreduce", "slow_ranks.1.delay_ms=400", "max_steps=10"]
    result = drumline.train(*words)
    rows = result["ledger"]["ranks"]
    assert rows[1]["lost_time_share"] >= 0.9, rows
    assert rows[0]["wait_ms"] == pytest.approx(400, rel=0.25)
    assert rows[1]["wait_ms"] < 40
    shown = drumline("show", "run-1")
    assert "of that was waiting for rank 1" in shown.out.replace("\n", " ")


@pytest.mark.slow
def test_the_ledger_adds_up_for_every_strategy(drumline):
    for kind in ("ddp", "chunked_ring", "parameter_server"):
        ledger = drumline.train(f"strategy={kind}", "max_steps=12")["ledger"]
        assert ledger["steps"] == 11, "the first step warms up"
        for row in ledger["ranks"]:
            parts = row["data_ms"] + row["compute_ms"] + row["exposed_ms"]
            assert parts == pytest.approx(row["total_ms"], abs=0.01)
            assert row["exposed_ms"] <= row["wait_ms"] + row["transfer_ms"] + 0.01
            assert row["transfer_ms"] > 0
            assert row["compute_ms"] > 0


def test_nan_stops_with_step_rank_and_tensor(drumline):
    answer = drumline("train", *JOB, "workers=3", "epochs=2", FAULT="2:7:nan")
    assert answer.code == 1
    assert answer.err.startswith("drumline: the loss is nan at step 7 on rank 2; the first bad")
    assert "the output of dropout (Dropout)" in answer.err
    assert answer.err.count("\n") == 1, "one sentence"


@pytest.mark.slow
def test_a_diverging_learning_rate_names_the_broken_parameter(drumline):
    answer = drumline("train", *JOB, "optimizer.lr=1e30", "epochs=2")
    assert answer.code == 1
    assert "lower the learning rate" in answer.err


@pytest.mark.slow
def test_a_full_disk_loses_nothing(drumline):
    """In a mount namespace of its own: a tiny file system that fills up during the run."""
    probe = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no user namespaces here: cannot make a small disk")
    small = drumline.folder / "small"
    small.mkdir()
    job = f"model=linear strategy=allreduce data.samples=400 epochs=1 --out {small}/run --json"
    # leave room for a line in the logs, but not for a checkpoint
    fill = (
        f"free=$(df --output=avail -k {small} | tail -1); "
        f"head -c $(( (free - 24) * 1024 )) /dev/zero > {small}/ballast"
    )
    script = (
        f"mount -t tmpfs -o size=1500k tmpfs {small} || exit 77; "
        f"{sys.executable} -m drumline train {job} > {drumline.folder}/first.json || exit 1; "
        f"{fill}; "
        f"{sys.executable} -m drumline train resume={small}/run epochs=2 --json; echo code $?; "
        f"ls -A {small}/run/checkpoints; rm {small}/ballast; "
        f"{sys.executable} -m drumline train resume={small}/run epochs=2 --json > "
        f"{drumline.folder}/second.json; echo code $?"
    )
    done = subprocess.run(
        ["unshare", "-Urm", "bash", "-c", script],
        cwd=drumline.folder,
        env=drumline.environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "code 1\nstep-000000004\ncode 0" in done.stdout, done.stdout + done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((drumline.folder / "second.json").read_text())["steps"] == 8


def test_a_read_only_folder_is_named(drumline):
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here: cannot mount a read-only folder")
    command = f"{sys.executable} -m drumline train strategy=allreduce"
    done = subprocess.run(
        ["unshare", "-Urm", "bash", "-c", f"mount -t tmpfs -o ro tmpfs . && cd $PWD && {command}"],
        cwd=drumline.folder,
        env=drumline.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert "--out" in done.stderr
    assert done.stderr.count("\n") == 1


def test_everything_is_in_the_run_directory(drumline):
    result = drumline.train("model=mlp", "epochs=2", "data.samples=1000", "strategy=ring")
    run = Path(result["run_dir"])
    names = {path.name for path in run.iterdir()}
    assert names == {
        "checkpoints",
        "coverage.json",
        "events",
        "logs",
        "manifest.json",
        "spec.yaml",
        "summary.json",
        "tensorboard",
    }
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["packages"]["torch"].startswith("2.")
    coverage = json.loads((run / "coverage.json").read_text())
    assert coverage["run"]["seen_share"] == 1.0
    assert [row["draws"] for row in coverage["run"]["ranks"]] == [1000, 1000]
    scalars = read_scalars(run / "tensorboard")
    assert [step for step, _ in scalars["accuracy"]] == [8, 16]
    assert scalars["accuracy"][-1][1] == pytest.approx(result["accuracy"], abs=1e-6)
    assert len(list((run / "checkpoints").iterdir())) == 2


def read_scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


SHAPES = """
from torch import nn
def five(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 5))
def nothing(): return nn.Flatten()
"""


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (["model=nowhere:build"], "nowhere", 2),
        (["model=faulty:buidl"], "build", 2),
        pytest.param(["model.droput=0"], "dropout", 2, marks=pytest.mark.slow),
        pytest.param(["model=a.b:"], "a.b:", 2, marks=pytest.mark.slow),
        (["model=shapes:five"], "[64, 5] where [64, classes] is needed", 2),
        pytest.param(["model=shapes:nothing"], "no parameter to train", 2, marks=pytest.mark.slow),
        (["backend=nccl"], "backend=auto", 2),
        pytest.param(["data.samples=1", "data.batch=8"], "sample", 2, marks=pytest.mark.slow),
        (["data=mnist", "data.path=."], "drumline data fetch mnist", 1),
        pytest.param(["device=cuda"], "device=cpu", 2, marks=pytest.mark.slow),
        (["--out", "/proc/nowhere"], "cannot make a run directory", 1),
        (["data.partition.kind=by_label", "data.partition.labels=[[0],[42]]"], "42", 2),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(drumline, words, sentence, code):
    (drumline.folder / "shapes.py").write_text(SHAPES)
    answer = drumline("train", "strategy=allreduce", "max_steps=2", *words)
    assert answer.code == code, answer.err
    assert sentence in answer.err
    assert answer.err.count("\n") == 1, answer.err
    runs = drumline.folder / "runs"
    assert not runs.exists() or not list(runs.iterdir())


def test_a_corrupt_data_file_is_named(drumline, shared_data):
    folder = drumline.folder / "mnist"
    folder.mkdir()
    for file in (shared_data / "mnist").iterdir():
        (folder / file.name).write_bytes(file.read_bytes()[:5000])
    answer = drumline("train", "data=mnist", f"data.path={folder}", "strategy=allreduce")
    assert answer.code == 1
    assert "ubyte.gz" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["precision=bf16", "model=cnn"],
        ["optimizer=gd", "optimizer.lr=0.5", "max_steps=4"],
        ["data.partition=sampling"],
        ["schedule=cosine", "schedule.warmup_steps=3", "clip_norm=1", "accumulate=2"],
        ["model=lenet", "optimizer=adam", "optimizer.lr=0.001", "optimizer.engine=torch"],
    ],
)
def test_forms_of_training_learn(drumline, words):
    result = drumline.train(
        "strategy=chunked_ring", "model=mlp", "max_steps=16", "data.samples=2000", *words
    )
    assert result["loss"] < 2.3
    assert result["accuracy"] > 0.15
