"""`drumline train`: from words to a finished run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from drumline.cli.printing import print_result
from drumline.cli.resume import open_for_resume
from drumline.core.errors import DrumlineError, SpecError, UsageError, WorkerError
from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec
from drumline.core.spec_file import load_spec
from drumline.core.task import AgentTask
from drumline.launch import Agents, build_manifest, check_outcome, outer_launcher
from drumline.launch.join import OuterLauncher
from drumline.report.display import open_display
from drumline.report.progress import RunProgress

RUNS = Path("runs")
_POLL_S = 0.1


def train_command(words: list[str], *, out: Path | None, as_json: bool) -> None:
    """Train by a spec file and overrides, and print what came of it."""
    file, overrides, resume = split_words(words)
    launcher = outer_launcher()
    if launcher is not None:
        overrides = [*overrides, f"workers={launcher.world_size}", "nodes=1"]
    if resume is not None:
        if file is not None or out is not None:
            raise UsageError("resume=RUN brings its own spec and directory; leave the others out")
        run, spec = open_for_resume(resume, overrides, root=RUNS)
    else:
        spec = load_spec(file, overrides)
        run = None
    if launcher is not None:
        _join(launcher, spec, run, out=out, as_json=as_json)
        return
    _refuse_stale_meeting(spec)
    fresh = run is None
    run = run or create_run(spec, out)
    try:
        _launch(run, spec, resumed=not fresh, quiet=as_json)
    except DrumlineError as error:
        if fresh and not isinstance(error, WorkerError) and not _has_trained(run):
            _forget(run)
        raise
    print_result(run, spec, as_json=as_json)


def split_words(words: list[str]) -> tuple[Path | None, list[str], str | None]:
    """Tell the spec file, the overrides and `resume=RUN` apart."""
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise SpecError(f"one spec file at most, got {', '.join(files)}; keys are key=value")
    resume = [word.removeprefix("resume=") for word in words if word.startswith("resume=")]
    overrides = [word for word in words if "=" in word and not word.startswith("resume=")]
    return (
        Path(files[0]) if files else None,
        overrides,
        resume[-1] if resume else None,
    )


def create_run(spec: RunSpec, out: Path | None) -> RunDir:
    """Make the run's directory, with its spec and manifest."""
    run = RunDir.create(spec.name, root=RUNS, exact=out)
    run.write_spec(spec)
    run.write_json("manifest.json", build_manifest(sys.argv))
    return run


def _launch(run: RunDir, spec: RunSpec, *, resumed: bool, quiet: bool) -> None:
    """Start the agents and follow the run to its end."""
    console = Console(stderr=quiet)
    progress = RunProgress(run, spec.world_size)
    if resumed:
        progress.skip_to_now()
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}"
    title = f"{run.path.name}: {spec.model.name} on {spec.data.name}, {ranks}, {spec.strategy.kind}"
    with Agents(run, _tasks(run, spec)) as agents:
        display = open_display(console, progress, title)
        try:
            while agents.running():
                display.update()
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            agents.stop()
            display.close()
            raise _interrupted(run, progress) from None
        display.close()
        codes = agents.exit_codes
    check_outcome(run, world_size=spec.world_size, exit_codes=codes)


def _tasks(run: RunDir, spec: RunSpec) -> list[AgentTask]:
    preload = ["drumline.agent.entry"]
    if spec.strategy.kind == "ddp":
        preload.append("torch._dynamo")  # DDP imports it when it is built
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


def _join(
    launcher: OuterLauncher, spec: RunSpec, run: RunDir | None, *, out: Path | None, as_json: bool
) -> None:
    """Be one rank of a run that torchrun, mpirun or srun has started."""
    try:
        if launcher.rank == 0:
            run = run or create_run(spec, out)
            launcher.announce(run)
        else:
            run = launcher.wait_for_run()
        worker = subprocess.run(
            [sys.executable, "-m", "drumline.train", str(run.path)],
            env=launcher.worker_environment(),
            check=False,
        )
    finally:
        if launcher.rank == 0:
            launcher.note.unlink(missing_ok=True)
    if launcher.rank == 0:
        check_outcome(run, world_size=spec.world_size, exit_codes=[worker.returncode])
        print_result(run, spec, as_json=as_json)
    elif worker.returncode:
        sys.exit(worker.returncode)


def _refuse_stale_meeting(spec: RunSpec) -> None:
    """Refuse a file that an earlier run has left: torch would read its addresses."""
    if spec.init.startswith("file://"):
        path = Path(urlsplit(spec.init).path)
        if path.exists():
            raise UsageError(
                f"init: {spec.init}: the file exists already, left by another run; "
                f"remove it, or write init: file to get a fresh one"
            )


def _interrupted(run: RunDir, progress: RunProgress) -> DrumlineError:
    newest = max(run.checkpoints.glob("step-*"), default=None)
    if newest is None:
        rest = "there is no checkpoint yet"
    else:
        rest = f"continue with: drumline train resume={run.path.name}"
    error = DrumlineError(f"interrupted at step {progress.step} of {run.path.name}; {rest}")
    error.exit_code = 130  # type: ignore[misc]
    return error


def _has_trained(run: RunDir) -> bool:
    """Whether there is anything in a run directory that is worth keeping."""
    from drumline.core.events import read_events

    return any(event["event"] == "step" for event in read_events(run.rank_events(0)))


def _forget(run: RunDir) -> None:
    """Remove the directory of a run that never came to its first step."""
    shutil.rmtree(run.path, ignore_errors=True)
