"""PyTorch's own suite for backends, run on ours: it passes wherever it passes on gloo.

    python tests/comm/peer_suite.py shm mpi [--ranks 2 3 4] [--only TEST…]      (`make soak`)

The suite is torch.testing._internal.distributed.distributed_test, of the installed package. Its
tests say for which backends they are made, so it is loaded as for gloo and then pointed at another
backend. It starts new processes for each test; here the same ranks run one test after the other,
and new ones are started after a test that failed or hung:

    this process   starts ranks (forks; for mpi mpirun) ─► follows their results ─► compares
    each rank      for each test: joins, runs it, destroys the group, appends a line to its file
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import textwrap
import time
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path

from drumline.core.processes import die_with_parent, exit_at_once
from drumline.launcher.mpirun import mpi_environment

SUITE = "torch.testing._internal.distributed.distributed_test"
LOOPBACK = "127.0.0.1"
LEAVE_S = 5.0  # for the other ranks, after one has failed
TEST_S = 120.0  # until a test counts as hanging
JOIN_S = 60.0
NAMES = {"mpi": "mpi4py"}

ASK_FOR_GLOO = "test_accumulate_gradients_no_sync"
"""what the tests are called that only work where the suite's backend has gloo's name"""

_MONITORED = (
    "torch.distributed.monitored_barrier refuses by name every backend but gloo; "
    "the group's own method, group.monitored_barrier(timeout), works"
)
REFUSED = {
    "test_monitored_barrier_gloo": _MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": _MONITORED,
    "test_monitored_barrier_gloo_subgroup": _MONITORED,
}
"""tests that gloo passes and our backends do not, on purpose, and why"""

Outcome = tuple[str, str]
"""passed, skipped or failed, and why"""


def load_suite(backend: str, ranks: int) -> type:
    """Load the suite as for gloo, point it at a backend, and return its test case."""
    if os.environ.get("WORLD_SIZE") != str(ranks):  # some tests are made for a number of ranks
        sys.modules.pop(SUITE, None)
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(ranks)}
    suite = importlib.import_module(SUITE)
    suite.BACKEND = NAMES.get(backend, backend)
    if suite.BACKEND not in suite.PROFILING_SUPPORTED_BACKENDS:
        suite.PROFILING_SUPPORTED_BACKENDS.append(suite.BACKEND)
        suite.get_profiling_event = partial(find_events, suite.get_profiling_event)
    return type("Case", (suite.TestDistBackend, suite.DistributedTest._DistTestBase), {})


def find_events(find: Callable[..., list[object]], name: str, *args: object, **kwargs: object):
    """Find the profiler's events of a collective, by whatever backend: some are gloo's."""
    return find(name[name.index(":") :], *args, **kwargs)


def names_of_tests(ranks: int) -> list[str]:
    """Name all tests of the suite."""
    return [name for name in dir(load_suite("gloo", ranks)) if name.startswith("test_")]


def run_tests(backend: str, rank: int, ranks: int, folder: Path) -> None:
    """Be a rank: run the tests that `folder` lists, one after the other, until one fails."""
    import torch

    from drumline.comm import register_backends

    os.environ |= {"MASTER_ADDR": LOOPBACK, "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    register_backends()
    case = load_suite(backend, ranks)
    with (folder / f"rank-{rank}").open("a") as results:
        for name in json.loads((folder / "tests").read_text()):
            outcome = run_test(case, name, rank, ranks, folder / name)
            results.write(json.dumps([name, *outcome]) + "\n")
            results.flush()
            if outcome[0] == "failed":
                exit_at_once(1)
    exit_at_once(0)


def run_test(case: type, name: str, rank: int, ranks: int, folder: Path) -> Outcome:
    """Run one test on this rank, in a group of its own."""
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed

    suite = sys.modules[SUITE]
    for made in ("barrier", "test_dir"):
        (folder / made).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    suite.INIT_METHOD, suite.Barrier.barrier_id = f"file://{folder / 'init'}", 0
    backend = suite.BACKEND
    if name.startswith(ASK_FOR_GLOO):
        suite.BACKEND = "gloo"
    test = case(name)
    test.rank, test.file_name = rank, str(folder / "store")
    try:
        dist.init_process_group(
            backend,
            init_method=test.init_method,
            world_size=ranks,
            rank=rank,
            timeout=timedelta(seconds=suite.CUSTOM_PG_TIMEOUT.get(name, JOIN_S)),
        )
        suite.Barrier.sync(ranks, timeout=30)
        set_rng_seed()
        outcome = call_test(getattr(test, name))
        suite.Barrier.sync(ranks, timeout=30)
        dist.destroy_process_group()
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        suite.BACKEND = backend
    return outcome


def call_test(test: Callable[[], object]) -> Outcome:
    """Call a test; it says that it is skipped by an exception or by an exit code."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    try:
        test()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        said = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
        if end.code not in said:
            raise
        return "skipped", said[end.code]
    return "passed", ""


def run_suite(backend: str, ranks: int, names: Sequence[str]) -> dict[str, Outcome]:
    """Run tests on so many ranks; after one that failed or hung, the rest on new ranks."""
    outcomes: dict[str, Outcome] = {}
    while left := [name for name in names if name not in outcomes]:
        with tempfile.TemporaryDirectory(prefix="drumline-suite-") as folder:
            outcomes |= run_batch(backend, ranks, left, Path(folder))
    return outcomes


def run_batch(backend: str, ranks: int, names: Sequence[str], folder: Path) -> dict[str, Outcome]:
    """Start ranks and follow them until all tests are done or one has failed."""
    (folder / "tests").write_text(json.dumps(names))
    processes = start_ranks(backend, ranks, folder)
    seen, since = "", time.monotonic()
    while any(process.is_alive() for process in processes):
        now = read_results(folder, ranks)
        if str(now) != seen:
            seen, since = str(now), time.monotonic()
        failed = any(outcome[0] == "failed" for results in now for outcome in results.values())
        if time.monotonic() - since > (LEAVE_S if failed else TEST_S):
            break
        time.sleep(0.1)
    for process in processes:
        process.kill()
        process.join()
    log = (folder / "log").read_text()[-2000:]
    if not any(results := read_results(folder, ranks)):
        raise SystemExit(f"the ranks gave no result at all:\n{log}")
    return judge(results, names, log)


def start_ranks(backend: str, ranks: int, folder: Path) -> list[ForkProcess]:
    """Start the ranks of a batch, or the mpirun that does."""
    load_suite(backend, ranks)  # once, before forking
    if backend == "mpi":
        (folder / "mpi").mkdir()
        calls = [partial(become_mpirun, ranks, folder)]
    else:
        calls = [partial(run_tests, backend, rank, ranks, folder) for rank in range(ranks)]
    processes = [ForkProcess(target=be_child, args=(call, folder)) for call in calls]
    for process in processes:
        process.start()
    return processes


def be_child(call: Callable[[], None], folder: Path) -> None:
    """Go on in a child, with its output in the log of the batch."""
    die_with_parent()
    with (folder / "log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    call()


def become_mpirun(ranks: int, folder: Path) -> None:
    """Be the mpirun that starts the ranks."""
    mpirun = str(Path(sys.executable).parent / "mpirun")
    rank = [sys.executable, __file__, "--be-rank", "mpi", str(ranks), str(folder)]
    environment = mpi_environment(folder / "mpi", ranks)
    os.execve(mpirun, [mpirun, "-n", str(ranks), *rank], environment)


def read_results(folder: Path, ranks: int) -> list[dict[str, Outcome]]:
    """Read what each rank has said so far."""
    files = [folder / f"rank-{rank}" for rank in range(ranks)]
    lines = [file.read_text().splitlines() if file.exists() else [] for file in files]
    return [{name: (kind, why) for name, kind, why in map(json.loads, each)} for each in lines]


def judge(results: list[dict[str, Outcome]], names: Sequence[str], log: str) -> dict[str, Outcome]:
    """Say how each test of a batch ended on all ranks, up to the one that failed."""
    outcomes: dict[str, Outcome] = {}
    for name in names:
        said = [result[name] for result in results if name in result]
        kinds = {kind for kind, _ in said}
        if "failed" in kinds or len(said) < len(results):
            silent = [str(rank) for rank, result in enumerate(results) if name not in result]
            why = [text for kind, text in said if kind == "failed"][:1] or [log]
            if silent:
                why.append(f"no result of ranks {', '.join(silent)}")
            outcomes[name] = "failed", "\n".join(why)
            return outcomes
        outcomes[name] = ("passed", "") if "passed" in kinds else said[0]
    return outcomes


def compare(backend: str, ranks: int, names: Sequence[str], gloo: dict[str, Outcome]) -> bool:
    """Run the suite on a backend and print where gloo passes and it does not; True if nowhere."""
    passed = [name for name in names if gloo[name][0] == "passed"]
    ours = run_suite(backend, ranks, [name for name in passed if name not in REFUSED])
    differ = {name: why for name, (kind, why) in ours.items() if kind != "passed"}
    say(
        f"{backend}, {ranks} ranks: of {len(passed)} tests that gloo passes "
        f"{len(ours) - len(differ)} pass, {len(passed) - len(ours)} are refused on purpose, "
        f"{len(differ)} differ"
    )
    for name, why in sorted(differ.items()):
        say(f"  {name}\n{textwrap.indent(why.strip(), '    ')}")
    return not differ


def tell_gloo(ranks: int, gloo: dict[str, Outcome]) -> None:
    """Print how the suite ends on gloo here, with the tests that fail there already."""
    count = Counter(kind for kind, _ in gloo.values())
    say(f"gloo, {ranks} ranks: {', '.join(f'{n} {kind}' for kind, n in sorted(count.items()))}")
    for name, (kind, why) in gloo.items():
        if kind == "failed":
            say(f"  {name}\n{textwrap.indent(why.strip(), '    ')}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backends", nargs="*", default=["shm", "mpi"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--only", nargs="+", metavar="TEST")
    args = parser.parse_args()
    good = True
    for ranks in args.ranks:
        names = args.only or names_of_tests(ranks)
        gloo = run_suite("gloo", ranks, names)
        tell_gloo(ranks, gloo)
        for backend in args.backends:
            good &= compare(backend, ranks, names, gloo)
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be-rank"]:
        die_with_parent()
        backend, ranks, folder = sys.argv[2:]
        run_tests(backend, int(os.environ["OMPI_COMM_WORLD_RANK"]), int(ranks), Path(folder))
    sys.exit(main())
