"""A part of PyTorch's own suite for backends; `make soak` runs the whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "peer_suite.py"
SHARP = (
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_coalesced_max",
    "test_all_reduce_sum_complex",
    "test_all_to_all_single_unequal_split",
    "test_barrier_full_group",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_ddp_create_graph",
    "test_ddp_logging_data_cpu",
    "test_destroy_group",
    "test_gather_object_subgroup",
    "test_get_future",
    "test_reduce_sum_twice",
    "test_scatter_full_group",
    "test_send_recv_any_source_torch_profiler",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
)

pytest.importorskip("expecttest", reason="PyTorch's suite imports it: the extra [dev]")


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            "shm",
            marks=pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux's memfd"),
        ),
        pytest.param("mpi", marks=pytest.mark.slow),
    ],
)
def test_it_passes_where_gloo_does(backend):
    if backend == "mpi":
        pytest.importorskip("mpi4py", reason="the extra [mpi] is not installed")
    done = subprocess.run(
        [sys.executable, RUNNER, backend, "--ranks", "3", "--only", *SHARP],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    passed = f"{backend}, 3 ranks: of {len(SHARP)} tests that gloo passes {len(SHARP)} pass"
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed in done.stdout, done.stdout + done.stderr
