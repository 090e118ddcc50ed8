"""`drumline train` under torchrun, mpirun or srun: be one rank instead of starting others."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from drumline.cli.printing import print_result
from drumline.cli.resume import resumed_run
from drumline.core.lifeline import die_with_parent
from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec
from drumline.core.spec_file import load_spec
from drumline.launch.creation import RUNS, new_run
from drumline.launch.join import OuterLauncher
from drumline.launch.meeting import fresh_meeting
from drumline.launch.outcome import check_outcome


def join_command(
    launcher: OuterLauncher,
    file: Path | None,
    overrides: list[str],
    resume: str | None,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run this process's rank to its end; rank 0 also makes the run directory and prints."""
    if launcher.name == "mpirun":
        die_with_parent()  # mpirun's own end by kill -9 would leave us
    overrides = [*overrides, f"workers={launcher.world_size}", "nodes=1"]
    if launcher.rank != 0:
        if resume is None:
            load_spec(file, overrides)  # a mistake in the words ends every rank at once
        sys.exit(_run_rank(launcher, launcher.wait_for_run()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up when the launcher gives up
    if resume is not None:
        with resumed_run(resume, overrides, root=RUNS) as (run, spec):
            _lead(launcher, run, spec)
    else:
        spec = launcher.settle(load_spec(file, overrides))
        with new_run(spec, out) as run:
            _lead(launcher, run, spec)
    print_result(run, spec, as_json=as_json)


def _lead(launcher: OuterLauncher, run: RunDir, spec: RunSpec) -> None:
    started = time.time()
    with fresh_meeting(run, spec):
        launcher.announce(run)
        try:
            code = _run_rank(launcher, run)
        finally:
            launcher.note.unlink(missing_ok=True)
    check_outcome(run, world_size=spec.world_size, exit_codes=[code], since=started)


def _run_rank(launcher: OuterLauncher, run: RunDir) -> int:
    worker = subprocess.run(
        [sys.executable, "-m", "drumline.train", str(run.path)],
        env=launcher.worker_environment(),
        check=False,
    )
    return worker.returncode
