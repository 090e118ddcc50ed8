"""`launch`: a function, called on every rank, from a script or a cell of a notebook.

    results = drumline.launch(train, "cnn", workers=4, nodes=2, link="1gbit")

The ranks are started as those of `drumline run`, by the session's agents; the function reaches them
by files of this user's (`core/calls.py`), and so do the results come back.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from drumline.cli.display import followed_logs
from drumline.core.calls import Call, CallFiles
from drumline.core.errors import RankTimeoutError, UsageError, WorkerError
from drumline.core.formatting import counted, name_ranks, nearest
from drumline.core.nodes import MAX_NODES, NodePlan
from drumline.core.rundir import RunDir
from drumline.core.task import LONG_TIMEOUT_S, MAX_WORKERS, PRELOAD, AgentTask
from drumline.interactive.session import session_agents
from drumline.launcher.agents import Agents
from drumline.launcher.preflight import list_gpus, may_have_gpu
from drumline.launcher.runs import launched_ranks
from drumline.spec.load import validate_spec
from drumline.spec.run_spec import RunSpec

R = TypeVar("R")
_BACKENDS = ("gloo", "nccl", "shm")
_COMPILER, _LOADS_IT = "torch._dynamo", "DistributedDataParallel"
"""seconds to load, so once for all ranks and calls"""
_ANY_BATCH = MAX_NODES * MAX_WORKERS


def launch(
    function: Callable[..., R],
    /,
    *args: Any,
    workers: int = 2,
    nodes: int = 1,
    link: str | Mapping[str, Any] | None = None,
    backend: str | None = "gloo",
    timeout_s: float | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> list[R]:
    """Call a function on every rank; return what each returned, in the order of the ranks.

    What the ranks print appears at once, with the rank in front. The function may come from
    anywhere: a module, a notebook's cell, a closure, a lambda. The environment variables are those
    that torchrun sets, and the process group is there when the function begins: it has no need of
    `init_process_group`. The processes stay warm for the next call.

    Args:
        function: called as `function(*args, **kwargs)` on every rank.
        *args: its arguments; they are pickled, as is what it returns.
        workers: ranks on each node.
        nodes: how many nodes to simulate on this machine.
        link: of each simulated node, as in a spec: its rate ("1gbit"), or rate and delay.
        backend: of the process group: gloo, shm (shared memory) or nccl (a GPU for each rank). None
            starts none, for functions that call `init_process_group` themselves.
        timeout_s: how long the ranks may take before all are ended; None: as long as they like.
        kwargs: keyword arguments of the function.

    Raises:
        Exception: what the first failing rank raised, with `rank`, and the rank's traceback as its
            cause.
        WorkerError: a rank died, ended without returning, or raised what cannot be pickled
            (`rank`).
        RankTimeoutError: the ranks had not ended in time; a TimeoutError, too.
        UsageError: the arguments are wrong; nothing was started.
    """
    if backend is not None and backend not in _BACKENDS:
        hint = nearest(backend, _BACKENDS, "or None for no process group")
        raise UsageError(f"no backend {backend!r} among {', '.join(_BACKENDS)}; {hint}")
    spec = _check_numbers(nodes, workers, link, timeout_s)
    ranks, plans = spec.world_size, spec.node_plans
    if backend == "nccl":
        _refuse_without_gpus(ranks)
    call = Call(function=function, args=args, kwargs=kwargs or {})
    with session_agents(spec.nodes) as agents, _temporary_run(agents.scratch.path) as run:
        folder = run.path / "call"
        files = CallFiles(folder)
        files.write_call(call, backend)
        task = AgentTask(
            run=str(run.path),
            workers=spec.workers,
            timeout_s=LONG_TIMEOUT_S,
            function=str(folder),
            preload=(*PRELOAD, _COMPILER) if files.mentions(_LOADS_IT) else PRELOAD,
        )
        late = False
        try:
            _follow(run, task, agents, plans, None if timeout_s is None else spec.timeout_s)
        except (WorkerError, _TimeIsUpError) as error:
            if not plans:
                agents.warm_up()  # they have ended with the failure; the next call wants them soon
            if isinstance(error, WorkerError):
                raised = _raised_on_rank(error, files)
                raise raised from (None if raised is error else error)
            late = True
        if missing := files.missing_results(ranks):
            absent = _late(missing, ranks, spec.timeout_s) if late else _silent(missing)
            raise _raised_on_rank(absent, files)
        return [files.read_result(rank) for rank in range(ranks)]


class _TimeIsUpError(Exception):
    """Ranks have not ended in time; they may have returned all the same."""


def _follow(
    run: RunDir,
    task: AgentTask,
    agents: Agents,
    plans: tuple[NodePlan, ...],
    timeout_s: float | None,
) -> None:
    """Run the ranks to their end, or to that of their time, and show what they print."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    # plain text for notebooks too: theirs would be a block of HTML for each line
    console = Console(highlight=False, soft_wrap=True, force_jupyter=False)
    with (
        followed_logs(run, task.workers * max(1, len(plans)), console) as show,
        launched_ranks(
            run,
            task,
            agents,
            plans=plans,
            kept=False,
            elsewhere="what the ranks printed is above",
            timeout=None,
        ) as polls,
    ):
        for _ in polls:
            show()
            if time.monotonic() > deadline:
                raise _TimeIsUpError


def _check_numbers(
    nodes: int, workers: int, link: str | Mapping[str, Any] | None, timeout_s: float | None
) -> RunSpec:
    """Check the numbers as those of a spec, and return the spec that has them."""
    given = {"nodes": nodes, "workers": workers, "link": link, "timeout_s": timeout_s}
    given = {name: value for name, value in given.items() if value is not None}
    if link is not None and nodes == 1:
        raise UsageError(
            f"link={link!r}: links join simulated nodes, but all workers are on one; set nodes=2 "
            f"or more, or leave link out"
        )
    return validate_spec({**given, "data": {"batch": _ANY_BATCH}})


def _refuse_without_gpus(ranks: int) -> None:
    """Refuse NCCL where there are fewer GPUs than ranks, as far as that is known without torch."""
    named, gpus = os.environ.get("CUDA_VISIBLE_DEVICES"), 0
    if named is not None:
        gpus = len([one for one in named.split(",") if one.strip() not in ("", "-1")])
    elif may_have_gpu():
        found = list_gpus()
        gpus = ranks if found is None else sum(line.startswith("GPU ") for line in found)
    if gpus < ranks:
        raise UsageError(
            f"backend='nccl' wants a GPU for each of {counted(ranks, 'rank')}, and there are "
            f"{gpus or 'none'} here; set backend='gloo', or workers to the number of GPUs"
        )


@contextlib.contextmanager
def _temporary_run(folder: Path) -> Iterator[RunDir]:
    """Make a run directory for a launch's logs and events, gone where the context ends."""
    run = RunDir.create("call", root=folder)
    run.write_json("manifest.json", {})
    try:
        yield run
    finally:
        shutil.rmtree(run.path, ignore_errors=True)


def _late(missing: list[int], ranks: int, timeout_s: float) -> RankTimeoutError:
    return RankTimeoutError(
        f"{name_ranks(missing)} had not ended after {timeout_s:g} s, so "
        f"{'it was' if ranks == 1 else f'all {ranks} ranks were'} ended; raise timeout_s if "
        f"{'it was' if len(missing) == 1 else 'they were'} only slow",
        ranks=missing,
    )


def _silent(missing: list[int]) -> WorkerError:
    return WorkerError(
        f"{name_ranks(missing)} ended without returning, as by os._exit or os.execv; let the "
        f"function return instead",
        rank=missing[0],
    )


def _raised_on_rank(error: WorkerError, files: CallFiles) -> Exception:
    """Return the exception that a rank raised, or else the error that tells of it."""
    rank = error.fields.get("rank")
    found = None if rank is None else files.read_error(rank)
    # SystemExit would end the caller, too
    raised: Exception = found if isinstance(found, Exception) else error
    if rank is not None:
        with contextlib.suppress(AttributeError):  # a type with slots
            setattr(raised, "rank", rank)  # noqa: B010
    return raised
