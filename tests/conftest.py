"""What all tests share: real ranks, and the data that lies beside the repository."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import uuid
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from commands import Drumline
from namespaces import SESSION
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

# A busy machine may take long for any example: pytest's own timeout is the only one.
settings.register_profile("drumline", deadline=None)
settings.load_profile("drumline")

# Warnings that are errors in the processes that tests start, too, where torch has many of its own.
CHILDREN_FAIL_AT = "error:Pydantic serializer warnings"


def pytest_configure() -> None:
    torch.set_num_threads(1)  # two tests run at once: threads of both would spin on the same cores
    os.environ["PYTHONWARNINGS"] = CHILDREN_FAIL_AT
    os.environ[SESSION] = uuid.uuid4().hex
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job, as are ours
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items) -> None:
    """Begin with the commands of the pages: the longest file, which one worker runs alone."""
    items.sort(key=lambda item: item.path.name != "test_documented_commands.py")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    gc.disable()  # Python 3.11 fails at a finalizer that shows a traceback while one is read
    try:
        report = yield
    finally:
        gc.enable()
    if report.skipped and os.environ.get("CI") and any(name in item.nodeid for name in MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where it must run: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter) -> None:
    """Say in one line how many tests were skipped, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
        why = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{len(skipped)} tests were skipped: {why}")


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
