"""Under another launcher: `torchrun`, `mpirun` or `srun` has started N of us; join them.

Each of the N processes is one rank. They need one run directory and one place to meet, and nobody
but the launcher knows that they belong together, so both are derived from what it has set:

    torchrun   MASTER_ADDR, MASTER_PORT       and its run id
    mpirun     a job id that all ranks share (across hosts MASTER_ADDR and …_PORT too)
    srun       SLURM_JOB_ID, SLURM_STEP_ID, and the address of the launching node

Rank 0 makes the run directory and leaves its path in a note named after that job id.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import CommError
from drumline.core.rundir import RunDir, write_atomic

_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class OuterLauncher:
    """The launcher that has started this process as one of its ranks."""

    name: str
    rank: int
    world_size: int
    job: str
    """what all ranks of this job share and no other job has"""

    @property
    def note(self) -> Path:
        """Where rank 0 leaves the path of the run directory."""
        digest = hashlib.sha256(self.job.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"drumline-{os.getuid()}-{digest}"

    def announce(self, run: RunDir) -> None:
        """Tell the other ranks which directory the run has (rank 0)."""
        write_atomic(self.note, str(run.path))

    def wait_for_run(self) -> RunDir:
        """Learn which directory the run has (other ranks).

        Raises:
            CommError: rank 0 has not said so in time.
        """
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            if self.note.exists() and self.note.stat().st_uid == os.getuid():
                return RunDir(Path(self.note.read_text()))
            time.sleep(0.02)
        raise CommError(
            f"rank {self.rank} waited {_WAIT_S:g} s for rank 0 to make the run directory; "
            f"did rank 0 start? All ranks must share {self.note.parent}"
        )

    def worker_environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment for this rank's worker."""
        return {
            **environ,
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
        }


def outer_launcher(environ: Mapping[str, str] = os.environ) -> OuterLauncher | None:
    """Find out whether another launcher has started this process; None if it was a person."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        meeting = f"{environ.get('MASTER_ADDR')}:{environ.get('MASTER_PORT')}"
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        job = f"torchrun {environ.get('TORCHELASTIC_RUN_ID', '')} {meeting} {attempt}"
        return _build("torchrun", environ, "RANK", "WORLD_SIZE", job)
    if "OMPI_COMM_WORLD_RANK" in environ:
        job = f"mpirun {environ.get('PMIX_NAMESPACE', '')} {environ.get('PMIX_SERVER_URI2', '')}"
        return _build("mpirun", environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", job)
    if "SLURM_PROCID" in environ and int(environ.get("SLURM_NTASKS", "1")) > 1:
        job = f"srun {environ.get('SLURM_JOB_ID')} {environ.get('SLURM_STEP_ID')}"
        return _build("srun", environ, "SLURM_PROCID", "SLURM_NTASKS", job)
    return None


def _build(
    name: str, environ: Mapping[str, str], rank: str, world_size: str, job: str
) -> OuterLauncher:
    try:
        return OuterLauncher(
            name=name, rank=int(environ[rank]), world_size=int(environ[world_size]), job=job
        )
    except (KeyError, ValueError):
        raise CommError(
            f"{name} has set {rank}={environ.get(rank)!r} and "
            f"{world_size}={environ.get(world_size)!r}, which must both be whole numbers; "
            f"unset them to start workers from here"
        ) from None
