"""`drumline train`: from a spec and overrides to a finished run.

It may also be one rank, under torchrun, mpirun or srun, or started by hand in a terminal. Under a
launcher rank 0 speaks for all. By hand each terminal has a person before it, so every rank says how
it ended, and rank 0 shows the progress.

The first agent starts before the spec is read, so that both load their libraries at once: what
loads pydantic or rich is imported inside functions.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drumline.core.errors import CommError, InterruptError, SpecError, UsageError
from drumline.core.join import BY_HAND, OuterLauncher, outer_launcher, rank_by_hand
from drumline.core.processes import die_with_parent
from drumline.core.rundir import RunDir
from drumline.core.task import SCRATCH
from drumline.launcher.agents import Agents
from drumline.launcher.mpirun import require_mpirun
from drumline.launcher.outcome import RunOutcome
from drumline.launcher.runs import RUNS, fresh_rendezvous, launched_training, new_run, resumed_run

if TYPE_CHECKING:
    from drumline.cli.display import Display
    from drumline.spec.run_spec import RunSpec

_POLL_S = 0.1  # between looks at the rank that is shown


class TrainArgs(NamedTuple):
    """`[SPEC.yaml] [KEY=VALUE]… [resume=RUN]`, told apart."""

    file: Path | None
    overrides: list[str]
    resume: str | None


def split_args(args: list[str]) -> TrainArgs:
    """Split the arguments of `drumline train` into spec file, overrides and `resume=RUN`."""
    files = [arg for arg in args if "=" not in arg or Path(arg).is_file()]
    args = [arg for arg in args if arg not in files]
    if len(files) > 1:
        raise SpecError(f"one spec file at most, got {', '.join(files)}; keys are key=value")
    resume = [arg.removeprefix("resume=") for arg in args if arg.startswith("resume=")]
    overrides = [arg for arg in args if not arg.startswith("resume=")]
    return TrainArgs(Path(files[0]) if files else None, overrides, resume[-1] if resume else None)


def train_command(
    args: list[str],
    *,
    rank: int | None,
    world_size: int | None,
    master: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run `drumline train` by a spec file and overrides, and print what came of it.

    Under an outer launcher this is one rank; rank 0 also makes the run directory and prints.
    """
    launcher = rank_by_hand(rank, world_size, master) or outer_launcher()
    several = any(arg.startswith("nodes=") for arg in args)
    with Agents() as agents:
        if launcher is None and not several:  # simulated nodes start theirs inside
            agents.warm_up()
        from rich.console import Console

        from drumline.cli.display import build_display, print_result

        given, scratch = split_args(args), agents.scratch.path
        resumed = given.resume is not None
        if resumed and (given.file is not None or out is not None):
            raise UsageError("resume=RUN brings its own spec and directory; leave the others out")
        if launcher is not None and launcher.name == "mpirun":
            die_with_parent()  # mpirun's own end by kill -9 would leave us
        if launcher is not None and launcher.rank != 0:
            sys.exit(_follow(launcher, given, scratch))
        with _opened_run(given, launcher, out) as (run, spec):
            title = f"{run.path.name}: rank 0 of {launcher.world_size}" if launcher else ""
            display = build_display(Console(stderr=as_json), run, spec, title=title)
            if resumed:
                display.progress.skip_to_now()
            if launcher is None:
                _launch(run, spec, agents, display)
            else:
                _lead(launcher, run, spec, scratch, display)
        print_result(run, as_json=as_json)


@contextlib.contextmanager
def _opened_run(
    given: TrainArgs, launcher: OuterLauncher | None, out: Path | None
) -> Iterator[tuple[RunDir, RunSpec]]:
    """Make a run directory, or hold the one that is resumed."""
    from drumline.data.check import check_data
    from drumline.launcher.preflight import check_factories
    from drumline.spec.load import load_spec

    ranks = None
    if launcher is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up when it gives up
        ranks = launcher.world_size
    if given.resume is not None:
        with resumed_run(given.resume, given.overrides, root=RUNS, ranks=ranks) as found:
            yield found
        return
    spec = load_spec(given.file, given.overrides, ranks=ranks)
    check_factories(spec)
    check_data(spec.data)
    if launcher is not None:
        spec = _settle(launcher, spec)
    elif spec.backend == "mpi":
        require_mpirun()
    with new_run(spec, out) as run:
        yield run, spec


def _settle(launcher: OuterLauncher, spec: RunSpec) -> RunSpec:
    """Say how ranks meet that were told no address; a CommError across hosts."""
    if spec.init != "env" or launcher.says_where:
        return spec
    if launcher.local_world_size != launcher.world_size:
        raise CommError(
            f"{launcher.name} has started ranks on several hosts, but not said where they meet; "
            f"set MASTER_ADDR (the host of rank 0) and MASTER_PORT in the environment"
        )
    return spec.model_copy(update={"init": "tcp"})  # by a note in the run directory


def _launch(run: RunDir, spec: RunSpec, agents: Agents, display: Display) -> None:
    """Start the ranks and show the run to its end."""
    try:
        with launched_training(run, spec, agents) as polls, display:
            for _ in polls:
                display.update()
    except KeyboardInterrupt:
        rest = "there is no checkpoint yet"
        if any(run.checkpoints.glob("step-*")):
            rest = f"continue with: drumline train resume={shlex.quote(run.word(root=RUNS))}"
        raise InterruptError(
            f"interrupted at step {display.progress.step} of {run.path.name}; {rest}"
        ) from None


def _lead(
    launcher: OuterLauncher, run: RunDir, spec: RunSpec, scratch: Path, display: Display
) -> None:
    """Be rank 0 of an outer launcher, or of a person who sees the progress."""
    started = time.time()
    with fresh_rendezvous(run, spec):
        launcher.announce(run)
        try:
            shown = display if launcher.name == BY_HAND else None
            code = _run_rank(run, _environment(launcher, run, spec, scratch), shown)
        finally:
            launcher.note.unlink(missing_ok=True)
    RunOutcome(
        run=run,
        world_size=spec.world_size,
        exit_codes=[code],
        fallback_events=scratch,
        since=started,
    ).check()


def _follow(launcher: OuterLauncher, given: TrainArgs, scratch: Path) -> int:
    """Be another rank than 0; the ranks find out together whether their arguments differ.

    `scratch` is a temporary folder of this process: its rank leaves its error there, too, since
    rank 0 may remove the run directory before this process has read it.
    """
    from drumline.spec.load import load_spec

    started = time.time()
    by_hand, ranks = launcher.name == BY_HAND, launcher.world_size
    if given.resume is None:
        spec = _settle(launcher, load_spec(given.file, given.overrides, ranks=ranks))
        run = launcher.wait_for_run(spec.timeout_s if by_hand else None)
        meant = run
    else:
        meant = RunDir.open(given.resume.partition("@")[0], root=RUNS)
        run = launcher.wait_for_run()
        spec = load_spec(run.spec_file, given.overrides, ranks=ranks)
    if by_hand:
        print(f"rank {launcher.rank} of {ranks} joins {run.path}", file=sys.stderr)
    code = _run_rank(run, _environment(launcher, meant, spec, scratch))
    if by_hand:
        RunOutcome(
            run=run, world_size=ranks, exit_codes=[code], fallback_events=scratch, since=started
        ).check()
    return code


def _environment(
    launcher: OuterLauncher, run: RunDir, spec: RunSpec, scratch: Path
) -> dict[str, str]:
    """Return the environment of the rank, with what it was started with, for all to compare."""
    from drumline.spec.load import spec_options

    ranks = f"--world-size {launcher.world_size}"
    args = {"run": f"the run {run.path.name}", "ranks": ranks, **spec_options(spec)}
    return {**launcher.worker_environment(options=args), SCRATCH: str(scratch)}


def _run_rank(run: RunDir, environment: dict[str, str], display: Display | None = None) -> int:
    worker = subprocess.Popen(
        [sys.executable, "-m", "drumline.trainer", str(run.path)], env=environment
    )
    try:
        if display is not None:
            with display:
                while worker.poll() is None:
                    display.update()
                    time.sleep(_POLL_S)
        return worker.wait()
    except BaseException:
        worker.kill()  # it may wait for peers that are gone
        worker.wait()
        raise
