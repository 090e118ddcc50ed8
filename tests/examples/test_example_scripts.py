"""The scripts of examples/, started as their headers say, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "distributed_train.py"
LIGHTNING = EXAMPLES / "lightning_hydra" / "ddp_train_example.py"


def accuracy_in(lines: list[str], prefix: str = "") -> float:
    """The one accuracy that was printed, in percent."""
    found = [re.match(rf"{re.escape(prefix)}test accuracy ([\d.]+)%", line) for line in lines]
    (match,) = filter(None, found)
    return float(match.group(1))


def losses_in(lines: list[str]) -> list[str]:
    return re.findall(r"epoch \d+: loss [\d.]+", "\n".join(lines))


def test_the_script_runs_alone(run_here):
    done = run_here("python", SCRIPT, "--epochs", 2)
    assert done.lines[0] == "rank 0 of 1 on cpu, gloo"
    assert accuracy_in(done.lines) > 85
    assert done.left == []


@pytest.mark.slow
def test_the_script_gives_the_same_under_drumline_and_torchrun(run_here):
    ours = run_here("drumline", "run", "-j", "1x2", SCRIPT, "--epochs", 2)
    # code=None: one in ten plain gloo programs aborts under torchrun when all is done
    theirs = run_here("torchrun", "--nproc-per-node", 2, SCRIPT, "--epochs", 2, code=None)
    assert {"[0] rank 0 of 2 on cpu, gloo", "[1] rank 1 of 2 on cpu, gloo"} < set(ours.lines)
    assert losses_in(ours.lines) == losses_in(theirs.lines)
    assert len(losses_in(ours.lines)) == 2
    assert accuracy_in(ours.lines, "[0] ") == accuracy_in(theirs.lines) > 85
    assert ours.lines[-1].startswith("all 2 ranks are done in ")
    assert ours.left == theirs.left == ["runs"]


@pytest.mark.slow
def test_lightning_and_hydra_run_alone(run_here):
    done = run_here("python", LIGHTNING, "max_epochs=1", "hidden1=64", "hidden2=64")
    assert accuracy_in(done.lines) > 80
    assert "world size 1" in done.stdout
    assert done.left == []


@pytest.mark.slow
def test_lightning_joins_the_ranks_and_takes_the_hook(run_here):
    words = ["max_epochs=1", "devices=2"]
    plain = run_here("drumline", "run", "-j", "1x2", LIGHTNING, *words, "strategy=ddp")
    ring = run_here("drumline", "run", "-j", "1x2", LIGHTNING, *words, "comm_hook=chunked_ring")
    for done in (plain, ring):
        assert accuracy_in(done.lines, "[0] ") > 80
        assert "world size 2" in done.stdout
        assert done.left == ["runs"]
    assert losses_in(ring.lines) == losses_in(plain.lines)
    assert re.search(r"^\[0\] chunked_ring averaged [1-9]\d* buckets", ring.stdout, re.MULTILINE)
    assert "averaged" not in plain.stdout


@pytest.mark.slow
def test_accelerate_joins_the_ranks_and_takes_the_hook(run_here):
    done = run_here(
        *("drumline", "run", "-j", "1x2", EXAMPLES / "accelerate_train.py"),
        *("--epochs", 1, "--comm-hook", "chunked_ring"),
    )
    assert accuracy_in(done.lines, "[0] ") > 80
    assert re.search(r"^\[0\] chunked_ring averaged 188 buckets", done.stdout, re.MULTILINE)
    assert done.left == ["runs"]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_library_gives_the_weights_of_plain_ddp(run_here, workers):
    done = run_here("drumline", "run", "-j", f"1x{workers}", EXAMPLES / "library_use.py")
    for rank in range(workers):
        assert f"[{rank}] same weights after 50 steps" in done.lines
        for form in ("hook", "wrapper"):
            start = f"[{rank}] {form}, chunked_ring: max difference to plain DDP "
            (line,) = [line for line in done.lines if line.startswith(start)]
            assert float(line.removeprefix(start)) <= 1e-5
    assert done.left == ["runs"]


@pytest.mark.slow
def test_one_form_of_the_library_can_be_chosen(run_here):
    words = ["--form", "wrapper", "--kind", "parameter_server", "--steps", 5]
    done = run_here("drumline", "run", "-j", "1x2", EXAMPLES / "library_use.py", *words)
    assert "[0] wrapper, parameter_server: max difference" in done.stdout
    assert "hook," not in done.stdout
