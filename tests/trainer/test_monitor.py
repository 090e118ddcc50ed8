"""Scores, loggers, callbacks and stopping in real runs of several ranks."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from drumline.comm.group import BackendChoice
from drumline.core.rundir import RunDir
from drumline.trainer.evaluation import evaluate
from drumline.trainer.summary import write_summary
from training import train_in

JOB = {
    "model": "own_parts:net",
    "data": {"name": "own_parts:points", "batch": 7, "held_out": 23},
    "metrics": ["mae", "rmse", "own_parts:bias", "own_parts:F1"],
    "optimizer": {"name": "sgd", "lr": 0.05},
    "dtype": "float64",
}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(run, rank, kind):
    return [event for event in lines_of(run.rank_events(rank)) if event["event"] == kind]


def score(rank, world_size):
    """Train a little; return the scores, and those of a plain look at the whole set."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        trainer, scores = train_in(run, rank, world_size, {**JOB, "epochs": 1})
    data = trainer.context.data
    plain = []
    for split in (data.test, data.validation):
        inputs, targets = split.batch(np.arange(len(split)))
        with torch.no_grad():
            errors = trainer.runner.model(inputs).flatten() - targets
        plain.append(
            {
                "mae": errors.abs().mean(),
                "rmse": errors.square().mean().sqrt(),
                "bias": errors.mean(),
            }
        )
    again = evaluate(trainer.runner, data.test)
    assert again == scores.test
    return scores.to_event(), [
        {name: float(value) for name, value in each.items()} for each in plain
    ]


def test_scores_are_of_the_whole_set_on_any_number_of_ranks(run_ranks):
    (alone, _), three = run_ranks(score, 1)[0], run_ranks(score, 3)
    for event, (test, held_out) in three:
        assert event["metrics"].keys() == {"mae", "rmse", "bias", "f1"}
        assert "accuracy" not in event
        for name in test:
            assert event["metrics"][name] == pytest.approx(test[name], abs=1e-12)
            assert event["validation"][name] == pytest.approx(held_out[name], abs=1e-12)
        assert event["metrics"]["f1"] == alone["metrics"]["f1"]


def summarise_without_data(rank, world_size, folder):
    """Train, lose the data, write the summary."""
    run = RunDir(Path(folder))
    trainer, scores = train_in(run, rank, world_size, {**JOB, "epochs": 1})
    trainer.context.data.train.data.tensors = ()
    backend = BackendChoice(backend="gloo", why="")
    return write_summary(run, trainer.monitor, trainer.state, scores, backend)["given"]


def test_a_summary_reads_no_data(run_ranks, tmp_path):
    assert run_ranks(summarise_without_data, 1, str(tmp_path)) == [
        {"outputs": 1, "classes": 1, "features": (3,)}
    ]


def stop_and_note(rank, world_size, folder):
    run = RunDir(Path(folder) / "run")
    callbacks = [
        {"name": "own_parts:StopAfter", "epochs": 2, "rank": 1},
        {"name": "own_parts:Notes", "path": f"{folder}/notes"},
    ]
    loggers = [{"name": "own_parts:Lines", "to": "../lines"}, "own_parts:Broken", "tensorboard"]
    given = {"callbacks": callbacks, "loggers": loggers, "epochs": 5, "log_every": 10}
    trainer, _ = train_in(run, rank, world_size, {**JOB, **given})
    return trainer.state.step


def test_callbacks_and_loggers_are_called_where_it_is_said(run_ranks, tmp_path):
    assert run_ranks(stop_and_note, 2, str(tmp_path)) == [30, 30], "one rank's wish ends all"
    for rank in (0, 1):
        notes = lines_of(tmp_path / f"notes.{rank}")
        kinds = [kind for kind, *_ in notes]
        assert kinds == ["begin", *["step"] * 15, "epoch", *["step"] * 15, "epoch", "end"]
        scores = ["bias", "f1", "mae", "rmse", "test_loss"]
        assert notes[16] == [
            "epoch",
            15,
            0,
            sorted([*scores, *(f"val_{s}" for s in ["loss", *scores[:4]])]),
        ]
    (start, *logged, finish) = lines_of(tmp_path / "lines")
    assert start == ["start", "run", "own_parts:net", None]
    assert [step for _, step, _ in logged] == [10, 15, 20, 30, 30]
    assert logged[0][2].keys() == {"step/loss", "step/ms", "step/lr"}
    epoch = logged[1][2]
    assert {"loss", "lr", "test_loss", "mae", "val_mae", "samples_per_s"} <= epoch.keys()
    assert {
        f"time/{name}_ms" for name in ("step", "data", "compute", "wait", "transfer")
    } <= epoch.keys()
    assert epoch["memory/peak_bytes"] > 0
    assert finish[0] == "finish"
    (broken, stopped) = [event["text"] for event in events_of(RunDir(tmp_path / "run"), 0, "note")]
    why = "ConnectionError: the server is away"
    assert broken == f"logger own_parts:Broken failed ({why}); the run goes on without it"
    assert stopped == "stopped after step 30: a callback asked for it"


def stop_early(rank, world_size, folder):
    """Learn nothing: the first epoch stays the best, however many follow."""
    run = RunDir(Path(folder))
    given = {
        **JOB,
        "optimizer": {"name": "sgd", "lr": 1e-12},
        "epochs": 9,
        "checkpoint": {"keep": 1},
    }
    stopping = {"metric": "mae", "patience": 2, "min_delta": 0.01}
    trainer, _ = train_in(run, rank, world_size, {**given, "early_stopping": stopping})
    return trainer.state.step, trainer.state.scores


def test_early_stopping_ends_all_ranks_and_keeps_the_best_beside_the_newest(run_ranks, tmp_path):
    results = run_ranks(stop_early, 2, str(tmp_path))
    assert results[0] == results[1]
    step, scores = results[0]
    assert (step, len(scores)) == (45, 3)
    best = min(scores, key=lambda epoch: epoch["mae"])["step"]
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == sorted({f"step-{best:09d}", "step-000000045"})
    (note,) = [event["text"] for event in events_of(RunDir(tmp_path), 0, "note")]
    assert note == "stopped after step 45: no better mae for 2 epochs"


def test_a_run_goes_on_from_its_best_checkpoint(drumline, tmp_path):
    """With a learning rate of nothing the first of three epochs stays the best."""
    job = ("model=linear", "data.samples=256", "optimizer.lr=1e-12", "strategy=allreduce")
    first = drumline.train(*job, "checkpoint.best=accuracy", "epochs=3")
    assert first["best"].items() >= {"step": 2, "accuracy": first["accuracy"]}.items()
    assert Path(first["best"]["checkpoint"]).is_dir()
    again = drumline.train("resume=run-1@best")
    log = tmp_path / "runs" / "run-1" / "events" / "rank-0.jsonl"
    assert [event["step"] for event in lines_of(log) if event["event"] == "restore"] == [2]
    assert again["weights_sha256"] == first["weights_sha256"]
    assert not list((tmp_path / "runs" / "run-1" / "checkpoints").glob("later-*"))
    wrong = drumline("train", "resume=run-1@3")
    assert wrong.code == 2
    assert "run-1 has no checkpoint of step 3, but of 2, 4 and 6" in wrong.err
