"""`drumline train backend=mpi`: mpirun starts the ranks; its faults are told as the agents' are."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import JOB
from drumline.bench.communication.collectives import run_collectives
from drumline.bench.specs import CollectivesSpec
from drumline.core.errors import UsageError
from drumline.core.rundir import read_events
from drumline.launcher import mpirun

MPIRUN = Path(sys.executable).parent / "mpirun"
MPI_JOB = (*JOB, "backend=mpi")

pytest.importorskip("mpi4py", reason="the extra [mpi] is not installed")
pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="the extra [mpi] is not installed")


def wait_for_steps(run, step, timeout_s=40.0):
    log = run / "events" / "rank-0.jsonl"
    deadline = time.monotonic() + timeout_s
    while not (log.exists() and f'"event":"step","step":{step},' in log.read_text()):
        assert time.monotonic() < deadline, f"{log} did not come to step {step}"
        time.sleep(0.05)


def in_dev_shm():
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}


def test_without_mpi4py_nothing_is_made(drumline):
    hide = 'import sys\nsys.modules["mpi4py"] = None\n'
    (drumline.folder / "sitecustomize.py").write_text(hide)
    answer = drumline("train", *MPI_JOB, PYTHONPATH=str(drumline.folder))
    assert answer.code == 2
    assert "needs mpi4py, which is not installed; install Open MPI and mpi4py with" in answer.err
    assert not (drumline.folder / "runs").exists()


@pytest.mark.slow
def test_ends_with_the_weights_of_one_process_and_joins_too(drumline):
    job = (*JOB, "max_steps=20", "dtype=float64", "model=mlp")
    alone = drumline.train(*job, "workers=1")
    started = drumline.train(*job, "backend=mpi", "workers=2")
    assert started["backend"] == "mpi"
    assert started["accuracy"] == alone["accuracy"]
    assert abs(started["loss"] - alone["loss"]) < 1e-12
    words = ("train", *job, "backend=mpi", "--json")
    done = subprocess.run(
        [MPIRUN, "-n", "2", sys.executable, "-m", "drumline", *words],
        cwd=drumline.folder,
        env={**mpirun.mpi_environment(drumline.temporary, 2), **drumline.environment()},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert started["weights_sha256"] in done.stdout


@pytest.mark.slow
def test_a_crash_and_a_kill_are_told_by_rank(drumline):
    answer = drumline("train", *MPI_JOB, "workers=3", "epochs=2", FAULT="1:4:raise")
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 1 failed:\n  Traceback")
    assert "ValueError: the sky fell" in answer.err
    assert drumline.left_behind() == []
    answer = drumline("train", *MPI_JOB, "epochs=2", FAULT="1:3:kill")
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 1 was killed by SIGKILL")


@pytest.mark.slow
def test_a_kill_of_the_process_above_a_rank_is_told_by_rank(drumline):
    process = drumline.start("train", *MPI_JOB, "epochs=50", FAULT="0:30:sleep")
    run = drumline.folder / "runs" / "run-1"
    wait_for_steps(run, 25)
    pid = read_events(run / "events" / "rank-1.jsonl")[0]["pid"]
    above = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(above), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith("drumline: rank 1 was killed by SIGKILL")


@pytest.mark.slow
def test_a_rank_that_stops_answering_is_named_within_the_timeout(drumline):
    answer = drumline("train", *MPI_JOB, "epochs=2", "timeout_s=4", FAULT="1:6:sleep", timeout_s=40)
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 1 stopped answering: rank 0 waited")


@pytest.mark.slow
def test_interrupt_and_kill_nine_leave_nothing(drumline):
    before = in_dev_shm()
    process = drumline.start("train", *MPI_JOB, "epochs=50", FAULT="0:30:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-1", 25)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted at step" in err
    assert drumline.left_behind() == []
    process = drumline.start("train", *MPI_JOB, "epochs=50", FAULT="0:30:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-2", 25)
    drumline.kill(process)
    assert in_dev_shm() <= before


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(mpirun.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"mpi4py.*pip install 'drumline\[mpi\]'"):
        mpirun.require_mpirun()
    bench = CollectivesSpec(backends=("gloo", "mpi"))
    with pytest.raises(UsageError, match=r"mpi4py.*pip install 'drumline\[mpi\]'"):
        run_collectives(bench, out=tmp_path / "run", watch=lambda _: None)
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"mpirun.*pip install 'drumline\[mpi\]'"):
        mpirun.require_mpirun()
