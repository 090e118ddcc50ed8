"""Submissions that hang, crash, exit, print or leave processes: bounded time, and a verdict."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from drumline.launcher.grader import GraderProcess, Status, Verdict
from wrong import SOLUTIONS


@pytest.fixture
def submission(tmp_path):
    """Write a solution with more code: submission(1, "optimizers.py", "class GD: …")."""

    def write(lab: int, file: str, more: str = "", *, instead: bool = False) -> Path:
        folder = tmp_path / "lab"
        shutil.copytree(SOLUTIONS / str(lab), folder)
        text = "" if instead else (folder / file).read_text()
        (folder / file).write_text(text + "\n\n" + more)
        return folder

    return write


def gd(body: str) -> str:
    return f"class GD(Optimizer):\n    def step(self):\n        {body}\n"


@pytest.mark.parametrize(
    ("body", "mistake", "fact"),
    [
        ("import time; time.sleep(600)", "hangs", "optimizers.py:"),
        ('while True: print("x" * 1000)', "hangs", "optimizers.py:"),
        ("import sys; sys.exit(3)", "exits", "3"),
        ("import os; os._exit(0)", "died", "exit code 0"),
        ("import os; os.kill(os.getpid(), 11)", "died", "SIGSEGV"),
        ('raise ValueError("no {such} thing")', "raises", "no {such} thing"),
        ("bytearray(5 << 30)", "raises", "MemoryError"),
    ],
    ids=["hangs", "prints", "sys.exit", "os._exit", "segfault", "raises", "memory"],
)
def test_in_a_function(ask, submission, body, mistake, fact):
    folder = submission(1, "optimizers.py", gd(body))
    began = time.monotonic()
    limit = 1.0 if mistake == "hangs" else 60.0
    found = ask(1, folder, "gd.step", timeout_s=limit)["gd.step"]
    assert time.monotonic() - began < 60
    assert (found.status, found.mistake) == (Status.WRONG, mistake), found
    assert fact in str(found.facts)
    assert len(found.output) <= 2_000
    after = ask(1, folder, "sgd.step")["sgd.step"]
    assert after.status is Status.PASS  # one crash costs one check


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("def broken(:", "raises"),
        ("import nowhere_at_all", "raises"),
        ("import sys; sys.exit()", "exits"),
        pytest.param("while True: pass", "hangs", marks=pytest.mark.slow),
        ("import os; os._exit(1)", "died"),
    ],
    ids=["syntax", "import-error", "exit", "hang", "os._exit"],
)
def test_at_import(ask, submission, text, mistake):
    folder = submission(1, "optimizers.py", text, instead=True)
    limit = 1.0 if mistake == "hangs" else 60.0
    verdicts = ask(1, folder, "optimizers.import", "gd.step", timeout_s=limit)
    assert verdicts["optimizers.import"].mistake == mistake, verdicts
    assert verdicts["gd.step"].status is Status.NOT_RUN
    assert verdicts["gd.step"].mistake == "needs-import"


def test_a_missing_file_and_a_missing_function(ask, submission):
    folder = submission(2, "aggregation.py", "average_by_ring = None")
    (folder / "timing.py").unlink()
    verdicts = ask(2, folder, "timing.import", "average.ring", "timer")
    assert verdicts["timing.import"].mistake == "missing-file"
    assert verdicts["timer"].status is Status.NOT_RUN
    assert verdicts["average.ring"].mistake == "missing-name"


def test_a_folder_that_removes_itself(ask, submission):
    folder = submission(1, "optimizers.py", gd("import shutil; shutil.rmtree('.')"))
    ask(1, folder, "gd.step")
    shutil.rmtree(folder, ignore_errors=True)
    assert ask(1, folder, "sgd.step")["sgd.step"].mistake == "missing-file"


def test_a_method_that_is_gone(ask, submission):
    """The place is in our file, which has the student's name: say so."""
    more = "del RandomPartitionSampler.set_epoch"
    found = ask(3, submission(3, "samplers.py", more), "partition.len")["partition.len"]
    assert found.mistake == "raises"
    assert "set_epoch" in found.facts["message"]
    assert found.facts["where"].startswith("drumline/grader/samplers.py:")


RANKS = {
    "hangs": "def average_by_ring(tensor):\n    dist.recv(tensor, (dist.get_rank() + 1) % 3)\n",
    # as on a busy machine: its connections close well before its end can be seen
    "died": """
import contextlib, socket, time

def average_by_ring(tensor):
    if dist.get_rank() == 1:
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                one = socket.fromfd(int(number), socket.AF_INET, socket.SOCK_STREAM)
                one.getpeername()  # raises where it only listens
                one.shutdown(socket.SHUT_RDWR)
        time.sleep(0.4)
        os._exit(7)
    dist.barrier()
""",
    "raises": "def average_by_ring(tensor):\n    if dist.get_rank() == 2:\n        1 / 0\n"
    "    dist.barrier()\n",
}


@pytest.mark.parametrize("mistake", RANKS)
def test_on_a_rank(ask, submission, mistake):
    folder = submission(2, "aggregation.py", RANKS[mistake])
    limit = 3.0 if mistake == "hangs" else 60.0
    found = ask(2, folder, "average.ring", timeout_s=limit)["average.ring"]
    assert found.mistake == mistake, found
    if mistake == "hangs":  # everybody's place is told
        assert found.facts["where"].count("aggregation.py") == 3
    else:
        assert found.facts["rank"] == {"died": 1, "raises": 2}[mistake]


def test_processes_that_are_left_behind_are_ended(ask, submission, tmp_path):
    """Also those that made themselves a session of their own."""
    note = tmp_path / "pid"
    body = f"""import subprocess
        for command in ({{}}, {{"start_new_session": True}}):
            child = subprocess.Popen(["sleep", "600"], **command)
            print(child.pid, file=open({str(note)!r}, "a"))
        for param in self.params:
            param -= self.lr * param.grad"""
    code = gd(body).replace("    def step", "    @torch.no_grad()\n    def step")
    folder = submission(1, "optimizers.py", code)
    found = ask(1, folder, "gd.step")["gd.step"]
    assert (found.mistake, found.facts) == ("left-processes", {"count": 12})
    for pid in note.read_text().split():
        assert not is_running(int(pid))


def test_all_checks_together_are_bounded(ask, submission, grader):
    folder = submission(1, "optimizers.py", "import time\ntime.sleep(1)")
    told = grader.ask(1, folder, timeout_s=60, total_s=0.5, slack_s=60)
    ends = [verdict for verdict in told if isinstance(verdict, Verdict)]
    assert ends[0].status == "pass"
    assert {end.mistake for end in ends[1:]} == {"out-of-time"}


def test_a_submission_that_kills_the_process_that_checks_gets_a_verdict(submission):
    folder = submission(1, "optimizers.py", gd("import os; os.kill(os.getppid(), 9)"))
    with GraderProcess() as grader:
        *_, end = grader.ask(1, folder, timeout_s=60, total_s=300, slack_s=60)
    assert (end.check, end.mistake) == ("gd.step", "examiner-died")


def is_running(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return os.path.exists(f"/proc/{pid}") and not state.stdout.startswith("Z")
