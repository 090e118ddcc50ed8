"""What the checks are made of: references, counted calls, pictures."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch.distributed as dist

from drumline.grader import optimizers, pictures
from drumline.grader.fork import fork, watch_forks
from drumline.optim import SGD, Adam
from drumline.optim.gd import GD

FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_the_references_are_those_of_the_package():
    lr, betas, eps = optimizers._LR, optimizers._BETAS, optimizers._EPS
    for walked, expected in (
        (optimizers.run_optimizer(lambda params: GD(params, lr=lr)), optimizers.sgd_weights()),
        (
            optimizers.run_optimizer(lambda p: SGD(p, lr=lr, momentum=0.9)),
            optimizers.sgd_weights(0.9),
        ),
        (
            optimizers.run_optimizer(lambda p: Adam(p, lr=lr, betas=betas, eps=eps)),
            optimizers.adam_weights(),
        ),
    ):
        assert optimizers._same(walked, expected)


def test_no_two_misunderstandings_look_alike():
    walks = [
        optimizers.adam_weights(),
        *(optimizers.adam_weights(v) for *_, v in optimizers._VARIANTS),
    ]
    for number, walk in enumerate(walks):
        assert not any(optimizers._same(walk, other) for other in walks[number + 1 :])


def count_some(meeting: str) -> list[list[object]]:
    import torch

    from drumline.grader.ranks import count_calls

    calls = count_calls()
    store = dist.FileStore(meeting, 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.all_reduce(torch.ones(4))
    dist.all_gather([torch.ones(2)] * 1, torch.ones(2))
    dist.all_gather_object([None], "text")
    dist.broadcast(tensor=torch.ones(3, dtype=torch.float64), src=0)
    return [[call.op, call.nbytes, call.peer] for call in calls]


@FORKS
def test_calls_are_counted_once_with_their_bytes(monkeypatch, tmp_path):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    child = fork(partial(count_some, str(tmp_path / "store")))
    watch_forks([child], until=float("inf"))
    answer, output = child.answer, child.output
    child.kill()
    assert answer == [
        ["all_reduce", 16, None],
        ["all_gather", 8, None],
        ["all_gather_object", 0, None],
        ["broadcast", 24, 0],
    ], output


@FORKS
def test_a_fork_answers_prints_and_ends():
    child = fork(
        lambda: (os.write(1, b"x" * 200_000) and print("done")) or {"pid": os.getpid()},
        own_session=True,
    )
    watch_forks([child], until=float("inf"))
    assert child.answer == {"pid": child.pid}
    assert child.output.endswith("xdone\n")
    assert len(child.output) <= 4_000
    child.kill()


def test_pictures():
    assert pictures.draw_table(["a", "long"], [[10, "x"]]) == [" a  long", "10     x"]
    assert pictures.draw_coverage([{0, 1}, {2}], 4, cells=2) == [
        "rank 0  █· 2 of 4",
        "rank 1  ·▒ 1 of 4",
        "anyone  █▒ 3 of 4",
    ]
    line = pictures.draw_time_line([[(0, 0.0, 1.0), (1, 1.0, 2.0)], [(0, 1.0, 2.0)]], cells=4)
    assert line == ["part 1  1122", "part 2  ..11"]
    assert pictures.draw_bars([("r", [("wait", 1.0), ("transfer", 3.0)])], cells=4) == [
        "r  wttt  wait 1.00 s, transfer 3.00 s"
    ]
