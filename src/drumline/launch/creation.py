"""Making the directory of a new run, with all that is known before its first process starts."""

from __future__ import annotations

import sys
from pathlib import Path

from drumline.core.rundir import RunDir
from drumline.core.spec import RunSpec
from drumline.launch.manifest import build_manifest

RUNS = Path("runs")


def create_run(spec: RunSpec, out: Path | None) -> RunDir:
    """Make the directory of a training run, with its spec and manifest."""
    run = RunDir.create(spec.name, root=RUNS, exact=out)
    run.write_spec(spec)
    run.write_json("manifest.json", build_manifest(sys.argv))
    return run


def create_script_run(name: str, script: list[str]) -> RunDir:
    """Make the directory of a script's run, with its manifest."""
    run = RunDir.create(name, root=RUNS)
    run.write_json("manifest.json", {**build_manifest(sys.argv), "script": script})
    return run
