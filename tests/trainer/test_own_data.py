"""Own data trains to the same weights on any number of ranks, however it is read and loaded."""

import csv
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training import train_all

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
MINE = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import IterableDataset

class Points(IterableDataset):
    # as random as can be: the same on every rank all the same
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        for _ in range(self.count):
            x = torch.randn(3)
            yield x, torch.stack([x.sum(), x.prod()])

class Noisy:
    classes = ["left", "right"]
    def __len__(self):
        return 101
    def __getitem__(self, index):
        return torch.randn(3) + index % 2, index % 2

class Stuck(Noisy):
    def __getitem__(self, index):
        (Path("stuck") / str(os.getpid())).touch()
        time.sleep(300)

class KilledOnce:
    # rank 0 dies in the second epoch, between two checkpoints
    def on_step_end(self, moment):
        once = Path("once")
        if moment.step == 8 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

class Pairs:
    def __len__(self):
        return 50
    def __getitem__(self, index):
        return (torch.full((2,), index / 50), torch.ones(1)), torch.tensor([index % 2, 1.0])

class Sum(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.layer = nn.Linear(3, outputs)
    def forward(self, first, second):
        return self.layer(torch.cat([first, second], dim=1))

def points(count=200): return Points(count), Points(10)
def noisy(): return Noisy()
def pairs(): return Pairs()
def downloaded():
    path = Path("downloaded")
    if not path.exists():
        path.write_text("half")
        time.sleep(1)
        path.write_text("whole")
    assert path.read_text() == "whole"
    return Noisy()
def at_most_10(samples):
    assert len(samples) <= 10
    return torch.utils.data.default_collate(samples)
def stuck(): return Noisy(), Stuck()
"""


def write_data(folder: Path) -> None:
    """Write a table, a text, a folder of images and a module."""
    rng = np.random.default_rng(0)
    with (folder / "houses.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["rooms", "area", "city", "price"])
        for _ in range(203):
            rooms, area, city = rng.integers(1, 6), rng.uniform(20, 200), rng.integers(3)
            price = 1000 * area + 5000 * rooms - 9000 * city + rng.normal(0, 1000)
            table.writerow([rooms, f"{area:.1f}", ["Rome", "Oslo", "Kyiv"][city], f"{price:.2f}"])
    for label in range(3):
        (folder / "photos" / str(label)).mkdir(parents=True)
        for number in range(21):
            pixels = rng.integers(0, 120, (14, 12), dtype=np.uint8) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"photos/{label}/{number}.png")
    (folder / "book.txt").write_text("the quick brown fox – 敏捷的棕狐 – jumps over it. " * 60)
    (folder / "own_points.py").write_text(MINE)


JOBS = [
    {"data": {"name": "houses.csv", "batch": 50}, "epochs": 3},
    {"data": {"name": "houses.csv", "batch": 50, "target": "city"}, "epochs": 2},
    {
        "data": {"name": "photos/", "batch": 20},
        "model": {"name": "cnn", "dropout": 0},
        "epochs": 2,
        "accumulate": 2,
    },
    {
        "data": {"name": "book.txt", "batch": 11, "sequence": 16},
        "model": {"name": "gpt-mini", "width": 16, "layers": 1, "heads": 2},
        "epochs": 1,
    },
    {"data": {"name": "own_points:points", "batch": 33, "samples": 190}, "model": "mlp"},
    {
        # the 20 samples to test on are loaded in no larger batches either
        "data": {"name": "own_points:noisy", "batch": 10, "collate": "own_points:at_most_10"},
        "model": "mlp",
        "epochs": 2,
        "evaluate": True,
    },
    {
        "data": {"name": "own_points:pairs", "batch": 13, "task": "multilabel"},
        "model": "own_points:Sum",
        "epochs": 2,
    },
]
CASES = [
    {"strategy": "chunked_ring", "optimizer": {"lr": 0.05}, **job, "dtype": dtype}
    for job in JOBS
    for dtype in TOLERANCE
]


def train_in_folder(rank, world_size, folder, cases):
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        return train_all(rank, world_size, cases)
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def test_one_two_and_three_ranks_end_with_the_same_weights(run_ranks, folder):
    alone = run_ranks(train_in_folder, 1, folder, CASES)[0]
    for world_size in (2, 3):
        by_rank = run_ranks(train_in_folder, world_size, folder, CASES, timeout_s=110)
        for index, case in enumerate(CASES):
            assert len({results[index][0] for results in by_rank}) == 1, f"drifted apart: {case}"
            difference = abs(by_rank[0][index][1] - alone[index][1]).max()
            assert difference <= TOLERANCE[case["dtype"]], f"{difference} in {case}"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", "tensor", "rpc", "ddp"])
def test_loaded_ahead_on_every_strategy(drumline, strategy):
    """By loader processes, which `run_ranks` may not have: the command trains."""
    write_data(drumline.folder)
    for data in (
        ("data=photos/", "data.loader_workers=2"),
        ("data=own_points:noisy", "data.loader_workers=1", "data.prefetch=1"),
    ):
        job = [*data, "model=mlp", "data.batch=24", "epochs=2", "dtype=float64"]
        alone = drumline.train(*job, "workers=1", "data.loader_workers=0")
        split = drumline.train(*job, "workers=2", f"strategy={strategy}")
        assert split["loss"] == pytest.approx(alone["loss"], rel=1e-9)
        assert split["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-9)


def test_what_a_factory_downloads_is_there_for_the_others(drumline):
    write_data(drumline.folder)
    drumline.train("data=own_points:downloaded", "model=mlp", "workers=2", "max_steps=1")


def test_loader_workers_end_with_the_command(drumline):
    """One that is deep in a sample, too: only the kernel can end it."""
    write_data(drumline.folder)
    (drumline.folder / "stuck").mkdir()
    process = drumline.start(
        *("train", "data=own_points:stuck", "model=mlp", "workers=1", "max_steps=1"),
        "data.loader_workers=1",
    )
    deadline = time.monotonic() + 60
    while not any((drumline.folder / "stuck").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert any((drumline.folder / "stuck").iterdir())
    drumline.kill(process)


@pytest.mark.parametrize(
    "data",
    [
        ("data=own_points:points", "data.samples=125", "data.loader_workers=1"),
        pytest.param(("data=own_points:noisy", "data.loader_workers=2"), marks=pytest.mark.slow),
    ],
)
def test_a_restart_in_the_middle_of_an_epoch_goes_on_with_the_same_samples(drumline, data):
    """Five steps an epoch; the eighth is repeated from the checkpoint after the seventh."""
    write_data(drumline.folder)
    job = [*data, "model=mlp", "data.batch=25", "epochs=2", "dtype=float64", "workers=1"]
    job += ["checkpoint.every_steps=7"]
    whole = drumline.train(*job)
    parts = drumline.train(*job, "callbacks=own_points:KilledOnce", "restarts=1")
    assert (drumline.folder / "once").exists()
    assert parts["weights_sha256"] == whole["weights_sha256"]


def test_data_that_cannot_be_is_told_before_a_rank_starts(drumline):
    write_data(drumline.folder)
    for word, said in (
        ("data=hose.csv", "there is no file hose.csv; did you mean 'houses.csv'"),
        ("data.target=prize", "no column 'prize', but rooms, area, city, price; did you mean"),
        ("data=own_points:point", "own_points has no 'point' (did you mean 'points'?)"),
        ("data=own_point:points", "no module 'own_point'"),
        ("model=own_points:Som", "own_points has no 'Som' (did you mean 'Sum'?)"),
        ("data=photo/", "there is no folder photo; did you mean 'photos'"),
    ):
        answer = drumline("train", "data=houses.csv", word)
        assert answer.code in (1, 2)
        assert said in answer.err
        assert "Traceback" not in answer.err
    assert not (drumline.folder / "runs").exists()


def test_a_project_trains_at_once(drumline):
    answer = drumline("init", "mine")
    assert answer.code == 0, answer.err
    assert "next: cd mine && drumline train spec.yaml" in answer.out
    mine = drumline.folder / "mine"
    before = {path.name for path in mine.iterdir()}
    assert before == {"README.md", "data.py", "model.py", "spec.yaml", "test_training.py"}
    assert drumline("init", "mine").code == 2
    drumline.folder = mine
    answer = drumline("train", "spec.yaml", "epochs=4", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["accuracy"] > 0.85


@pytest.mark.slow
def test_the_test_of_a_project_passes(drumline):
    import subprocess

    drumline("init", "mine")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    mine = drumline.folder / "mine"
    done = subprocess.run(command, cwd=mine, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
