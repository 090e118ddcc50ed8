"""`drumline.train` and `Run` outside notebooks: one run, and all that can be asked of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import drumline
from drumline.core.errors import CheckpointError, SpecError, UsageError
from drumline.interactive.display import in_notebook
from drumline.interactive.run import read_spec_source
from drumline.interactive.session import _kept_agents
from drumline.models import weights_sha256
from drumline.trainer import summary

SPEC = {"model": {"name": "mlp"}, "workers": 2, "data": {"samples": 600, "batch": 60}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    yield drumline.train(SPEC, "epochs=2", out=tmp_path_factory.mktemp("runs") / "mine-1")
    _kept_agents(os.getpid()).close()
    _kept_agents.cache_clear()


def test_it_has_what_the_run_directory_tells(run):
    assert run.summary["steps"] == len(run.losses) == 20
    assert [score.step for score in run.scores] == [10, 20]
    assert run.scores[-1].accuracy == run.summary["accuracy"]
    assert run.spec.data.batch == 60
    assert repr(drumline.Run(run.path)) == repr(run)


def test_it_shows_itself(run):
    text, ledger = repr(run), run.ledger()
    assert repr(ledger) in text
    assert "test accuracy" in text
    assert "where the time went (ms per step, over 19 steps)" in repr(ledger)
    assert "</pre>" in run._repr_html_()
    assert len(ledger.ranks) == 2
    assert ledger.ranks[0].total_s > 0


def test_its_figure_has_the_curves_and_bars_of_all_runs(run):
    losses, bars = run.plot(run).axes
    assert len(losses.lines[0].get_xdata()) > 0
    assert [label.get_text() for label in bars.get_yticklabels()] == ["mine-1  0", "mine-1  1"] * 2
    assert run.plot()._repr_png_().startswith(b"\x89PNG")


def test_its_model_has_the_trained_weights(run):
    model = run.model()
    assert weights_sha256(model) == run.summary["weights_sha256"]
    assert not model.training
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_the_model_of_a_pipeline_is_whole_and_needs_no_data(tmp_path, monkeypatch):
    cut = ("max_steps=2", "evaluate=false", "strategy=pipeline", "mesh={pipeline: 2}")
    split = drumline.train(SPEC, *cut, out=tmp_path / "cut-1")
    trained = split.summary["weights_sha256"]
    with monkeypatch.context() as without_data:
        without_data.setattr(summary, "build_dataset", None)
        assert weights_sha256(split.model()) == trained
    (split.path / "summary.json").unlink()  # as while it still trains
    assert weights_sha256(split.model()) == trained


def test_a_run_without_a_checkpoint_has_no_model(run, tmp_path):
    (tmp_path / "spec.yaml").write_text((run.path / "spec.yaml").read_text())
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        drumline.load_model(tmp_path)


def test_a_spec_comes_in_any_form(tmp_path):
    given = read_spec_source(SPEC, ["data.batch=30"])
    assert (given.data.batch, given.data.samples) == (30, 600)
    assert SPEC["data"]["batch"] == 60  # not changed
    assert read_spec_source(given, ["seed=3"]).seed == 3
    assert read_spec_source("model=mlp", ["workers=3"]).workers == 3
    file = tmp_path / "spec.yaml"
    file.write_text("workers: 5\n")
    assert read_spec_source(file).workers == read_spec_source(str(file)).workers == 5
    assert read_spec_source(None).model.name == "cnn"
    for wrong in ({"modle": "cnn"}, "modle=cnn"):
        with pytest.raises(SpecError, match="did you mean 'model'"):
            read_spec_source(wrong)


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped(run, capsys):
    longer = drumline.train(f"resume={run.path}", "epochs=3")
    assert longer.path == run.path
    assert longer.summary["steps"] == 30
    shown = capsys.readouterr().out
    assert "going on from the checkpoint of step 20" in shown
    assert "epoch 1 " not in shown


def test_errors_are_exceptions(tmp_path):
    with pytest.raises(SpecError, match="unknown key 'modle'"):
        drumline.train("modle=cnn")
    with pytest.raises(UsageError, match="no run 'nonsense'"):
        drumline.Run("nonsense")
    assert not Path("runs/nonsense").exists()
    assert not in_notebook()
