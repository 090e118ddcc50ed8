"""`drumline train`: from words to a finished run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich.console import Console

from drumline.cli.joining import join_command
from drumline.cli.printing import print_result
from drumline.cli.resume import open_for_resume
from drumline.core.errors import DrumlineError, InterruptError, SpecError, UsageError, WorkerError
from drumline.core.events import read_events
from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec
from drumline.core.spec_file import load_spec
from drumline.core.task import AgentTask
from drumline.launch import Agents, check_outcome, outer_launcher
from drumline.launch.creation import RUNS, create_run
from drumline.launch.meeting import meeting_removed, refuse_stale_meeting
from drumline.report.display import open_display
from drumline.report.progress import RunProgress

_POLL_S = 0.1


def train_command(words: list[str], *, out: Path | None, as_json: bool) -> None:
    """Train by a spec file and overrides, and print what came of it."""
    file, overrides, resume = split_words(words)
    launcher = outer_launcher()
    if launcher is not None:
        overrides = [*overrides, f"workers={launcher.world_size}", "nodes=1"]
        if not any(word.startswith("init=") for word in overrides):
            overrides.append(f"init={launcher.init}")
    run: RunDir | None = None
    if resume is None:
        spec = load_spec(file, overrides)
    elif file is not None or out is not None:
        raise UsageError("resume=RUN brings its own spec and directory; leave the others out")
    else:
        run, spec = open_for_resume(resume, overrides, root=RUNS)
    if launcher is not None:
        join_command(launcher, spec, run, out=out, as_json=as_json)
    elif run is not None:
        _launch(run, spec, resumed=True, quiet=as_json)
        print_result(run, spec, as_json=as_json)
    else:
        _train_anew(spec, out=out, as_json=as_json)


def split_words(words: list[str]) -> tuple[Path | None, list[str], str | None]:
    """Tell the spec file, the overrides and `resume=RUN` apart."""
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise SpecError(f"one spec file at most, got {', '.join(files)}; keys are key=value")
    resume = [word.removeprefix("resume=") for word in words if word.startswith("resume=")]
    overrides = [word for word in words if "=" in word and not word.startswith("resume=")]
    return Path(files[0]) if files else None, overrides, resume[-1] if resume else None


def _train_anew(spec: RunSpec, *, out: Path | None, as_json: bool) -> None:
    refuse_stale_meeting(spec.init)
    run = create_run(spec, out)
    try:
        _launch(run, spec, resumed=False, quiet=as_json)
    except DrumlineError as error:
        # A mistake in the words leaves nothing; a crash leaves its logs.
        if not isinstance(error, WorkerError | InterruptError) and not _has_trained(run):
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    print_result(run, spec, as_json=as_json)


def _launch(run: RunDir, spec: RunSpec, *, resumed: bool, quiet: bool) -> None:
    """Start the agents and follow the run to its end."""
    progress = RunProgress(run, spec.world_size)
    if resumed:
        progress.skip_to_now()
    with meeting_removed(run, spec.init), Agents(run, _tasks(run, spec)) as agents:
        display = open_display(Console(stderr=quiet), progress, _title(run, spec))
        try:
            while agents.running():
                display.update()
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            agents.stop()
            raise _interrupted(run, progress) from None
        finally:
            display.close()
        codes = agents.exit_codes
        check_outcome(
            run, world_size=spec.world_size, exit_codes=codes, last_words=agents.last_words
        )


def _tasks(run: RunDir, spec: RunSpec) -> list[AgentTask]:
    preload = ["drumline.agent.entry"]
    if spec.optimizer.engine == "torch":
        preload.append("torch._dynamo")  # torch's own optimizers import it in their first step
    return [
        AgentTask(
            run=str(run.path),
            node=node,
            nodes=spec.nodes,
            workers=spec.workers,
            restarts=spec.restarts,
            timeout_s=spec.timeout_s,
            preload=tuple(preload),
        )
        for node in range(spec.nodes)
    ]


def _title(run: RunDir, spec: RunSpec) -> str:
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}"
    return f"{run.path.name}: {spec.model.name} on {spec.data.name}, {ranks}, {spec.strategy.kind}"


def _interrupted(run: RunDir, progress: RunProgress) -> InterruptError:
    if any(run.checkpoints.glob("step-*")):
        rest = f"continue with: drumline train resume={run.path.name}"
    else:
        rest = "there is no checkpoint yet"
    return InterruptError(f"interrupted at step {progress.step} of {run.path.name}; {rest}")


def _has_trained(run: RunDir) -> bool:
    """Whether there is anything in a run directory that is worth keeping."""
    return any(event["event"] == "step" for event in read_events(run.rank_events(0)))
