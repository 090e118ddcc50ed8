"""Loggers of a run by the command line: W&B and MLflow offline, one that a package offers."""

import json
import os
import sqlite3
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from drumline.core.errors import UsageError
from drumline.launcher.preflight import check_factories
from drumline.spec.load import load_spec
from drumline.trainer.loggers import protocol
from own_parts import Slow, Table

SECRET = "0123456789abcdef0123456789abcdef01234567"
JOB = ("model=mlp", "data.samples=640", "max_steps=5", "strategy=allreduce")
TESTS = os.pathsep.join(
    filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
)


def offer(folder, name, value):
    """Make what `pip install` leaves of a package with an entry point."""
    told = folder / "offers_a_logger-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: offers-a-logger\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[drumline.loggers]\n{name} = {value}\n")
    return os.pathsep.join([str(folder), TESTS])


@pytest.mark.slow
def test_wandb_and_mlflow_get_the_numbers_and_no_file_a_secret(drumline, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="not installed: pip install 'drumline[wandb]'")
    pytest.importorskip("mlflow", reason="not installed: pip install 'drumline[mlflow]'")
    store = f"file://{tmp_path}/store"
    wandb = "{name: wandb, project: digits, mode: offline}"
    loggers = f"[{wandb}, {{name: mlflow, experiment: digits, uri: '{store}'}}]"
    run = tmp_path / "runs" / "run-1"
    summary = drumline.train(*JOB, f"loggers={loggers}", WANDB_API_KEY=SECRET)
    (written,) = run.glob("wandb/offline-run-*/*.wandb")
    for word in (b"test_loss", b"accuracy", b"time/wait_ms", b"metrics.accuracy"):
        assert word in written.read_bytes(), word

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient(store)
    number = client.get_experiment_by_name("digits").experiment_id
    (found,) = client.search_runs([number])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run-1"
    assert found.data.params["data.samples"] == "640"
    assert found.data.metrics["accuracy"] == pytest.approx(summary["accuracy"])
    assert found.data.metrics["final.metrics.accuracy"] == pytest.approx(summary["accuracy"])
    assert not (run / "tensorboard").exists(), "it was not asked for"
    files = [path for path in run.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_an_installed_package_may_offer_a_logger(drumline, tmp_path):
    path = offer(tmp_path, "lines", "own_parts:Lines")
    drumline.train(*JOB, "loggers={name: lines, to: lines}", PYTHONPATH=path)
    lines = [json.loads(line) for line in (tmp_path / "runs/run-1/lines").read_text().splitlines()]
    assert [line[0] for line in lines] == ["start", "log", "finish"]
    assert lines[0][3] == "0", "rank 0 alone has it"
    assert lines[2][1]["metrics"]["accuracy"] == lines[1][2]["accuracy"]
    wrong = drumline("train", *JOB, "loggers=line", PYTHONPATH=path)
    assert wrong.code == 2
    assert "line is none of tensorboard, wandb, mlflow, lines, nor" in wrong.err
    assert "did you mean 'lines'?" in wrong.err


def test_nobody_waits_for_a_slow_logger(drumline, tmp_path):
    """Its calls take longer than a rank may wait for another; the run's end waits for it."""
    words = ("epochs=2", "data.batch=320", "timeout_s=2", "early_stopping=loss")
    slow = "loggers={name: 'own_parts:Slow', seconds: 3}"
    drumline.train("model=mlp", "data.samples=640", *words, slow, PYTHONPATH=TESTS)
    assert (tmp_path / "runs/run-1/slow").read_text().split() == ["2", "4", "finish"]


@pytest.fixture
def told():
    return []


@pytest.fixture
def loggers(told):
    return protocol.Loggers(SimpleNamespace(write=lambda kind, text: told.append(text)))


def test_a_logger_is_made_and_called_on_one_thread(tmp_path, loggers, told):
    """As SQLite asks for, which belongs to the thread that opened it."""
    loggers.add("table", lambda: Table(tmp_path))
    loggers.log(1, {"loss": 0.5})
    loggers.finish({})
    assert told == []
    with sqlite3.connect(tmp_path / "table") as table:
        assert table.execute("select * from seen").fetchall() == [(1, 0.5)]
    table.close()


@pytest.mark.parametrize("error", [UsageError("no such server"), SystemExit(3)])
def test_what_making_a_logger_raises_is_raised_by_adding_it(loggers, error):
    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        loggers.add("failing", fail)
    assert caught.value is error
    assert not loggers


def test_a_logger_that_takes_long_to_make_gets_its_numbers_later(monkeypatch, loggers, told):
    """Its server does not answer: the run goes on meanwhile."""
    monkeypatch.setattr(protocol, "_BUILD_S", 0.05)
    answers, seen = threading.Event(), []

    def connect():
        answers.wait(10)
        return SimpleNamespace(log=lambda *what: seen.append(what), finish=seen.append)

    loggers.add("far", connect)
    assert told == ["logger far is not ready after 0.05 s; the run goes on meanwhile"]
    loggers.log(1, {"loss": 0.5})
    assert seen == []
    answers.set()
    loggers.finish({})
    assert seen == [(1, {"loss": 0.5}), {}]


def test_a_logger_that_exits_is_noted_as_failed(loggers, told):
    loggers.add("leaves", lambda: SimpleNamespace(log=lambda *_: sys.exit("bye"), finish=print))
    loggers.log(1, {})
    loggers.finish({})
    assert told == ["logger leaves failed (SystemExit: bye); the run goes on without it"]


def test_a_logger_that_does_not_end_is_left_behind(tmp_path, monkeypatch, loggers, told):
    monkeypatch.setattr(protocol, "FINISH_S", 0.2)
    goes_on = threading.Event()
    stuck = SimpleNamespace(log=lambda *_: goes_on.wait(), finish=told.append)
    seen = tmp_path / "slow"
    loggers.add("stuck", lambda: stuck)
    loggers.add("quick", lambda: Slow(0, tmp_path))
    for step in (1, 2):
        loggers.log(step, {})
    loggers.finish({})
    goes_on.set()
    assert seen.read_text().split() == ["1", "2", "finish"]
    assert told[0] == "logger stuck was not done 0.2 s after the run; it may lack numbers"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("callbacks={name: 'own_parts:FailOn', rank: 1, how: raise}", "a callback divides by zero"),
        ("metrics=own_parts:on_one_rank", "ZeroDivisionError: division by zero"),
        ("callbacks={name: 'own_parts:FailOn', rank: 1, how: stall}", "rank 1 stopped answering"),
    ],
)
def test_a_part_that_fails_on_one_rank_is_named_with_the_rank(drumline, words, said):
    answer = drumline("train", *JOB, words, "timeout_s=3", PYTHONPATH=TESTS)
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 1 ")
    assert said in answer.err
    assert answer.err.count("Traceback") <= 1, "the others' loss of a peer is its consequence"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("loggers={name: wandb, api_key: abc}",), "api_key looks like a secret"),
        (("loss=own_parts:smooth",), "loss 'own_parts:smooth' cannot be found: .* 'smoothed'"),
        (("metrics=[nets:f]",), "metric 'nets:f' cannot be imported: no module 'nets'"),
        (("callbacks=own_parts:Note",), "callback 'own_parts:Note' cannot be found"),
        (("optimizer=lbfgs",), "LBFGS calls the model several times in a step"),
        (("optimizer=adamvv",), "there is no optimizer 'adamvv'; .* did you mean 'adam"),
        (("schedule=cosin",), "there is no schedule 'cosin'; .* did you mean 'cosine'"),
        (("early_stopping=loss", "evaluate=false"), "early_stopping looks at scores, and evaluate"),
        (("sync_batch_norm=true", "accumulate=2"), "sync_batch_norm is for whole batches"),
    ],
)
def test_what_is_wrong_is_told_before_ranks_start(words, said):
    with pytest.raises(UsageError, match=said):
        check_factories(load_spec(None, words))
