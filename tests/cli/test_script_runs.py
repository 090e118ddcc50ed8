"""Runs of scripts whose ranks log what they did: every command works on them as on our own."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from drumline.cli import script
from drumline.cli.report import compare_command, report_command
from drumline.cli.show import runs_command, show_command, trace_command
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.core.task import AgentTask
from drumline.report.page.folder import audit_numbers
from drumline.report.page.translator import Language
from metered_runs import ddp_logs, loop_logs, make_metered_run

# A script that logs what the meter of `drumline run` logs, for ranks that never talk.
LOGS_ITSELF = """
import json, os, sys
from pathlib import Path

rank = os.environ["RANK"]
with open(f"runs/train-1/events/rank-{rank}.jsonl", "a") as file:
    file.write(Path(f"logged-{rank}").read_text())
print("logged")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path / "runs"


def slow_in_data(rank, _step):
    return 42.0 if rank == 1 else 1.0


@pytest.fixture
def trained(folder):
    return make_metered_run(folder / "train-1", ddp_logs(data_ms=slow_in_data, samples=32))


@pytest.fixture
def looped(folder):
    logs = loop_logs(slow=0)
    return make_metered_run(folder / "loop-1", logs, script=["-m", "package.loop"])


def test_a_script_with_steps_is_shown_as_our_own_runs_are(trained, capsys):
    show_command("train-1", as_json=False)
    out = " ".join(capsys.readouterr().out.split())
    assert "where the time went (ms per step, over 7 steps)" in out
    assert "waiting for rank 1 rank 1 is slow in data, 41 ms a step above the others" in out
    for row in ("steps 8 in 520 ms", "samples/s 985", "ranks 2", "collectives 7 of 7 MB together"):
        assert row in out
    assert "weights" not in out
    show_command("train-1", as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["script"] == ["train.py", "--epochs", "3"]
    assert (document["state"], document["steps"], document["backend"]) == ("done", 8, "gloo")
    assert document["ledger"]["steps"] == 7
    (kind,) = document["collectives"]
    assert (kind["op"], kind["ranks"], kind["calls"], kind["bus_share"]) == (
        "all_reduce",
        2,
        7,
        1.0,
    )


def test_bytes_that_were_counted_are_told_of_nodes_whose_links_they_went_over(folder, capsys):
    """Ranks of one node count the same interface; a host's loopback carries other traffic, too."""
    logs = ddp_logs(ranks=4)
    make_metered_run(folder / "nodes-1", logs, rates=[10**9, 10**9], sent=5000)
    show_command("nodes-1", as_json=False)
    out = " ".join(capsys.readouterr().out.split())
    assert "sent 10 kB over the nodes' links" in out
    assert "node rank step data" in out


def test_a_script_without_steps_is_told_per_second(looped, capsys):
    show_command("loop-1", as_json=False)
    out = " ".join(capsys.readouterr().out.split())
    assert "where the time went (ms per second, over 4.0 s without steps)" in out
    assert "waiting for rank 0 rank 0 is slow in compute, 300 ms a second above the others" in out
    show_command("loop-1", as_json=True)
    ledger = json.loads(capsys.readouterr().out)["ledger"]
    assert (ledger["steps"], ledger["seconds"]) == (0, 4.0)
    assert ledger["bytes_per_second"] == 10_000_000


def test_scripts_are_listed_with_ranks_steps_and_state(trained, looped, folder, capsys):
    summary = trained.read_json("summary.json")
    trained.write_json("summary.json", {**summary, "steps": 8})
    make_metered_run(folder / "killed-1", ddp_logs(steps=2), done=False)
    runs_command(as_json=True)
    listed = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert {key: listed["train-1"][key] for key in ("model", "world_size", "steps", "state")} == {
        "model": "train.py",
        "world_size": 2,
        "steps": 8,
        "state": "done",
    }
    assert listed["loop-1"]["model"] == "-m package.loop"
    assert (listed["killed-1"]["world_size"], listed["killed-1"]["state"]) == (2, "killed")
    show_command("killed-1", as_json=False)
    out = capsys.readouterr().out
    assert "where the time went (ms per step, over 1 step)" in out
    assert "killed-1 ran train.py --epochs 3: killed; its logs are in" in out


def test_a_script_that_was_not_metered_has_no_ledger(folder, capsys):
    make_metered_run(folder / "train-1", [[], []])
    show_command("train-1", as_json=False)
    assert "where the time went" not in capsys.readouterr().out
    report_command(["train-1"], out=None, lang=Language.EN)
    assert "its ranks have logged neither steps nor collectives" in capsys.readouterr().out
    with pytest.raises(UsageError, match="train-1 has made no step yet"):
        trace_command("train-1", steps=None, out=None)


def test_scripts_are_traced(trained, looped, capsys):
    trace_command("train-1", steps="3-4", out=None)
    assert "steps 3 to 4 of 2 ranks on one clock" in capsys.readouterr().out
    names = {each["name"] for each in _slices(trained)}
    assert names == {"step 3", "step 4", "data", "forward", "backward", "waiting", "all_reduce"}
    trace_command("loop-1", steps=None, out=None)
    assert "the collectives of the first 20 s of 2 ranks" in capsys.readouterr().out
    assert len([each for each in _slices(looped) if each["name"] == "all_reduce"]) == 80
    with pytest.raises(UsageError, match="loop-1 has no steps, only collectives; leave --steps"):
        trace_command("loop-1", steps="1-2", out=None)


def _slices(run):
    trace = json.loads((run.path / "trace.json").read_text())
    return [each for each in trace["traceEvents"] if each["ph"] == "X"]


@pytest.mark.parametrize("lang", list(Language))
def test_pages_show_scripts_without_what_they_have_not(trained, looped, tmp_path, lang, capsys):
    report_command(["train-1", "loop-1"], out=tmp_path / "page", lang=lang)
    assert len(capsys.readouterr().out.splitlines()) == 1  # nothing is missing
    assert list(audit_numbers(tmp_path / "page")) == []
    page = (tmp_path / "page" / "report.html").read_text()
    assert "None" not in page
    figures = {path.stem for path in (tmp_path / "page" / "figures").iterdir()}
    assert figures == {"times", "ledger", "seconds"}
    absent = {Language.EN: ("last loss", "test accuracy"), Language.ZH: ("最后损失", "测试准确率")}
    assert not any(word in page for word in absent[lang])
    said = {
        Language.EN: "Rank 1 fetches data <data",
        Language.ZH: "进程 1 每步读取数据比其他进程的中位数多用",
    }
    assert said[lang] in page
    tables = {path.stem for path in (tmp_path / "page" / "data").iterdir()}
    assert {"times", "ledger", "seconds", "collectives"} <= tables
    assert "curves" not in tables


def test_two_scripts_are_compared_by_how_they_were_launched(trained, looped, tmp_path, capsys):
    def compare(first, second):
        compare_command(first, second, out=tmp_path / "page", lang=Language.EN, as_json=False)
        return capsys.readouterr().out

    out = compare("train-1", "loop-1")
    assert "script  train.py --epochs 3  -m package.loop" in out
    (looped.path / "manifest.json").unlink()
    looped.write_json("manifest.json", {})
    assert "their specs cannot be compared: a script has none" in compare("train-1", "loop-1")


def test_drumline_run_prints_the_accounts_of_a_script(drumline):
    (drumline.folder / "train.py").write_text(LOGS_ITSELF)
    logs = ddp_logs(data_ms=slow_in_data, samples=32)
    for rank, log in enumerate(logs):
        begun = [{"event": "start", "rank": rank, "attempt": 0}, *log]
        text = "".join(json.dumps(event) + "\n" for event in begun)
        (drumline.folder / f"logged-{rank}").write_text(text)
    answer = drumline("run", "-j", "1x2", "train.py", "--epochs", "3")
    assert answer.code == 0, answer.err
    *_, run, ended = answer.out.splitlines()
    assert "waiting for rank 1 rank 1 is slow in data, 41 ms a step" in " ".join(answer.out.split())
    assert "[1] logged" in answer.out
    assert run.split()[1].endswith("runs/train-1")
    assert ended.startswith("all 2 ranks are done in ")
    summary = RunDir(drumline.folder / "runs" / "train-1").read_json("summary.json")
    assert (summary["world_size"], summary["steps"]) == (2, 8)
    assert summary["samples_per_s"] == pytest.approx(984.6, abs=0.1)
    assert summary["ledger"]["steps"] == 7


def test_a_run_is_done_though_its_accounts_fail(trained, monkeypatch, capsys):
    """All its events may be more than there is memory; the run itself ended well."""

    def fail(_run):
        raise MemoryError

    (trained.path / "summary.json").unlink()
    end = {"world_size": 2, "time_s": 7.5}
    task = AgentTask(run="", workers=2, timeout_s=1)
    with monkeypatch.context() as patch:
        patch.setattr(script, "read_record", fail)
        with pytest.raises(MemoryError):
            script._conclude(trained, task, Console(), **end)
    assert trained.read_json("summary.json") == end
    script._conclude(trained, task, Console(), **end)
    assert trained.read_json("summary.json")["ledger"]["steps"] == 7
    assert "all 2 ranks are done in 7.5 s" in capsys.readouterr().out
