"""The specs of examples/ train, and the ones with a point make it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from namespaces import need_namespaces

EXAMPLES = Path(__file__).parents[2] / "examples"
SPECS = sorted((EXAMPLES / "specs").glob("*.yaml"))


QUICK = ("mesh",)


def quick_or_slow(spec):
    return pytest.param(spec, marks=() if spec.stem in QUICK else pytest.mark.slow)


def train(run_here, *words, **options):
    done = run_here("drumline", "train", *words, "--json", **options)
    return json.loads(done.stdout), done.left


@pytest.mark.parametrize("spec", list(map(quick_or_slow, SPECS)), ids=lambda path: path.stem)
def test_each_spec_trains(run_here, spec):
    if spec.stem == "slow_link":
        need_namespaces()
    summary, left = train(run_here, spec, "max_steps=3", "evaluate=false")
    assert summary["steps"] == 3
    assert left == ["runs"]


@pytest.mark.slow
def test_the_slow_rank_is_named(run_here):
    summary, _ = train(run_here, EXAMPLES / "specs" / "slow_rank.yaml", "max_steps=10")
    blame = {rank["rank"]: rank["caused_ms"] for rank in summary["ledger"]["ranks"]}
    assert max(blame, key=blame.get) == 1
    assert blame[1] > 40


@pytest.mark.slow
def test_both_strategies_of_the_comparison_learn_alike(run_here):
    spec = EXAMPLES / "specs" / "ring_vs_ddp.yaml"
    ring, _ = train(run_here, spec, "epochs=1")
    ddp, _ = train(run_here, spec, "epochs=1", "name=by-ddp", "strategy=ddp")
    assert ring["accuracy"] == pytest.approx(ddp["accuracy"], abs=0.005)
    assert ring["accuracy"] > 0.85


def test_a_model_of_ones_own_trains(run_here, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copy(EXAMPLES / "own_model.py", folder)
    words = ["model=own_model:build", "model.width=8", "optimizer.momentum=0.9"]
    summary, left = train(run_here, *words, cwd=folder)
    assert summary["world_size"] == 2
    assert summary["accuracy"] > 0.8
    assert left == ["own_model.py", "runs"]
