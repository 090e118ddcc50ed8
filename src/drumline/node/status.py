"""`python -m drumline.node.status R`: all jobs that this node knows, one JSON line each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from drumline.node.job import JobFolder, all_jobs

_LEFT_OUT = ("env", "spec")  # may be long, and may hold what is nobody's business


def describe_job(folder: JobFolder) -> dict[str, Any]:
    """Return what there is to say of a job, as plain values."""
    job = folder.read_job().to_json()
    kept = {key: value for key, value in job.items() if key not in _LEFT_OUT}
    return {**kept, "trains": bool(job["spec"]), "state": folder.read_state().to_json()}


def main(argv: list[str]) -> int:
    """Print them, oldest first."""
    for folder in all_jobs(Path(argv[0])):
        if (folder.path / "job.json").exists():  # else it is being made
            print(json.dumps(describe_job(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
