"""`drumline train` under torchrun, mpirun or srun: be one rank instead of starting others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from drumline.cli.printing import print_result
from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec
from drumline.launch import check_outcome
from drumline.launch.creation import create_run
from drumline.launch.join import OuterLauncher


def join_command(
    launcher: OuterLauncher, spec: RunSpec, run: RunDir | None, *, out: Path | None, as_json: bool
) -> None:
    """Run this process's rank to its end; rank 0 also makes the run directory and prints."""
    leads = launcher.rank == 0
    try:
        if leads:
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
        if leads:
            launcher.note.unlink(missing_ok=True)
    if not leads:
        sys.exit(worker.returncode)
    check_outcome(run, world_size=spec.world_size, exit_codes=[worker.returncode])
    print_result(run, spec, as_json=as_json)
