"""`drumline lab` as a student and a grader call it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest

from drumline.core.errors import DrumlineError, UsageError
from drumline.labs.catalogue import recognise_lab, start_lab
from drumline.report.page.translator import Language
from wrong import AGGREGATION, SOLUTIONS


def test_list(drumline):
    answer = drumline("lab", "list", "--lang", "zh", "--json")
    assert [lab["lab"] for lab in answer.json] == [1, 2, 3, 4]
    assert answer.json[1]["title"] == "通信与参数聚合"
    assert "Optimizers" in drumline("lab", "list").out


def test_start_overwrites_nothing(drumline, tmp_path):
    answer = drumline("lab", "start", "2", "mine", "--lang", "zh")
    assert answer.code == 0, answer.err
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert names == {
        *("aggregation.py", "timing.py", "test_lab.py", "TASK.md", "TASK.zh.md", "lab.json")
    }
    assert "drumline lab check mine" in answer.out
    (tmp_path / "mine" / "timing.py").write_text("my work")
    answer = drumline("lab", "start", "2", "mine")
    assert answer.code == 2
    assert "mine has files in it, and nothing of yours is overwritten" in answer.err
    for number, folder, said in (
        (7, "other", "there is no lab 7; expected 1, 2, 3 or 4"),
        (2, "mine/timing.py", "is a file"),
        (2, "mine/timing.py/below", "cannot make .*below: Not a directory"),
    ):
        with pytest.raises(DrumlineError, match=said):
            start_lab(number, tmp_path / folder, Language.EN)
    assert (tmp_path / "mine" / "timing.py").read_text() == "my work"
    assert not (tmp_path / "other").exists()


def test_start_in_any_locale(drumline, tmp_path):
    """Task sheets have Chinese in them; a GBK or an ASCII locale must not matter."""
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    answer = drumline("lab", "start", "1", "mine", **plain)
    assert answer.code == 0, answer.err
    assert "原理" in (tmp_path / "mine" / "TASK.zh.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "there is no folder nowhere; make one"),
        (("lab", "--junit", "no/where.xml"), "there is no folder no"),
        (("lab", "--junit", "lab"), "--junit lab is a folder; name a file"),
        (("lab/optimizers.py",), "is a file; name the folder it is in: lab"),
        (("lab", "--timeout", "0"), "--timeout"),
        (("lab", "--timeout", "inf"), "--timeout"),
    ],
)
def test_wrong_words(drumline, tmp_path, words, said):
    shutil.copytree(SOLUTIONS / "1", tmp_path / "lab")
    answer = drumline("lab", "check", *words)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_folder_is_known_by_its_mark_or_its_files(tmp_path):
    with pytest.raises(UsageError, match=r"is no lab's folder: it has neither lab\.json nor"):
        recognise_lab(tmp_path)
    (tmp_path / "timing.py").touch()
    for mark in (None, "", "[]", '{"lab": 9, "language": "zh"}', '{"lab": "2"}'):
        if mark is not None:
            (tmp_path / "lab.json").write_text(mark)
        lab, language = recognise_lab(tmp_path)
        assert (lab.number, language) == (2, Language.EN)
    (tmp_path / "lab.json").write_text('{"lab": 3, "language": "zh"}')
    lab, language = recognise_lab(tmp_path)
    assert (lab.number, language) == (3, Language.ZH)


def test_check_explains_in_the_language_of_the_folder(drumline, tmp_path):
    """One wrong function, one hole; JUnit and text; no process and no file is left."""
    aliased = next(wrong for wrong in AGGREGATION if wrong.mistake == "aliased-gather")
    folder = aliased.write(tmp_path / "lab")
    (folder / "lab.json").write_text('{"lab": 2, "language": "zh"}')
    with (folder / "timing.py").open("a") as file:
        file.write("def time_communication(communicate):\n    raise NotImplementedError('hole')\n")
    before = sorted(folder.rglob("*"))
    answer = drumline("lab", "check", "lab", "--junit", "result.xml")
    assert answer.code == 1, answer.err
    for said in (
        "✗ 用 all_gather 求平均  aliased-gather",
        "✓ 沿环传递求平均",
        "待完成 计时器区分等待与传输",
        "背后的误解",
        "阅读：drumline/comm/primitives.py 的 all_gather；TASK.zh.md 第 2 节",
        "实验 2：6 项检查中通过 4 项，错误 1 项，待完成 1 项，未运行 0 项",
    ):
        assert said in answer.out
    suite = ElementTree.parse(tmp_path / "result.xml").getroot()[0]
    counted = {name: suite.get(name) for name in ("tests", "failures", "skipped")}
    assert counted == {"tests": "6", "failures": "1", "skipped": "1"}
    failure = suite.find("testcase/failure")
    assert failure.get("type") == "aliased-gather"
    assert "rank  brings  expected   yours" in failure.text
    assert sorted(folder.rglob("*")) == before


def test_a_solution_ends_with_0_and_json(drumline, tmp_path):
    shutil.copytree(SOLUTIONS / "1", tmp_path / "lab")
    (tmp_path / "lab" / "random.py").write_text("raise SystemExit('a name of the library')")
    answer = drumline("lab", "check", "lab", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["passed"]
    assert {check["status"] for check in answer.json["checks"]} == {"pass"}
    assert "torch" not in answer.err


def test_ctrl_c_leaves_nothing(drumline, tmp_path):
    shutil.copytree(SOLUTIONS / "1", tmp_path / "lab")
    with (tmp_path / "lab" / "optimizers.py").open("a") as file:
        file.write("open('began', 'w').close()\nimport time; time.sleep(600)\n")
    process = drumline.start("lab", "check", "lab", "--timeout", "300")
    deadline = time.monotonic() + 60
    while not (tmp_path / "lab" / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip().endswith("interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("lab", [1, 2, 3, 4])
def test_the_students_own_tests(lab, tmp_path):
    """They tell holes, pass for the solution, and need no drumline."""
    folder = tmp_path / "lab"
    start_lab(lab, folder, Language.EN)
    for solved in (False, True):
        if solved:
            shutil.copytree(SOLUTIONS / str(lab), folder, dirs_exist_ok=True)
        done = subprocess.run(
            [sys.executable, "test_lab.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        told = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
        assert "FAILED" not in done.stdout, done.stdout
        assert all(line.startswith("passed" if solved else "to do") for line in told), told
        assert told
