"""What a rank does first: train by the spec, call a function, or become the program of a user.

A program is run as `python -u script.py args…` or `python -u -m module args…` would: it finds what
torchrun's ranks find, and its process ends as Python's do. What comes around it is

    1. the rank's log and event file; its interface            run_script
    2. the program, as the module __main__                     run_program
    3. an uncaught exception becomes an event, then Python's   run_script
       usual traceback
    4. threads and `atexit`, by Python; then gloo's threads    Ending
       come to rest, and the exit code is noted
    5. Python takes the process apart

Why gloo's threads must rest is told in `comm/gloo_threads.py`: (5) destroys process groups, too.

`python -m drumline.agent.worker RUNDIR` is what mpirun starts for each rank. It forks the rank,
before torch is loaded, and waits for it: somebody must note how a rank ended that was killed and
cannot tell. When mpirun ends, so do both.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from drumline.agent.cpu_throttle import sign_in
from drumline.core.errors import CommError
from drumline.core.processes import die_with_parent, exit_at_once
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.task import MODULE, AgentTask

_THREADS = "OMP_NUM_THREADS"


def run_worker(
    *,
    task: Mapping[str, Any],
    environment: Mapping[str, str],
    register: str,
    note: str,
    last: list[Callable[[], None]],
) -> None:
    """Be one rank of an agent's task, in a process that was forked from the worker server.

    Args:
        task: the agent's, as JSON.
        environment: all variables of the process.
        register: where it signs in to be slowed; empty: nowhere.
        note: where it notes its exit code, once its program has ended.
        last: called when all that was registered with `atexit` is done.
    """
    own = AgentTask.from_json(dict(task))
    _enter_environment(environment, own.folder)
    if register:
        sign_in(register)
    if own.script:
        run_script(own.run_dir, own.script, note=Path(note), last=last, observed=own.observed)
        return
    sys.stdin = open(os.devnull)  # noqa: SIM115
    if own.function:
        from drumline.agent.function import call_function

        call_function(own.run_dir, Path(own.function), workers=own.workers)
    else:
        _train(own.run)
    exit_at_once(0)


def _enter_environment(environment: Mapping[str, str], folder: str) -> None:
    """Give this process what the server that it was forked from has not, or should not share."""
    threads = os.environ.get(_THREADS)
    os.environ.clear()
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
    if environment.get(_THREADS, threads) != threads:  # torch has read it when it was loaded
        import torch

        torch.set_num_threads(int(environment[_THREADS]))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _train(run_path: str) -> None:
    from drumline.trainer import train_rank

    train_rank(run_path)


def run_script(
    run: RunDir,
    script: tuple[str, ...],
    *,
    note: Path,
    last: list[Callable[[], None]],
    observed: bool,
) -> None:
    """Run a script of the user's, or MODULE and a module, as a rank; `last` as in `run_worker`.

    `observed`: whether its steps and collectives are noted, which takes time itself.
    """
    from drumline.comm.gloo_threads import rest_before_destroying
    from drumline.comm.group import pin_interface, register_backends
    from drumline.comm.store import LOOPBACK
    from drumline.trainer.rank import enter_run, note_failure

    info, events = enter_run(run)  # (1)
    ending = Ending(events, note)
    last.append(ending)
    register_backends()
    rest_before_destroying()
    pin_interface(os.environ.get("MASTER_ADDR", LOOPBACK))
    if observed:
        from drumline.observer import observe_rank

        observe_rank(run, info.rank, events)
    try:
        run_program(script)  # (2)
        ending.code = 0
    except SystemExit as leaving:
        ending.code = _exit_code(leaving)
        raise
    except KeyboardInterrupt:  # Python ends by SIGINT then
        raise
    except BaseException as error:
        ending.code = 1
        error.__traceback__ = note_failure(events, error, rank=info.rank)  # (3)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def run_program(script: tuple[str, ...]) -> None:
    """Run a script or a module as the module `__main__` of this process, as Python does."""
    # a new one: the server's is kept out of garbage collection, with all that would be in it
    sys.modules["__main__"] = module = ModuleType("__main__")
    main = module.__dict__
    main.update(__annotations__={}, __builtins__=builtins)
    sys.orig_argv = [sys.executable, "-u", *script]
    if script[0] == MODULE:
        sys.argv = [MODULE, *script[2:]]
        _set_first_path(os.getcwd())
        runpy._run_module_as_main(script[1])  # type: ignore[attr-defined]
        return
    path = os.path.abspath(script[0])
    sys.argv = list(script)
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main)


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _exit_code(leaving: SystemExit) -> int:
    """Return what Python makes of `sys.exit(…)`."""
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    return 0 if leaving.code is None else 1


class Ending:
    """What is done at a rank's end, after the program and all that it has registered (4)."""

    def __init__(self, events: EventWriter, note: Path) -> None:
        self.code: int | None = None
        self._events = events
        self._note = note
        self._process = os.getpid()
        os.register_at_fork(before=self._flush)  # or a fork would write the same lines again

    def __call__(self) -> None:
        """Close the events, let gloo's threads come to rest, and note the exit code."""
        if os.getpid() != self._process:  # a fork of the program's
            return
        with contextlib.suppress(Exception):  # a full disk; the program has ended well or not
            self._events.close()
        from drumline.comm.gloo_threads import rest_gloo_threads

        rest_gloo_threads()
        if self.code is not None:
            with contextlib.suppress(OSError):
                self._note.write_text(str(self.code))

    def _flush(self) -> None:
        with contextlib.suppress(Exception):
            self._events.flush()


_AS_TORCHRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def _run_mpi_rank() -> int:
    """Fork the rank, and return its exit code."""
    die_with_parent()
    run = RunDir(Path(sys.argv[1]))
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        raise CommError("this mpirun is not Open MPI's; pip install 'drumline[mpi]' brings that")
    os.environ.update({name: os.environ[theirs] for name, theirs in _AS_TORCHRUN.items()})
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)  # before torch, which takes a while to load
        _run_forked(run, tuple(sys.argv[2:]))
        return 0
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        rank = int(os.environ["RANK"])
        with EventWriter(run.node_events(0)) as events:
            events.write("worker_exit", rank=rank, exit_code=code, time=time.time())
    return code if code >= 0 else 128 - code


def _run_forked(run: RunDir, script: tuple[str, ...]) -> None:
    if not script:
        _train(str(run.path))
        return
    last: list[Callable[[], None]] = []
    try:
        run_script(run, script, note=Path(os.devnull), last=last, observed=False)
    finally:
        for ending in last:
            ending()


if __name__ == "__main__":
    sys.exit(_run_mpi_rank())
