"""`drumline train`: from a spec and overrides to a finished run.

`join_command` is the same as one rank, under torchrun, mpirun or srun, or by hand in a terminal.
Under a launcher rank 0 speaks for all. By hand each terminal has a person before it, so every rank
says how it ended, and rank 0 shows the progress.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from drumline.cli.display import open_display
from drumline.cli.printing import print_result
from drumline.cli.resume import resumed_run
from drumline.core.errors import InterruptError, SpecError, UsageError
from drumline.core.processes import die_with_parent
from drumline.core.rundir import RunDir
from drumline.core.task import SCRATCH
from drumline.launch.agents import Agents
from drumline.launch.join import BY_HAND, OuterLauncher
from drumline.launch.mpirun import refuse_without_mpi
from drumline.launch.outcome import Outcome
from drumline.launch.preflight import fresh_rendezvous, refuse_bad_init_file, refuse_without_gpu
from drumline.launch.runs import RUNS, new_run
from drumline.launch.training import follow_training
from drumline.report.progress import RunProgress
from drumline.spec.load import load_spec, spec_options
from drumline.spec.run_spec import RunSpec


def train_command(
    args: list[str],
    launcher: OuterLauncher | None,
    agents: Agents,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train by a spec file and overrides, and print what came of it."""
    file, overrides, resume = split_args(args)
    if resume is not None and (file is not None or out is not None):
        raise UsageError("resume=RUN brings its own spec and directory; leave the others out")
    if launcher is not None:
        scratch = agents.scratch.path
        join_command(launcher, file, overrides, resume, scratch=scratch, out=out, as_json=as_json)
    elif resume is not None:
        with resumed_run(resume, overrides, root=RUNS) as (run, spec):
            _launch(run, spec, agents, resumed=True, quiet=as_json)
        print_result(run, spec, as_json=as_json)
    else:
        spec = load_spec(file, overrides)
        refuse_bad_init_file(spec.init)
        refuse_without_gpu(spec)
        if spec.backend == "mpi":
            refuse_without_mpi()
        with new_run(spec, out) as run:
            _launch(run, spec, agents, resumed=False, quiet=as_json)
        print_result(run, spec, as_json=as_json)


def split_args(args: list[str]) -> tuple[Path | None, list[str], str | None]:
    """Tell the spec file, the overrides and `resume=RUN` apart."""
    files = [arg for arg in args if "=" not in arg or Path(arg).is_file()]
    args = [arg for arg in args if arg not in files]
    if len(files) > 1:
        raise SpecError(f"one spec file at most, got {', '.join(files)}; keys are key=value")
    resume = [arg.removeprefix("resume=") for arg in args if arg.startswith("resume=")]
    overrides = [arg for arg in args if not arg.startswith("resume=")]
    return Path(files[0]) if files else None, overrides, resume[-1] if resume else None


def _launch(run: RunDir, spec: RunSpec, agents: Agents, *, resumed: bool, quiet: bool) -> None:
    """Start the ranks and show the run to its end."""
    progress = RunProgress(run, spec.world_size, nodes=spec.nodes)
    if resumed:
        progress.skip_to_now()

    @contextlib.contextmanager
    def shown() -> Iterator[Callable[[], None]]:
        display = open_display(Console(stderr=quiet), progress, title_of(run, spec))
        try:
            yield display.update
        finally:
            display.close()

    try:
        follow_training(run, spec, agents, shown())
    except KeyboardInterrupt:
        raise _interrupted(run, progress) from None


def title_of(run: RunDir, spec: RunSpec) -> str:
    """Say in one line what a run is."""
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}"
    if spec.nodes > 1:
        ranks += f" on {spec.nodes} nodes"
    return f"{run.path.name}: {spec.model.name} on {spec.data.name}, {ranks}, {spec.strategy.kind}"


def _interrupted(run: RunDir, progress: RunProgress) -> InterruptError:
    if any(run.checkpoints.glob("step-*")):
        rest = f"continue with: drumline train resume={shlex.quote(run.word(root=RUNS))}"
    else:
        rest = "there is no checkpoint yet"
    return InterruptError(f"interrupted at step {progress.step} of {run.path.name}; {rest}")


_POLL_S = 0.1


def join_command(
    launcher: OuterLauncher,
    file: Path | None,
    overrides: list[str],
    resume: str | None,
    *,
    scratch: Path,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run this process's rank to its end; rank 0 also makes the run directory and prints.

    `scratch` is a temporary folder of this process: its rank leaves its error there, too, since
    rank 0 may remove the run directory before this process has read it.
    """
    if launcher.name == "mpirun":
        die_with_parent()  # mpirun's own end by kill -9 would leave us
    if launcher.rank != 0:
        _follow(launcher, file, overrides, resume, scratch=scratch)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up when the launcher gives up
    if resume is not None:
        ranks = launcher.world_size
        with resumed_run(resume, overrides, root=RUNS, ranks=ranks) as (run, spec):
            _lead(launcher, run, spec, scratch, resumed=True, quiet=as_json)
    else:
        spec = launcher.settle(load_spec(file, overrides, ranks=launcher.world_size))
        refuse_bad_init_file(spec.init)
        refuse_without_gpu(spec)
        with new_run(spec, out) as run:
            _lead(launcher, run, spec, scratch, resumed=False, quiet=as_json)
    print_result(run, spec, as_json=as_json)


def _lead(
    launcher: OuterLauncher,
    run: RunDir,
    spec: RunSpec,
    scratch: Path,
    *,
    resumed: bool,
    quiet: bool,
) -> None:
    started = time.time()
    progress = RunProgress(run, spec.world_size)
    if resumed:
        progress.skip_to_now()
    with fresh_rendezvous(run, spec):
        launcher.announce(run)
        try:
            shown = progress if launcher.name == BY_HAND else None
            environment = _environment(launcher, run, spec, scratch)
            code = _run_rank(launcher, run, environment, shown, quiet)
        finally:
            launcher.note.unlink(missing_ok=True)
    Outcome(
        run=run, world_size=spec.world_size, exit_codes=[code], last_words=scratch, since=started
    ).check()


def _follow(
    launcher: OuterLauncher,
    file: Path | None,
    overrides: list[str],
    resume: str | None,
    *,
    scratch: Path,
) -> None:
    """Be another rank than 0; the ranks find out together whether their arguments differ."""
    started = time.time()
    by_hand, ranks = launcher.name == BY_HAND, launcher.world_size
    if resume is None:
        spec = launcher.settle(load_spec(file, overrides, ranks=ranks))
        run = launcher.wait_for_run(spec.timeout_s if by_hand else None)
        meant = run
    else:
        meant = RunDir.open(resume, root=RUNS)
        run = launcher.wait_for_run()
        spec = load_spec(run.spec_file, overrides, ranks=ranks)
    if by_hand:
        print(f"rank {launcher.rank} of {ranks} joins {run.path}", file=sys.stderr)
    code = _run_rank(launcher, run, _environment(launcher, meant, spec, scratch))
    if by_hand:
        Outcome(
            run=run, world_size=ranks, exit_codes=[code], last_words=scratch, since=started
        ).check()
    sys.exit(code)


def _environment(
    launcher: OuterLauncher, run: RunDir, spec: RunSpec, scratch: Path
) -> dict[str, str]:
    """Return the environment of the rank, with what it was started with, for all to compare."""
    ranks = f"--world-size {launcher.world_size}"
    args = {"run": f"the run {run.path.name}", "ranks": ranks, **spec_options(spec)}
    return {**launcher.worker_environment(options=args), SCRATCH: str(scratch)}


def _run_rank(
    launcher: OuterLauncher,
    run: RunDir,
    environment: dict[str, str],
    progress: RunProgress | None = None,
    quiet: bool = False,
) -> int:
    worker = subprocess.Popen(
        [sys.executable, "-m", "drumline.train", str(run.path)], env=environment
    )
    try:
        if progress is None:
            return worker.wait()
        title = f"{run.path.name}: rank {launcher.rank} of {launcher.world_size}"
        display = open_display(Console(stderr=quiet), progress, title)
        try:
            while worker.poll() is None:
                display.update()
                time.sleep(_POLL_S)
        finally:
            display.close()
        return worker.returncode
    except BaseException:
        worker.kill()  # it may wait for peers that are gone
        worker.wait()
        raise
