"""The MPI backend under a real mpirun: PyTorch's results, and what it says where it cannot."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backends import check_ddp
from drumline.core.errors import CommError
from drumline.core.task import SCRATCH
from drumline.launcher.mpirun import mpi_environment

MPIRUN = Path(sys.executable).parent / "mpirun"
RANK = Path(__file__).parents[1] / "mpi_rank.py"

pytest.importorskip("mpi4py", reason="the extra [mpi] is not installed")
pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="the extra [mpi] is not installed")


def under_mpirun(ranks, folder, *words):
    environment = mpi_environment(folder, ranks)
    del environment[SCRATCH]  # no launch holds it: `drumline doctor` of another test would end this
    paths = [str(RANK.parent), *filter(None, [environment.get("PYTHONPATH")])]
    return subprocess.run(
        [MPIRUN, "-n", str(ranks), sys.executable, str(RANK), str(folder / "store"), *words],
        env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_everything_equals_torch(tmp_path, ranks):
    done = under_mpirun(ranks, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line.split() for line in done.stdout.splitlines())
    assert [rank for rank, _ in lines] == [str(rank) for rank in range(ranks)]
    assert len({digest for _, digest in lines}) == 1, "ranks have different bits"


@pytest.mark.slow
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "within"])
def test_a_rank_that_stops_is_named(tmp_path, when):
    done = under_mpirun(3, tmp_path, when)
    assert done.returncode != 0
    for rank in (0, 2):
        told = (
            f"rank {rank}: .*timed out: rank 1 did not come to all_reduce within the timeout of 2 s"
        )
        assert len(re.findall(told, done.stdout)) == 2, "the one under way, and the one behind it"


def test_ranks_that_mpirun_did_not_start_are_refused(run_ranks):
    with pytest.raises(AssertionError, match="needs ranks that mpirun has started; start with"):
        run_ranks(check_ddp, 2, backend="mpi")


def test_sixteen_bits_are_rounded_once():
    from drumline.comm.mpi.library import combinable, put_back

    tensor = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    wide, op = combinable(tensor, "SUM")
    assert wide.dtype == torch.float32
    assert op == "SUM"
    put_back(wide.add_(0.251), tensor)
    assert tensor.tolist() == [1.25, 2.25]
    assert combinable(torch.tensor([True, False]), "SUM")[1] == "MAX"
    with pytest.raises(TypeError, match="MPI cannot combine"):
        combinable(torch.zeros(1, dtype=torch.float8_e4m3fn), "SUM")


def test_mpi_that_is_not_installed_is_named(monkeypatch):
    from drumline.comm.mpi.library import load_mpi

    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(CommError, match=r"pip install 'drumline\[mpi\]'"):
        load_mpi()
