"""`drumline run`: the launcher for anybody's PyTorch script."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from drumline.cli.commands.train import ObserveOptions
from drumline.cli.display import Display, followed_logs, print_record
from drumline.cli.hang import HangReporter
from drumline.core.errors import UsageError
from drumline.core.formatting import format_seconds, listed
from drumline.core.join import rank_by_hand
from drumline.core.nodes import MAX_NODES, NodePlan
from drumline.core.rundir import Event, EventTail, RunDir
from drumline.core.task import MAX_WORKERS, MODULE, PRELOAD, AgentTask
from drumline.launcher.agents import Agents
from drumline.launcher.outcome import describe_exit
from drumline.launcher.preflight import find_module, guess_preloads
from drumline.launcher.runs import create_script_run, launched_ranks, noted_failure
from drumline.report.progress import RunProgress
from drumline.report.runs.record import read_record
from drumline.report.tables import Accounts
from drumline.spec.load import load_spec, validate_spec

_TIMEOUT_S = 300.0
_SHAPE = "1x2"  # of a run that was given none
_SERVES_ITSELF = {"TORCHELASTIC_USE_AGENT_STORE": "False"}  # rank 0 opens the store at --master


def run_script_command(
    script: str,
    args: list[str],
    *,
    shape: str,
    restarts: int,
    observe: ObserveOptions,
    module: bool = False,
    link_rate: str | None = None,
    slow_node: list[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    master: str | None = None,
) -> None:
    """Run `drumline run`: a script or module on all workers, its output prefixed by rank."""
    by_hand = rank_by_hand(rank, world_size, master)
    if by_hand is not None:
        _refuse_beside_rank(
            {
                "-j": shape != _SHAPE,
                "--restarts": restarts > 0,
                "--link-rate": bool(link_rate),
                "--slow-node": bool(slow_node),
            }
        )
        shape = "1x1"
    nodes, workers = _parse_shape(shape)
    plans = _plan_links(nodes, workers, link_rate, slow_node or [])
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
        script=(MODULE, script, *args) if module else (script, *args),
        preload=preload,
        observed=observe.ledger,
        variables={} if by_hand is None else {**by_hand.worker_environment({}), **_SERVES_ITSELF},
    )
    world_size = by_hand.world_size if by_hand else nodes * workers
    console = Console(highlight=False, soft_wrap=True)
    with run.locked():
        _follow(HangReporter(run, world_size, observe, console), task, plans)


def _refuse_beside_rank(given: Mapping[str, bool]) -> None:
    """Refuse options that concern all ranks, where each is started by hand."""
    others = [option for option, is_given in given.items() if is_given]
    if others:
        raise UsageError(
            f"{listed(others)} beside --rank: this is one rank, and each is started by hand; "
            f"leave {'it' if len(others) == 1 else 'them'} out"
        )


def _describe_restart(event: Event, restarts: int) -> str:
    return (
        f"rank {event['rank']} {describe_exit(event['exit_code'])}; all ranks start again "
        f"(restart {event['attempt']} of {restarts})"
    )


def _plan_links(
    nodes: int, workers: int, rate: str | None, slow: Sequence[str]
) -> tuple[NodePlan, ...]:
    option = f"--slow-node {slow[0]}" if slow else f"--link-rate {rate}"
    if (rate or slow) and nodes == 1:
        raise UsageError(
            f"{option}: links join simulated nodes, but all workers are on one; write "
            f"-j {max(2, workers)}x1 for nodes with one worker each, or leave it out"
        )
    for one in slow:
        if not re.fullmatch(r"\d+\.\w+=.+", one):
            raise UsageError(f"--slow-node {one}: write e.g. 2.rate=100mbit or 3.cpu=0.5")
    link = {} if rate is None else {"link": {"rate": rate}}
    values = {"nodes": nodes, "workers": 1, "data": {"batch": nodes}, **link}
    plans = validate_spec(values, {("link", "rate"): f"--link-rate {rate}"}).node_plans
    return load_spec(values, [f"slow_nodes.{one}" for one in slow]).node_plans if slow else plans


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


def _follow(reporter: HangReporter, task: AgentTask, plans: tuple[NodePlan, ...]) -> None:
    """Print what the ranks print, who is slow and who hangs, until all end; then the accounts."""
    run, console, world_size = reporter.run, reporter.console, reporter.world_size
    display = Display(console, RunProgress(run, world_size))
    nodes = [EventTail(run.node_events(node)) for node in range(max(1, len(plans)))]

    def show_news() -> None:
        for event in (event for node in nodes for event in node.read_events()):
            if event["event"] == "restart":
                console.print(_describe_restart(event, task.restarts), markup=False)
        display.update()

    started, timeout = time.monotonic(), "the script's own timeout"
    with (
        noted_failure(run),
        reporter.listening(),
        Agents() as agents,
        followed_logs(run, world_size, console) as show_logs,  # till all ranks have ended
        launched_ranks(run, task, agents, plans=plans, timeout=timeout) as polls,
    ):
        for _ in polls:
            show_news()
            show_logs()
            reporter.look()
        show_news()
    shutil.rmtree(run.rendezvous, ignore_errors=True)
    _conclude(run, task, console, world_size=world_size, time_s=time.monotonic() - started)


def _conclude(
    run: RunDir, task: AgentTask, console: Console, *, world_size: int, time_s: float
) -> None:
    """Write the summary, and print it with the ledger where the script was metered."""
    summary = {"world_size": world_size, "time_s": time_s}
    run.write_json("summary.json", summary)  # it is done, whatever becomes of its accounts
    record = read_record(run)
    accounts = Accounts.of(record)
    run.write_json("summary.json", {**record.result, **accounts.to_json()})
    print_record(record, accounts)
    ranks = "the one rank is" if world_size == 1 else f"all {world_size} ranks are"
    if by_hand := task.variables.get("RANK"):
        ranks = f"rank {by_hand} is"
    console.print(f"{ranks} done in {format_seconds(time_s)}; logs: {run.logs}", markup=False)
