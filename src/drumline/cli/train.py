"""`drumline train`: from words to a finished run."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from drumline.cli.joining import join_command
from drumline.cli.printing import print_result
from drumline.cli.resume import resumed_run
from drumline.core.errors import InterruptError, SpecError, UsageError
from drumline.core.rundir import RunDir
from drumline.launch.agents import Agents
from drumline.launch.creation import RUNS, new_run
from drumline.launch.gpu import refuse_without_gpu
from drumline.launch.join import OuterLauncher
from drumline.launch.meeting import refuse_bad_meeting
from drumline.launch.mpirun import refuse_without_mpi
from drumline.launch.training import follow_training
from drumline.report.display import open_display
from drumline.report.progress import RunProgress
from drumline.spec.load import load_spec
from drumline.spec.run_spec import RunSpec


def train_command(
    words: list[str],
    launcher: OuterLauncher | None,
    agents: Agents,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train by a spec file and overrides, and print what came of it."""
    file, overrides, resume = split_words(words)
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
        refuse_bad_meeting(spec.init)
        refuse_without_gpu(spec)
        if spec.backend == "mpi":
            refuse_without_mpi()
        with new_run(spec, out) as run:
            _launch(run, spec, agents, resumed=False, quiet=as_json)
        print_result(run, spec, as_json=as_json)


def split_words(words: list[str]) -> tuple[Path | None, list[str], str | None]:
    """Tell the spec file, the overrides and `resume=RUN` apart."""
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    words = [word for word in words if word not in files]
    if len(files) > 1:
        raise SpecError(f"one spec file at most, got {', '.join(files)}; keys are key=value")
    resume = [word.removeprefix("resume=") for word in words if word.startswith("resume=")]
    overrides = [word for word in words if not word.startswith("resume=")]
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
