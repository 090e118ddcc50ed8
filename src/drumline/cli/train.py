"""`drumline train`: from a spec and overrides to a finished run.

It may also be one rank, under torchrun, mpirun or srun, or started by hand in a terminal. Under a
launcher rank 0 speaks for all. By hand each terminal has a person before it, so every rank says how
it ended, and rank 0 shows the progress.

`resume=RUN`: a run that stopped goes on in its own directory, with its own spec. What may change is
how long it trains and how it is run, down to how its model is split over ranks; what it computes
may not, or the weights would not be those of a run that never stopped.
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
from typing import NamedTuple

from pydantic import BaseModel
from rich.console import Console

from drumline.cli.display import shown_run
from drumline.cli.printing import print_result
from drumline.core.errors import InterruptError, RunDirError, SpecError, UsageError
from drumline.core.formatting import counted
from drumline.core.processes import die_with_parent
from drumline.core.rundir import RunDir
from drumline.core.task import SCRATCH
from drumline.launch.agents import Agents
from drumline.launch.join import BY_HAND, OuterLauncher
from drumline.launch.mpirun import refuse_without_mpi
from drumline.launch.outcome import Outcome
from drumline.launch.preflight import fresh_rendezvous, refuse_bad_init_file, refuse_without_gpu
from drumline.launch.runs import RUNS, new_run, reopened_run
from drumline.launch.training import follow_training
from drumline.report.progress import RunProgress
from drumline.spec.load import load_spec, read_run_spec, spec_options
from drumline.spec.run_spec import RunSpec


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
    launcher: OuterLauncher | None,
    agents: Agents,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run `drumline train` by a spec file and overrides, and print what came of it.

    Under an outer launcher this is one rank; rank 0 also makes the run directory and prints.
    """
    given, scratch = split_args(args), agents.scratch.path
    resumed = given.resume is not None
    if resumed and (given.file is not None or out is not None):
        raise UsageError("resume=RUN brings its own spec and directory; leave the others out")
    if launcher is not None and launcher.name == "mpirun":
        die_with_parent()  # mpirun's own end by kill -9 would leave us
    if launcher is not None and launcher.rank != 0:
        sys.exit(_follow(launcher, given, scratch))
    with _opened_run(given, launcher, out) as (run, spec):
        if launcher is None:
            _launch(run, spec, agents, resumed=resumed, quiet=as_json)
        else:
            _lead(launcher, run, spec, scratch, resumed=resumed, quiet=as_json)
    print_result(run, spec, as_json=as_json)


@contextlib.contextmanager
def _opened_run(
    given: TrainArgs, launcher: OuterLauncher | None, out: Path | None
) -> Iterator[tuple[RunDir, RunSpec]]:
    """Make a run directory, or hold the one that is resumed."""
    ranks = None
    if launcher is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up when it gives up
        ranks = launcher.world_size
    if given.resume is not None:
        with resumed_run(given.resume, given.overrides, root=RUNS, ranks=ranks) as found:
            yield found
        return
    spec = load_spec(given.file, given.overrides, ranks=ranks)
    if launcher is not None:
        spec = launcher.settle(spec)
    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
    if spec.backend == "mpi" and launcher is None:
        refuse_without_mpi()
    with new_run(spec, out) as run:
        yield run, spec


def _launch(run: RunDir, spec: RunSpec, agents: Agents, *, resumed: bool, quiet: bool) -> None:
    """Start the ranks and show the run to its end."""
    progress = RunProgress(run, spec.world_size, nodes=spec.nodes)
    if resumed:
        progress.skip_to_now()
    try:
        shown = shown_run(Console(stderr=quiet), progress, run_title(run, spec))
        follow_training(run, spec, agents, shown)
    except KeyboardInterrupt:
        raise _interrupted(run, progress) from None


def run_title(run: RunDir, spec: RunSpec) -> str:
    """Return the title of a run's display, which says in one line what the run is."""
    ranks = counted(spec.world_size, "rank")
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


def _follow(launcher: OuterLauncher, given: TrainArgs, scratch: Path) -> int:
    """Be another rank than 0; the ranks find out together whether their arguments differ.

    `scratch` is a temporary folder of this process: its rank leaves its error there, too, since
    rank 0 may remove the run directory before this process has read it.
    """
    started = time.time()
    by_hand, ranks = launcher.name == BY_HAND, launcher.world_size
    if given.resume is None:
        spec = launcher.settle(load_spec(given.file, given.overrides, ranks=ranks))
        run = launcher.wait_for_run(spec.timeout_s if by_hand else None)
        meant = run
    else:
        meant = RunDir.open(given.resume, root=RUNS)
        run = launcher.wait_for_run()
        spec = load_spec(run.spec_file, given.overrides, ranks=ranks)
    if by_hand:
        print(f"rank {launcher.rank} of {ranks} joins {run.path}", file=sys.stderr)
    code = _run_rank(launcher, run, _environment(launcher, meant, spec, scratch))
    if by_hand:
        Outcome(
            run=run, world_size=ranks, exit_codes=[code], last_words=scratch, since=started
        ).check()
    return code


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
        with shown_run(Console(stderr=quiet), progress, title) as update:
            while worker.poll() is None:
                update()
                time.sleep(_POLL_S)
        return worker.returncode
    except BaseException:
        worker.kill()  # it may wait for peers that are gone
        worker.wait()
        raise


_FIXED = (
    "model",
    "data",
    "optimizer",
    "schedule",
    "accumulate",
    "clip_norm",
    "seed",
    "dtype",
    "precision",
)
_FIXED_IN_STRATEGY = ("average", "of", "compress")
"""where there are copies of the model"""


@contextlib.contextmanager
def resumed_run(
    name: str, overrides: list[str], *, root: Path, ranks: int | None = None
) -> Iterator[tuple[RunDir, RunSpec]]:
    """Find the run of `resume=RUN`, hold it while it goes on, with the overrides it may have.

    `ranks`: how many there are, where somebody else starts them.

    Raises:
        RunDirError: there is nothing to continue from.
        UsageError: there is no such run, or an override would change what it computes.
    """
    run = RunDir.open(name, root=root)
    if not run.spec_file.exists():
        raise UsageError(f"{run.path.name} ran a script; start it again with: drumline run …")
    before = read_run_spec(run)
    copies = before.axes.data
    fixed = _FIXED_IN_STRATEGY if copies > 1 else ()
    spec = load_spec(run.spec_file, overrides, ranks=ranks, lasting=fixed)
    wanted = spec.axes.data
    if copies != wanted:
        what = counted(copies, "copy of the model", "copies of the model")
        if before.world_size == copies:
            what = counted(copies, "rank")
        raise UsageError(
            f"{run.path.name} ran on {what}, not {wanted}: who sees which sample would "
            f"change; resume with workers={before.workers} nodes={before.nodes}, or with a mesh "
            f"whose data axis is {copies}"
        )
    for key in _FIXED:
        _refuse_change(run, key, getattr(before, key), getattr(spec, key))
    for key in fixed:
        was, now = getattr(before.strategy, key), getattr(spec.strategy, key)
        _refuse_change(run, f"strategy.{key}", was, now)
    if not any(run.checkpoints.glob("step-*")):
        raise RunDirError(f"{run.path.name} has no checkpoint to continue from; start a new run")
    summary = run.read_json("summary.json")
    if summary is not None and not _longer(spec, before):
        raise UsageError(
            f"{run.path.name} is finished, at step {summary['steps']}; to train it further say how "
            f"long, e.g. epochs={summary['epochs'] + 1}"
        )
    refuse_bad_init_file(spec.init)
    refuse_without_gpu(spec)
    with reopened_run(run, spec):
        yield run, spec


def _refuse_change(run: RunDir, key: str, was: object, now: object) -> None:
    if was != now:
        raise UsageError(
            f"{key.partition('.')[0]} of {run.path.name} cannot change when it is resumed "
            f"({_difference(key, was, now)}); leave it out, or start a new run"
        )


def _longer(spec: RunSpec, before: RunSpec) -> bool:
    """Whether one limit was raised or dropped, and none lowered."""
    limits = ((spec.epochs, before.epochs), (spec.max_steps, before.max_steps))
    steps = [(now or float("inf"), was or float("inf")) for now, was in limits]
    return any(now > was for now, was in steps) and all(now >= was for now, was in steps)


def _difference(key: str, was: object, now: object) -> str:
    """Name the key deepest down that has changed, and how."""
    if isinstance(was, BaseModel) and isinstance(now, BaseModel):
        before, after = dict(was), dict(now)
        changed = next(name for name in before | after if before.get(name) != after.get(name))
        return _difference(f"{key}.{changed}", before.get(changed), after.get(changed))
    return f"{key}: {was} became {now}"
