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
    says_where: bool
    """whether MASTER_ADDR and MASTER_PORT are set"""
    one_host: bool
    """whether all ranks run on this host"""

    @property
    def init(self) -> str:
        """How ranks that were told no address can meet.

        Raises:
            CommError: they are on several hosts, so somebody must say where.
        """
        if self.says_where:
            return "env"
        if self.one_host:
            return "tcp"  # by a note in the run directory
        raise CommError(
            f"{self.name} has started ranks on several hosts, but not said where they meet; "
            f"set MASTER_ADDR (the host of rank 0) and MASTER_PORT in the environment"
        )

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
        return _build("torchrun", environ, ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), job)
    if "OMPI_COMM_WORLD_RANK" in environ:
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        job = f"mpirun {environ.get('PMIX_NAMESPACE', '')} {environ.get('PMIX_SERVER_URI2', '')}"
        return _build("mpirun", environ, names, job)
    if "SLURM_PROCID" in environ and environ.get("SLURM_NTASKS", "1") != "1":
        job = f"srun {environ.get('SLURM_JOB_ID')} {environ.get('SLURM_STEP_ID')}"
        hosts = environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES", "1"))
        local = {"SLURM_LOCAL_SIZE": environ["SLURM_NTASKS"] if hosts == "1" else "0"}
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCAL_SIZE")
        return _build("srun", {**environ, **local}, names, job)
    return None


def _build(
    name: str, environ: Mapping[str, str], variables: tuple[str, str, str], job: str
) -> OuterLauncher:
    """Read (rank, world size, local world size) from the variables of those names."""
    rank, world, local = variables
    try:
        world_size = int(environ[world])
        return OuterLauncher(
            name=name,
            rank=int(environ[rank]),
            world_size=world_size,
            job=job,
            says_where="MASTER_ADDR" in environ and "MASTER_PORT" in environ,
            one_host=int(environ.get(local, world_size)) == world_size,
        )
    except (KeyError, ValueError):
        raise CommError(
            f"{name} has set {rank}={environ.get(rank)!r} and {world}={environ.get(world)!r}, "
            f"which must both be whole numbers; unset them to start workers from here"
        ) from None
