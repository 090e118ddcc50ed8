"""`drumline report` and `drumline compare` on folders with unlucky names and contents."""

from __future__ import annotations

import shutil

import pytest

from drumline.cli.report import compare_command, report_command
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.report.page.translator import Language
from drumline.spec.load import validate_spec, write_run_spec


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


def test_a_script_among_the_runs_is_left_out_with_a_word(run, tmp_path, capsys):
    script = RunDir.create("script", root=tmp_path / "runs")
    script.write_json("manifest.json", {"script": ["s.py"]})
    (script.path / "events").mkdir(exist_ok=True)
    report_command(["script-1", "run-1"], out=None, lang=Language.EN)
    assert "script-1 ran a script, which logs no steps, and is left out" in capsys.readouterr().out
    assert (run.path / "report" / "report.html").exists()
    with pytest.raises(UsageError, match="look at it with: drumline show script-1"):
        report_command(["script-1"], out=None, lang=Language.EN)
    with pytest.raises(UsageError, match="script-1 ran a script"):
        compare("run-1", "script-1", capsys)


def test_runs_of_one_name_are_told_apart_also_by_what_they_lack(run, tmp_path, capsys):
    shutil.copytree(run.path, tmp_path / "other" / "run-1")
    compare_command("run-1", "other/run-1", out=None, lang=Language.ZH, as_json=False)
    out = capsys.readouterr().out
    assert "runs/run-1：没有任何进程留下日志" in out
    assert "other/run-1：没有任何进程留下日志" in out
    assert "两者的配置相同" in out
    assert "没有任何进程留下日志" in (tmp_path / "report" / "report.html").read_text()
