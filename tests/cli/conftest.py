"""The command line in a process of its own, in an empty folder, and runs made up by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from drumline.core.rundir import EventWriter, RunDir
from drumline.spec.load import load_spec, write_run_spec

# Runs the command line, then tells on a descriptor of its own which heavy modules were loaded.
PROBE = """
import os, sys
from drumline.cli.main import main
try:
    main()
finally:
    loaded = [name for name in ("torch", "numpy", "tensorboard") if name in sys.modules]
    os.write(int(os.environ["PROBE_FD"]), " ".join(loaded).encode())
"""
LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_", "SLURM_", "PMIX_", "COLUMNS", "FORCE_COLOR", "NO_COLOR")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str
    loaded: tuple[str, ...]


Ask = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder that commands are called in."""
    path = tmp_path / "here"
    path.mkdir()
    return path


@pytest.fixture
def ask(folder) -> Ask:
    """Call `drumline WORDS…`, its output piped: ask("show", "run-1", NO_COLOR="1")."""

    def call(*words: str, **variables: str) -> Answer:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        reading, writing = os.pipe()
        with os.fdopen(reading) as probe:
            try:
                done = subprocess.run(
                    [sys.executable, "-c", PROBE, *words],
                    cwd=folder,
                    env={**environ, "PROBE_FD": str(writing), **variables},
                    pass_fds=[writing],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
            finally:
                os.close(writing)
            loaded = tuple(probe.read().split())
        return Answer(done.returncode, done.stdout, done.stderr, loaded)

    return call


@pytest.fixture
def make_run(folder) -> Callable[..., RunDir]:
    """Make up a run of 2 ranks and 3 steps: make_run("name=demo", finished=False)."""

    def make(*overrides: str, finished: bool = True, checkpoint: bool = True) -> RunDir:
        spec = load_spec(None, ["name=demo", "strategy=chunked_ring", *overrides])
        run = RunDir.create(spec.name, root=folder / "runs")
        write_run_spec(run, spec)
        run.write_json("manifest.json", {"argv": [], "started": "2025-01-02T03:04:05+00:00"})
        for rank in range(spec.world_size):
            _write_events(run, rank)
        if checkpoint:
            (run.checkpoints / "step-3").mkdir(parents=True)
        if finished:
            run.write_json("coverage.json", coverage(spec.world_size))
            run.write_json("summary.json", summary(run.path.name, spec.world_size))
        return run

    return make


def _write_events(run: RunDir, rank: int) -> None:
    ms = 10**6
    with EventWriter(run.rank_events(rank)) as events:
        events.write("start", attempt=0, rank=rank)
        for step in (1, 2, 3):
            events.write(
                "step",
                step=step,
                loss=2.0,
                samples=64,
                total=100 * ms,
                data=2 * ms,
                blocked=[[50 * rank * ms, 60 * ms]],
                spans=[["ring", 1000, 50 * rank * ms, 60 * ms]],
            )


def coverage(world_size: int) -> dict[str, object]:
    return {
        "kind": "shuffle",
        "run": {
            "steps": 3,
            "ranks": [
                {
                    "rank": rank,
                    "draws": 192,
                    "distinct": 190,
                    "labels": {str(label): 19 for label in range(10)},
                }
                for rank in range(world_size)
            ],
            "overlap": [[7] * world_size] * world_size,
            "seen": 380,
            "seen_share": 0.0633,
        },
    }


def summary(name: str, world_size: int) -> dict[str, object]:
    return {
        "name": name,
        "world_size": world_size,
        "strategy": "chunked_ring",
        "model": "cnn",
        "parameters": 21840,
        "steps": 3,
        "epochs": 1,
        "loss": 1.5,
        "test_loss": 1.25,
        "accuracy": 0.9731,
        "time_s": 2.0,
        "train_s": 0.3,
        "samples_per_s": 1280.0,
        "weights_sha256": "ab" * 32,
    }
