"""`drumline run`: the launcher for anybody's PyTorch script."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from rich.console import Console

from drumline.cli.display import LogTail
from drumline.core.errors import UsageError
from drumline.core.formatting import format_seconds
from drumline.core.nodes import MAX_NODES, NodePlan
from drumline.core.rundir import RunDir
from drumline.core.task import MAX_WORKERS, MODULE, PRELOAD, AgentTask
from drumline.launch.agents import Agents
from drumline.launch.preflight import find_module, guess_preloads
from drumline.launch.runs import create_script_run, launched_ranks, noted_failure
from drumline.spec.load import validate_spec

_TIMEOUT_S = 300.0


def run_script_command(
    script: str,
    args: list[str],
    *,
    shape: str,
    restarts: int,
    module: bool = False,
    link_rate: str | None = None,
) -> None:
    """Run `drumline run`: a script or module on all workers, its output prefixed by rank."""
    nodes, workers = _parse_shape(shape)
    plans = _plan_links(nodes, workers, link_rate)
    path = find_module(script) if module else Path(script)
    if not path.is_file():
        raise UsageError(f"no script {script}; give the path of a Python file")
    preload = (*PRELOAD, *guess_preloads(path))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", script if module else path.stem).lstrip("-._")
    run = create_script_run(name or "script", [script, *args])
    task = AgentTask(
        run=str(run.path),
        workers=workers,
        timeout_s=_TIMEOUT_S,
        restarts=restarts,
        script=(MODULE, script, *args) if module else (str(path.resolve()), *args),
        preload=preload,
    )
    _follow(run, task, plans, world_size=nodes * workers)


def _plan_links(nodes: int, workers: int, rate: str | None) -> tuple[NodePlan, ...]:
    link = {} if rate is None else {"link": {"rate": rate}}
    values = {"nodes": nodes, "workers": 1, "data": {"batch": nodes}, **link}
    if link and nodes == 1:
        raise UsageError(
            f"--link-rate {rate}: links join simulated nodes, but all workers are on one; write "
            f"-j {max(2, workers)}x1 for nodes with one worker each, or leave --link-rate out"
        )
    return validate_spec(values, {("link", "rate"): f"--link-rate {rate}"}).node_plans


def _parse_shape(shape: str) -> tuple[int, int]:
    """Read `NxM` as (nodes, workers per node); `M` alone is one node."""
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)", shape)
    nodes, workers = (int(match.group(1) or 1), int(match.group(2))) if match else (0, 0)
    if nodes < 1 or workers < 1:
        raise UsageError(f"-j {shape}: expected nodes x workers, such as 1x4 or 2x2")
    if nodes > MAX_NODES or workers > MAX_WORKERS:
        raise UsageError(
            f"-j {shape}: at most {MAX_NODES} nodes with {MAX_WORKERS} workers each, such as 1x4"
        )
    return nodes, workers


def _follow(run: RunDir, task: AgentTask, plans: tuple[NodePlan, ...], *, world_size: int) -> None:
    """Print what the ranks print until all have ended."""
    console = Console(highlight=False, soft_wrap=True)
    tails = [LogTail(run.rank_log(rank), f"[{rank}]") for rank in range(world_size)]

    def show(*, to_the_end: bool = False) -> None:
        for tail in tails:
            tail.print_new(console, to_the_end=to_the_end)

    started, timeout = time.monotonic(), "the script's own timeout"
    with (
        noted_failure(run),
        Agents() as agents,
        launched_ranks(run, task, agents, plans=plans, timeout=timeout) as polls,
    ):
        for _ in polls:
            show()
        show(to_the_end=True)
    shutil.rmtree(run.rendezvous, ignore_errors=True)
    seconds = time.monotonic() - started
    run.write_json("summary.json", {"world_size": world_size, "time_s": seconds})
    ranks = "the one rank is" if world_size == 1 else f"all {world_size} ranks are"
    console.print(f"{ranks} done in {format_seconds(seconds)}; logs: {run.logs}", markup=False)
