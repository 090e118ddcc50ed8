"""`drumline report` and `drumline compare` on folders with unlucky names and contents."""

from __future__ import annotations

import shutil

import pytest

from drumline.cli.report import compare_command, report_command
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.report.page.translator import Language
from drumline.spec.load import validate_spec, write_run_spec
from metered_runs import ddp_logs, make_metered_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that was started, and has logged nothing."""
    monkeypatch.chdir(tmp_path)
    run = RunDir.create("run", root=tmp_path / "runs")
    write_run_spec(run, validate_spec({"name": "run", "model": "mlp"}))
    run.write_json("manifest.json", {})
    return run


def compare(first, second, capsys):
    compare_command(first, second, out=None, lang=Language.EN, as_json=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["key", "self", "run {x} [b]实验"])
def test_a_run_may_have_any_name(run, name, tmp_path, capsys):
    other = RunDir(tmp_path / name)
    shutil.copytree(run.path, other.path)
    write_run_spec(other, validate_spec({"name": "x", "model": "cnn"}))
    out = compare("run-1", name, capsys)
    assert "model.name" in out
    assert (tmp_path / "report" / "report.html").exists()


def test_specs_that_are_not_there_are_not_the_same(run, tmp_path, capsys):
    shutil.copytree(run.path, tmp_path / "other")
    assert "their specs are the same" in compare("run-1", "other", capsys)
    run.spec_file.unlink()
    assert "their specs cannot be compared" in compare("run-1", "other", capsys)


def test_an_empty_folder_among_the_runs_is_told_as_such(run):
    (run.path.parent / "empty").mkdir()
    with pytest.raises(UsageError, match="empty is no run: it has neither"):
        report_command(["empty"], out=None, lang=Language.EN)


def test_a_script_is_shown_beside_our_own_run(run, tmp_path, capsys):
    make_metered_run(tmp_path / "runs" / "script-1", ddp_logs())
    out = " ".join(compare("run-1", "script-1", capsys).split())
    assert "their specs cannot be compared: a script has none" in out
    assert "run-1: no rank has logged anything script-1: a step took 24 ms (24–24)" in out
    assert "train.py --epochs 3" in (tmp_path / "report" / "report.html").read_text()


def test_runs_of_one_name_are_told_apart_also_by_what_they_lack(run, tmp_path, capsys):
    shutil.copytree(run.path, tmp_path / "other" / "run-1")
    compare_command("run-1", "other/run-1", out=None, lang=Language.ZH, as_json=False)
    out = capsys.readouterr().out
    assert "runs/run-1：没有任何进程留下日志" in out
    assert "other/run-1：没有任何进程留下日志" in out
    assert "两者的配置相同" in out
    assert "没有任何进程留下日志" in (tmp_path / "report" / "report.html").read_text()
