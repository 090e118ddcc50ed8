"""Ranks that this process does not start: another launcher has, or a person does, one by one.

torchrun, mpirun or srun has started N of us, and each is one rank. They need one run directory
and one rendezvous, and nobody but the launcher knows that they belong together, so both are derived
from what it has set:

    torchrun   MASTER_ADDR, MASTER_PORT and its run id
    mpirun     a job id that all ranks share (across hosts MASTER_ADDR and MASTER_PORT too)
    srun       SLURM_JOB_ID and SLURM_STEP_ID (across hosts MASTER_ADDR and MASTER_PORT too)
    by hand    options: drumline train --rank 0 --world-size 2 --master localhost:29500

Rank 0 makes the run directory and leaves its path in a note beside it, named after that job id.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import CommError, UsageError
from drumline.core.files import write_atomic
from drumline.core.formatting import listed
from drumline.core.rundir import RunDir
from drumline.core.task import RANK_OPTIONS

_WAIT_S = 60.0
_NOTES = Path("runs")


@dataclass(frozen=True, kw_only=True)
class OuterLauncher:
    """The launcher that has started this process as one of its ranks."""

    name: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    job: str
    """what all ranks of this job share and no other job has"""
    says_where: bool
    """whether MASTER_ADDR and MASTER_PORT are set"""
    master: tuple[str, int] | None = None
    """what to set them to, where a person has said it (`by_hand`)"""

    @property
    def note(self) -> Path:
        """Where rank 0 leaves the path of the run directory."""
        return _NOTES / f".joining-{hashlib.sha256(self.job.encode()).hexdigest()[:16]}"

    def announce(self, run: RunDir) -> None:
        """Tell the other ranks which directory the run has (rank 0)."""
        self.note.parent.mkdir(exist_ok=True)
        write_atomic(self.note, str(run.path))

    def wait_for_run(self, within_s: float | None = None) -> RunDir:
        """Learn which directory the run has (other ranks); a CommError if rank 0 is late."""
        within_s = _WAIT_S if within_s is None else within_s
        started = time.time()
        while time.time() - started < within_s:
            # a note much older than this process is another job's, which was killed
            if self.note.exists() and self.note.stat().st_mtime > started - _WAIT_S:
                return RunDir(Path(self.note.read_text()))
            time.sleep(0.02)
        raise CommError(
            f"rank {self.rank} waited {within_s:g} s for rank 0 to make the run directory; "
            f"did rank 0 start? All ranks must share {_NOTES.absolute()}"
        )

    def worker_environment(
        self, environ: Mapping[str, str] = os.environ, *, options: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the environment for this rank's worker: the variables that torchrun sets.

        `options`: what this rank was started with, to be compared with the others'.
        """
        where = {} if options is None else {RANK_OPTIONS: json.dumps(options)}
        if self.master is not None:
            where |= {"MASTER_ADDR": self.master[0], "MASTER_PORT": str(self.master[1])}
        return {
            **environ,
            **where,
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
        }


def outer_launcher(environ: Mapping[str, str] = os.environ) -> OuterLauncher | None:
    """Detect whether torchrun, mpirun or srun has launched this process; None if a person has."""
    get = environ.get
    if "RANK" in environ and "WORLD_SIZE" in environ:
        address = f"{get('MASTER_ADDR')}:{get('MASTER_PORT')}"
        attempt = get("TORCHELASTIC_RESTART_COUNT", "0")
        name, job = "torchrun", f"{get('TORCHELASTIC_RUN_ID', '')} {address} {attempt}"
        rank, size = "RANK", "WORLD_SIZE"
        local_rank, local_size = get("LOCAL_RANK"), get("LOCAL_WORLD_SIZE")
    elif "OMPI_COMM_WORLD_RANK" in environ:
        name, job = "mpirun", get("PMIX_NAMESPACE", "")
        rank, size = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
        local_rank = get("OMPI_COMM_WORLD_LOCAL_RANK")
        local_size = get("OMPI_COMM_WORLD_LOCAL_SIZE")
    # sbatch sets SLURM_PROCID too, for the one process of its script; only srun makes steps
    elif "SLURM_STEP_ID" in environ and get("SLURM_NTASKS", "1") != "1":
        name, job = "srun", f"{get('SLURM_JOB_ID')} {environ['SLURM_STEP_ID']}"
        rank, size = "SLURM_PROCID", "SLURM_NTASKS"
        one_host = get("SLURM_STEP_NUM_NODES", get("SLURM_NNODES", "1")) == "1"
        local_rank = get("SLURM_LOCALID", "0")
        local_size = None if one_host else get("SLURM_NTASKS_PER_NODE", "1")
    else:
        return None
    try:
        return OuterLauncher(
            name=name,
            rank=int(environ[rank]),
            world_size=int(environ[size]),
            local_rank=int(local_rank or environ[rank]),
            local_world_size=int(local_size or environ[size]),
            job=f"{name} {job}",
            says_where="MASTER_ADDR" in environ and "MASTER_PORT" in environ,
        )
    except (KeyError, ValueError):
        raise CommError(
            f"{name} has set {rank}={get(rank)!r} and {size}={get(size)!r}, "
            f"which must both be whole numbers; unset them to start workers from here"
        ) from None


BY_HAND = "by hand"
_HERE = ("localhost", "127.0.0.1", "::1")
_EXAMPLE = "--rank 0 --world-size 2 --master localhost:29500"


def rank_by_hand(
    rank: int | None, world_size: int | None, master: str | None
) -> OuterLauncher | None:
    """Return the launcher of a rank that is started by hand, by all three options, or None.

    Raises:
        UsageError: some of the options are missing.
    """
    given = {"--rank": rank, "--world-size": world_size, "--master": master}
    missing = [option for option, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if rank is None or world_size is None or master is None:
        raise UsageError(
            f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing: one rank by "
            f"hand needs all three, as in {_EXAMPLE}"
        )
    if world_size < 1:
        raise UsageError(f"--world-size {world_size}: must be 1 or more, as in {_EXAMPLE}")
    if not 0 <= rank < world_size:
        raise UsageError(
            f"--rank {rank}: ranks of --world-size {world_size} run from 0 to {world_size - 1}"
        )
    host, port = parse_master(master)
    one_host = host in _HERE
    return OuterLauncher(
        name=BY_HAND,
        rank=rank,
        world_size=world_size,
        local_rank=rank if one_host else 0,
        local_world_size=world_size if one_host else 1,
        job=f"{BY_HAND} {host}:{port}",
        says_where=True,
        master=(host, port),
    )


def parse_master(master: str) -> tuple[str, int]:
    """Parse --master HOST:PORT; IPv6 in brackets; a UsageError for anything else."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:/\[\]\s]+)):(\d{1,5})", master, re.ASCII)
    if match is None or int(match.group(3)) not in range(1, 1 << 16):
        raise UsageError(
            f"--master {master}: expected HOST:PORT, where rank 0 listens, such as node01:29500"
        )
    return match.group(1) or match.group(2), int(match.group(3))
