"""What all tests share: real ranks, and the data that lies beside the repository."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

import pytest

from commands import Drumline
from ranks import run_ranks as start_ranks

# Tests that a CI machine must be able to run: there, skipping one of them is a failure.
MUST_RUN = (
    "test_joins_under_another_launcher",
    "test_mpi",
    "test_shm",
    "test_a_full_disk_loses_nothing",
    "test_a_read_only_folder_is_named",
    "test_a_corrupt_data_file_is_named",
    "test_example",
    "test_simulated_nodes",
    "test_network",
    "test_compose_accepts_the_file",
    "test_containers_by_their_names",
    "test_fleet",
    "test_rotation",
    "test_provision",
    "test_contract",
    "test_life",
    "test_faults",
    "test_a_browser",
    "test_site_",
)


# Warnings that are errors in the processes that tests start, too, where torch has many of its own.
CHILDREN_FAIL_AT = "error:Pydantic serializer warnings"


# What files say whose tests make simulated networks. Those count the networks of the whole machine,
# so one process runs them all; tests of other files go wherever there is room, file by file.
NETWORKERS = ("need_namespaces", "need_twins")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    @functools.cache
    def group_of(name: str) -> str:
        path = Path(config.rootpath, name)
        alone = path.parent.name == "cluster" or any(
            word in path.read_text() for word in NETWORKERS
        )
        return "networks" if alone else name

    return ByFile(config, log)


def pytest_configure() -> None:
    os.environ["PYTHONWARNINGS"] = CHILDREN_FAIL_AT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("CI") and any(name in item.nodeid for name in MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where it must run: {report.longrepr}"
    return report


@pytest.fixture
def run_ranks(tmp_path):
    """Call a function on N real processes that form a group: run_ranks(fn, world_size, *args)."""

    def call(function, world_size, *args, **options):
        return start_ranks(function, world_size, *args, folder=tmp_path, **options)

    return call


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the original data files, which only developers have."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the original data files are not in {folder}")
    return folder


@pytest.fixture
def drumline(tmp_path):
    """The command line, run as a user does; it may leave no process and no temporary file."""
    with tempfile.TemporaryDirectory() as temporary:
        command = Drumline(tmp_path, Path(temporary))
        yield command
        assert command.left_behind() == []
        assert command.temporary_files() == []
