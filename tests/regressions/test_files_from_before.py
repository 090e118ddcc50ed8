"""What version 0.1.0 has written still opens: runs, checkpoints, clusters, labs.

The files, and how they were made: files_before/README.md. The numbers below are theirs.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

FILES = Path(__file__).parent / "files_before"
TEST_LOSS = 1.0973389
"""of all three runs, the killed one once it has been continued"""
NO_AWS = {"AWS_CONFIG_FILE": "/dev/null", "AWS_REGION": "", "AWS_DEFAULT_REGION": ""}
MADE_IN = "/tmp/drumline-before"
"""the folder in which the files were made, where they name one"""

SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""extractall's filter, which Python before 3.11.4 does not have"""


@pytest.fixture
def unpack(tmp_path):
    """Put old files into the folder in which commands run; paths in them lead there."""

    def call(*names: str) -> None:
        for name in names:
            with tarfile.open(FILES / f"{name}.tar.xz") as archive:
                archive.extractall(tmp_path, **SAFELY)
        for pattern in ("*/clusters/*/jobs/*/pulled", "*/clusters/*/cluster.json"):
            for note in tmp_path.glob(pattern):
                note.write_text(note.read_text().replace(MADE_IN, str(tmp_path)))

    return call


@pytest.fixture
def ask(drumline):
    """Run a command that must go well, and return what it printed."""

    def call(*args: str, **extra: str) -> str:
        answer = drumline(*args, **extra)
        assert answer.code == 0, f"{args}: {answer.err}"
        return answer.out

    return call


def test_runs_are_listed_and_shown(unpack, ask, tmp_path):
    unpack("runs")
    rows = {row["run"]: row for row in json.loads(ask("runs", "--json"))}
    assert {name: (row["state"], row["accuracy"]) for name, row in rows.items()} == {
        "whole-1": ("done", 0.659),
        "stages-1": ("done", 0.659),
        "stopped-1": ("killed", None),
    }
    whole = ask("show", "whole-1")
    for said in (
        "   0   7.38  0.32     3.99   0.24      2.83     3.07",
        "   1   400      297    194 39 50 37 51 46 36 28 43 38 32",
        "sha256 749b95c9a0f86dbf…",
    ):
        assert said in whole
    stages = json.loads(ask("show", "stages-1", "--json"))
    assert stages["mesh"] == {"data": 1, "pipeline": 2, "tensor": 1}
    assert stages["spec"]["optimizer"]["momentum"] == 0.9
    assert "stopped-1: killed" in ask("show", "stopped-1")
    ask("trace", "stages-1", "--out", "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == 972
    assert {"forward 3", "backward 3", "send", "receive"} <= {event["name"] for event in events}


@pytest.mark.slow
def test_runs_are_reported_and_compared(unpack, ask, tmp_path):
    unpack("runs")
    ask("report", "whole-1", "stages-1", "stopped-1", "--out", "page")
    assert "65.90" in (tmp_path / "page" / "report.md").read_text()
    found = json.loads(ask("compare", "whole-1", "stages-1", "--json", "--out", "both"))
    key = {"key": "strategy.kind", "whole-1": "ddp", "stages-1": "pipeline"}
    assert found["differences"] == [key]
    assert [run["step_ms"] for run in found["runs"]] == [4.239537, 57.621205]


def test_a_killed_run_is_continued(unpack, drumline):
    unpack("runs")
    answer = drumline("train", "resume=stopped-1", "slow_ranks={}", "--json")
    assert answer.code == 0, answer.err
    assert "going on from the checkpoint of step 10" in answer.err
    assert answer.json["steps"] == 20
    assert answer.json["test_loss"] == pytest.approx(TEST_LOSS, rel=1e-4)


def test_stages_are_continued_in_another_split(unpack, drumline):
    unpack("runs")
    answer = drumline("train", "resume=stages-1", "strategy=tensor", "epochs=3", "--json")
    assert answer.code == 0, answer.err
    assert "going on from the checkpoint of step 20" in answer.err
    assert (answer.json["steps"], answer.json["mesh"]["tensor"]) == (30, 2)


@pytest.mark.parametrize("provider", ["ssh", "twin"])
def test_a_cluster_file_is_planned(unpack, ask, tmp_path, provider):
    unpack("specs")
    words = (f"specs/{provider}/cluster.yaml", "--json")
    plan = json.loads(ask("plan", *words, DRUMLINE_HOME=str(tmp_path / "home")))
    assert (plan["cluster"], len(plan["resources"]), plan["hours"]) == ("old", 2, 8.0)


def test_a_cluster_file_of_ec2_is_read_to_its_end(unpack, drumline, tmp_path):
    unpack("specs")
    home = {"DRUMLINE_HOME": str(tmp_path / "home"), **NO_AWS}
    answer = drumline("plan", "specs/ec2/cluster.yaml", **home)
    assert (answer.code, answer.out) == (1, "")
    assert "no AWS region is set" in answer.err, "nothing in the file is refused"


@pytest.mark.slow
def test_a_cluster_that_was_up_is_looked_at_and_cleared(unpack, ask, drumline, tmp_path):
    unpack("project", "home-up")
    drumline.folder = tmp_path / "project"
    home = {"DRUMLINE_HOME": str(tmp_path / "home-up")}
    status = json.loads(ask("status", "--json", **home))
    assert [(node["state"], node["address"]) for node in status["nodes"]] == [
        ("gone", "10.77.0.1"),
        ("gone", "10.77.0.2"),
    ]
    assert status["trouble"].startswith("the cluster old is gone: ")
    assert "pulled: drumline logs job-11cdec | hello-10597a" in ask("status", **home)
    assert json.loads(ask("inventory", **home))["leader"] == {"hosts": ["worker0"]}
    assert "left: 0 resources, as read back from twin" in ask("down", **home)
    (receipt,) = (tmp_path / "home-up" / "receipts").iterdir()
    lines = json.loads(receipt.read_text())["lines"]
    assert [line["identity"] for line in lines] == ["twin-9348-147323", "twin-9350-147327"]


@pytest.mark.parametrize("home", ["home-up", "home-down"])
def test_what_was_pulled_from_a_cluster_is_shown(unpack, ask, drumline, tmp_path, home):
    unpack("project", home)
    drumline.folder = tmp_path / "project"
    logs = ask("logs", "hello-10597a", DRUMLINE_HOME=str(tmp_path / home))
    assert logs == "[0] hello from rank 0 of 2\n[1] hello from rank 1 of 2\n"
    assert "sha256 b08a85ad8557d637…" in ask("show", "runs/job-11cdec/run")


def test_a_labs_folder_is_checked(unpack, drumline):
    unpack("lab-1")
    answer = drumline("lab", "check", "lab-1")
    assert answer.code == 1, answer.err
    assert "lab 1: 2 of 8 checks pass, 0 wrong, 6 to do, 0 not run" in answer.out


def test_a_labs_report_follows_from_its_runs_to_the_letter(unpack, ask):
    unpack("lab-report")
    assert "the page and the CSV files follow from the runs" in ask("lab", "verify", "lab-report")


def test_a_labs_runs_are_taken_again(unpack, ask, tmp_path):
    """Bench documents and runs are as good as new: nothing is measured, the tables stay."""
    unpack("lab-report")
    folder = tmp_path / "lab-report"
    tables = {path.name: path.read_text() for path in (folder / "data").iterdir()}
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/summary.json")}
    ask("lab", "run", "2", "--reuse", "--out", "lab-report")
    assert {path.name: path.read_text() for path in (folder / "data").iterdir()} == tables
    assert {path: path.stat().st_mtime_ns for path in before} == before
