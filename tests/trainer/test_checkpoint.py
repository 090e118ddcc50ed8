"""Checkpoints: atomic, checked, and readable again into the same state."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from drumline.core.errors import CheckpointError
from drumline.optim import Adam
from drumline.parallel.shard_spec import ShardSpec
from drumline.trainer.checkpoint.snapshot import gather_snapshot
from drumline.trainer.checkpoint.store import CheckpointStore, TrainState


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
    return model.to(memory_format=torch.channels_last)


def trained(steps=3):
    model = build()
    optimizer = Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 1, 8, 8)).sum().backward()
        optimizer.step()
    return model, optimizer


def save(store, step, model, optimizer):
    snapshot = gather_snapshot(model, optimizer, ShardSpec())
    return store.save(TrainState(step=step), snapshot, ShardSpec(), rank=0)


def never(path, why):
    raise AssertionError(f"{path} is damaged: {why}")


def test_what_is_read_is_what_was_written(tmp_path):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 3, model, optimizer)
    found = store.newest(never)
    fresh, fresh_optimizer = build(), None
    fresh_optimizer = Adam(fresh.parameters(), lr=0.5)
    found.load_model(fresh, ShardSpec())
    found.load_optimizer(fresh_optimizer, fresh, ShardSpec())
    assert found.state.step == 3
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name])
    before, after = optimizer.state_dict(), fresh_optimizer.state_dict()
    assert json.dumps(before["param_groups"]) == json.dumps(after["param_groups"])
    for index, values in before["state"].items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][index][name]))


def test_only_the_newest_are_kept(tmp_path):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3):
        save(store, step, model, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-000000003"]


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "state"])
def test_damage_is_noticed_and_the_one_before_is_used(tmp_path, damage):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 1, model, optimizer)
    newest = save(store, 2, model, optimizer)
    file = newest / ("state.json" if damage == "state" else "model.safetensors")
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        content[len(content) // 2] ^= 4
        file.write_bytes(content[: -7 if damage == "cut" else None])
    told = []
    assert store.newest(lambda path, why: told.append(path)).state.step == 1
    assert told == [newest]


def test_all_damaged_is_an_error_not_a_start_from_zero(tmp_path):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=1)
    (save(store, 1, model, optimizer) / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"all checkpoints .* are damaged"):
        store.newest(lambda path, why: None)


def test_a_damaged_newer_one_does_not_push_out_good_ones(tmp_path):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 10, model, optimizer)
    (save(CheckpointStore(tmp_path, keep=9), 20, model, optimizer) / "state.json").write_text("{}")
    assert store.newest(lambda path, why: None).state.step == 10
    save(store, 15, model, optimizer)
    assert store.newest(never).state.step == 15


def test_a_torn_draft_of_a_killed_writer_is_no_obstacle(tmp_path):
    model, optimizer = trained()
    draft = tmp_path / ".draft-000000003"
    draft.mkdir()
    (draft / "state.json").write_text("")
    assert save(CheckpointStore(tmp_path, keep=1), 3, model, optimizer) is not None


def test_the_same_step_again_takes_the_place_of_the_one_before(tmp_path):
    """Whole or damaged: what is saved later may know more, such as an epoch's scores."""
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=1)
    path = save(store, 5, model, optimizer)
    state = TrainState(step=5, scores=[{"step": 5, "loss": 0.5}])
    snapshot = gather_snapshot(model, optimizer, ShardSpec())
    store.save(state, snapshot, ShardSpec(), rank=0)
    assert store.newest(never).state == state
    (path / "model.safetensors").write_bytes(b"broken")
    save(store, 5, model, optimizer)
    assert store.newest(never).state.step == 5
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_another_model_is_refused_with_the_reason(tmp_path):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1, model, optimizer)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        store.newest(never).load_model(nn.Linear(2, 2), ShardSpec())


def test_a_failing_write_names_the_way_out_and_keeps_the_last(tmp_path, monkeypatch):
    model, optimizer = trained()
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep=2)
    save(store, 1, model, optimizer)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"no space left.*step-000000001.*resume="):
        save(store, 2, model, optimizer)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [
        "step-000000001"
    ]


def save_forever(folder, started):
    model, optimizer = trained()
    store = CheckpointStore(folder, keep=2)
    save(store, 1, model, optimizer)
    started.set()
    for step in range(2, 10**6):
        save(store, step, model, optimizer)


def test_kill_nine_at_any_moment_leaves_a_loadable_one(tmp_path):
    context = multiprocessing.get_context("forkserver")
    for attempt in range(6):
        started = context.Event()
        folder = Path(tmp_path) / str(attempt)
        writer = context.Process(target=save_forever, args=(folder, started), daemon=True)
        writer.start()
        assert started.wait(30)
        time.sleep(0.004 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert CheckpointStore(folder, keep=2).newest(never) is not None
