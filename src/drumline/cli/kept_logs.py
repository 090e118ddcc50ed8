"""Logs of jobs whose nodes are gone, as `pull` has kept them on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from drumline.cli.job_words import refuse_rank, tell_end
from drumline.cluster.home import ClusterHome
from drumline.core.errors import ClusterError, UsageError
from drumline.node.job import JobState


def kept_jobs(home: ClusterHome) -> dict[str, Path]:
    """Return the folders of the jobs whose logs are here, the newest last."""
    noted = {path.parent.name: Path(path.read_text()) for path in home.jobs.glob("*/pulled")}
    kept = {name: folder for name, folder in noted.items() if _logs(folder).is_dir()}
    return dict(sorted(kept.items(), key=lambda item: _logs(item[1]).stat().st_mtime))


def print_kept(home: ClusterHome, job: str | None, *, follow: bool, rank: int | None) -> int:
    """Print what was pulled of a job; returns the exit code: where it is followed, the job's own.

    Raises:
        UsageError: nothing was pulled of it, or there is no such rank.
        ClusterError: it is to be followed, but its end is not known.
    """
    kept = kept_jobs(home)
    if job is None and kept:
        job = list(kept)[-1]
    if job not in kept:
        known = f"kept are {', '.join(sorted(kept))}" if kept else "and no job was pulled from it"
        raise UsageError(f"the cluster {home.name} is not up, {known}; drumline up makes it")
    logs = {int(path.stem.partition("-")[2]): path for path in _logs(kept[job]).glob("rank-*.log")}
    refuse_rank(job, rank, logs)
    for number, log in sorted(logs.items()):
        if rank in (None, number):
            for line in log.read_text(errors="replace").splitlines():
                print(f"[{number}] {line}")
    if not follow:
        return 0
    state = _state(kept[job])
    if not state.over:
        raise ClusterError(
            f"{job} was {state.phase} when it was pulled last; the nodes are gone, and nobody "
            f"knows how it ended"
        )
    return tell_end(job, state)


def _logs(folder: Path) -> Path:
    return folder / "run" / "logs"


def _state(folder: Path) -> JobState:
    try:
        return JobState.from_json(json.loads((folder / "state.json").read_text()))
    except (OSError, ValueError):
        return JobState()
