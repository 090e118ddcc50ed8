"""What torchrun, mpirun and srun set, and what is read from it."""

from __future__ import annotations

import os
import threading

import pytest

from drumline.cli.train import _settle as settle
from drumline.core import join
from drumline.core.errors import CommError
from drumline.core.join import OuterLauncher, outer_launcher
from drumline.core.rundir import RunDir
from drumline.spec.run_spec import RunSpec

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-123@1",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_NNODES": "1",
}


def found(environ: dict[str, str]) -> OuterLauncher:
    launcher = outer_launcher(environ)
    assert launcher is not None
    return launcher


@pytest.mark.parametrize(
    ("environ", "name", "rank", "world_size", "one_host", "says_where"),
    [
        (TORCHRUN, "torchrun", 3, 4, False, True),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, "torchrun", 3, 4, True, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "torchrun", 0, 1, True, False),
        (MPIRUN, "mpirun", 1, 2, True, False),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun", 1, 2, False, False),
        (SRUN, "srun", 5, 8, True, False),
        ({**SRUN, "SLURM_NNODES": "2"}, "srun", 5, 8, False, False),
        ({**SRUN, "SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"}, "srun", 5, 8, True, False),
    ],
)
def test_each_launcher_is_recognized(environ, name, rank, world_size, one_host, says_where):
    launcher = found(environ)
    assert (launcher.name, launcher.rank, launcher.world_size) == (name, rank, world_size)
    on_one_host = launcher.local_world_size == launcher.world_size
    assert (on_one_host, launcher.says_where) == (one_host, says_where)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HOME": "/root"},
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # inside salloc, but not started by srun
        {**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},  # one task: start workers from here
        {"SLURM_PROCID": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # an sbatch script: only srun makes steps
    ],
)
def test_a_person_is_no_launcher(environ):
    assert outer_launcher(environ) is None


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({**TORCHRUN, "RANK": "first"}, "RANK='first' and WORLD_SIZE='4'"),
        ({**TORCHRUN, "WORLD_SIZE": ""}, "RANK='3' and WORLD_SIZE=''"),
        (
            {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "2.0"},
            "OMPI_COMM_WORLD_RANK='1' and OMPI_COMM_WORLD_SIZE='2.0'",
        ),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE=None"),
        ({**SRUN, "SLURM_NTASKS": "eight"}, "SLURM_PROCID='5' and SLURM_NTASKS='eight'"),
    ],
)
def test_a_bad_number_is_told_with_its_variable(environ, variable):
    with pytest.raises(CommError) as caught:
        outer_launcher(environ)
    assert variable in caught.value.message
    assert "unset them to start workers from here" in caught.value.message


def test_ranks_of_one_job_share_a_note_and_other_jobs_have_others():
    notes = [
        found(environ).note
        for environ in (
            TORCHRUN,
            {**TORCHRUN, "MASTER_PORT": "29501"},
            {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"},
            MPIRUN,
            {**MPIRUN, "PMIX_NAMESPACE": "prterun-host-124@1"},
            SRUN,
            {**SRUN, "SLURM_STEP_ID": "1"},
        )
    ]
    assert len(set(notes)) == len(notes)
    assert found({**TORCHRUN, "RANK": "0"}).note == found(TORCHRUN).note


@pytest.mark.parametrize(
    ("environ", "init"),
    [
        (TORCHRUN, "env"),
        (MPIRUN, "tcp"),
        ({**MPIRUN, "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "env"),
        (SRUN, "tcp"),
    ],
)
def test_ranks_meet_where_they_were_told_or_by_a_note(environ, init):
    assert settle(found(environ), RunSpec()).init == init


def test_what_the_spec_says_about_meeting_stays():
    assert settle(found(SRUN), RunSpec(init="file")).init == "file"


def test_ranks_on_several_hosts_must_be_told_where():
    with pytest.raises(CommError, match=r"srun has started ranks on several hosts.+MASTER_ADDR"):
        settle(found({**SRUN, "SLURM_NNODES": "2"}), RunSpec())


def test_workers_get_the_variables_of_torchrun_and_keep_the_rest():
    srun = {**SRUN, "SLURM_LOCALID": "1", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"}
    environ = found(srun).worker_environment({"HOME": "/h", "RANK": "9"})
    assert environ == {
        "HOME": "/h",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
    }


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return found(SRUN)


def test_other_ranks_learn_the_directory_from_rank_0(launcher, tmp_path):
    run = RunDir.create("demo", root=tmp_path / "rüns")
    learned: list[RunDir] = []
    waiting = threading.Thread(target=lambda: learned.append(launcher.wait_for_run()))
    waiting.start()
    launcher.announce(run)
    waiting.join(timeout=10)
    assert [one.path for one in learned] == [run.path]


def test_a_rank_that_hears_nothing_gives_up(launcher, monkeypatch):
    monkeypatch.setattr(join, "_WAIT_S", 0.05)
    with pytest.raises(CommError, match=r"rank 5 waited 0\.05 s for rank 0 .+ did rank 0 start"):
        launcher.wait_for_run()


def test_an_old_note_of_a_killed_job_is_not_believed(launcher, monkeypatch, tmp_path):
    launcher.announce(RunDir.create("demo", root=tmp_path))
    os.utime(launcher.note, (1, 1))
    monkeypatch.setattr(join, "_WAIT_S", 0.05)
    with pytest.raises(CommError, match="waited"):
        launcher.wait_for_run()
