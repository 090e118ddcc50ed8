"""Ranks that race: what the benchmarks share that start their own processes.

A script starts itself again as ranks (`--be-rank PATH`), each of which runs the race; rank 0 leaves
the times in that file.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from launches import run_bounded
from measure import turns

from drumline.core.processes import exit_at_once

TIMEOUT_S = 240.0

Times = dict[str, list[float]]
Job = Callable[[], object]


def take_turns(jobs: dict[str, Job], rounds: int, group: dist.ProcessGroup | None = None) -> Times:
    """Time every job in turn, after a barrier of `group`; every rank calls this.

    Returns the slowest rank's times in ms.
    """
    order = list(turns(list(jobs), rounds))
    took = torch.zeros(len(order), dtype=torch.float64)
    for number, name in enumerate(order):
        dist.barrier(group=group)
        start = time.perf_counter()
        jobs[name]()
        took[number] = time.perf_counter() - start
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    times: Times = {name: [] for name in jobs}
    for name, seconds in zip(order, took.tolist(), strict=True):
        times[name].append(seconds * 1e3)
    return times


def leave() -> None:
    """End this rank once all have measured, without torch's destructors: gloo's can abort it."""
    dist.barrier()
    time.sleep(0.2)  # the others have heard of the barrier, too, before connections break
    exit_at_once(0)


def torchrun(ranks: int) -> list[str]:
    """Return the command that starts so many ranks on this host, up to the script."""
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *words]


def add_rank_option(parser: ArgumentParser) -> None:
    """Let a script be started as a rank of its own race."""
    parser.add_argument("--be-rank", type=Path, metavar="PATH", help="used by the script itself")


def start_ranks(
    launcher: Sequence[str],
    script: str,
    rounds: int,
    environment: Callable[[Path], Mapping[str, str]] | None = None,
) -> dict[str, Times]:
    """Start a script as ranks, and return the times that rank 0 has left.

    Args:
        launcher: the command that starts ranks, up to the script.
        script: the caller's own file.
        rounds: of the race.
        environment: makes the launcher's from a temporary folder; None: as it is.
    """
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as folder:
        path = Path(folder) / "times.json"
        command = [*launcher, str(Path(script).resolve())]
        command += [f"--rounds={rounds}", f"--be-rank={path}"]
        env = os.environ if environment is None else environment(Path(folder))
        run_bounded(command, timeout_s=TIMEOUT_S, cwd=Path(folder), env=env)
        found: dict[str, Times] = json.loads(path.read_text())
    return found
