"""One rank per terminal: the options, and real ranks that find each other or say why not."""

from __future__ import annotations

import socket

import pytest

from commands import JOB
from drumline.core.errors import UsageError
from drumline.core.join import parse_master, rank_by_hand


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def by_hand(rank: int, port: int, world_size: int = 2) -> tuple[str, ...]:
    options = ("--rank", rank, "--world-size", world_size, "--master", f"localhost:{port}")
    return tuple(map(str, options))


def test_nothing_said_means_no_rank_by_hand():
    assert rank_by_hand(None, None, None) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((0, None, None), "--world-size and --master are missing"),
        ((None, 2, "a:1"), "--rank is missing"),
        ((2, 2, "a:1"), "ranks of --world-size 2 run from 0 to 1"),
        ((-1, 2, "a:1"), "ranks of --world-size 2 run from 0 to 1"),
        ((0, 0, "a:1"), "--world-size 0: must be 1 or more"),
        ((0, 2, "a"), "--master a: expected HOST:PORT"),
        ((0, 2, "a:0"), "expected HOST:PORT"),
        ((0, 2, "a:99999"), "expected HOST:PORT"),
        ((0, 2, "http://a:80"), "expected HOST:PORT"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, told):
    with pytest.raises(UsageError, match=told):
        rank_by_hand(*options)


def test_a_host_may_be_a_name_or_an_address():
    assert parse_master("node01:29500") == ("node01", 29500)
    assert parse_master("10.0.0.7:80") == ("10.0.0.7", 80)
    assert parse_master("[fe80::1]:80") == ("fe80::1", 80)


def test_ranks_of_one_machine_share_it_and_others_do_not():
    here, there = rank_by_hand(1, 2, "localhost:1"), rank_by_hand(1, 2, "node01:1")
    assert (here.local_rank, here.local_world_size) == (1, 2)
    assert (there.local_rank, there.local_world_size) == (0, 1)
    assert there.worker_environment({})["MASTER_ADDR"] == "node01"
    assert there.worker_environment({})["MASTER_PORT"] == "1"


def test_two_terminals_train_as_one_launch_does(drumline):
    port = free_port()
    other = drumline.start("train", *JOB, "max_steps=5", *by_hand(1, port))
    answer = drumline("train", *JOB, "max_steps=5", *by_hand(0, port), "--json")
    _, err = other.communicate(timeout=30)
    assert (answer.code, other.returncode) == (0, 0), (answer.err, err)
    assert "rank 1 of 2 joins " in err
    assert len(list((drumline.folder / "runs").iterdir())) == 1
    expected = drumline.train(*JOB, "max_steps=5")
    assert answer.json["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.slow
def test_terminals_with_other_words_are_told_in_both(drumline):
    port = free_port()
    job = (*JOB, "max_steps=5")
    words = ("optimizer.lr=0.5", *by_hand(1, port, 3))
    other = drumline.start("train", *job, *words)
    answer = drumline("train", *job, *by_hand(0, port))
    _, err = other.communicate(timeout=30)
    assert (answer.code, other.returncode) == (2, 2)
    said = (
        "drumline: rank 1 has --world-size 3 and optimizer.lr=0.5, but rank 0 has --world-size 2 "
        "and optimizer.lr=0.1; end all ranks, and start them again with the same arguments\n"
    )
    assert answer.err == said
    assert err.endswith(said)
    assert list((drumline.folder / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("word", "key"),
    [("nodes=2", "nodes"), ("link=1gbit", "link"), ("slow_nodes.1.cpu=0.5", "slow_nodes")],
)
def test_simulated_nodes_are_not_made_by_hand(drumline, word, key):
    for rank in (0, 1):
        answer = drumline("train", word, *by_hand(rank, 29500))
        assert answer.code == 2
        assert answer.err.startswith(f"drumline: '{word}': {key} is about simulated nodes, which ")
        assert answer.err.endswith(f"so leave {key} out\n")


@pytest.mark.slow
def test_a_peer_that_never_comes_is_named_in_every_terminal(drumline):
    port = free_port()
    job = (*JOB, "max_steps=5", "timeout_s=3")
    other = drumline.start("train", *job, *by_hand(2, port, 3))
    answer = drumline("train", *job, *by_hand(0, port, 3))
    _, err = other.communicate(timeout=30)
    assert (answer.code, other.returncode) == (1, 1)
    assert answer.err.startswith("drumline: rank 1 did not come within 3 s, while rank ")
    assert "rank 1 did not come within 3 s" in err


@pytest.mark.slow
def test_rank_0_that_never_comes_and_a_taken_port_are_told(drumline):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        late = drumline("train", *JOB, "timeout_s=1", *by_hand(1, port))
        answer = drumline("train", *JOB, *by_hand(0, port, 1))
    assert late.code == 1
    assert "rank 1 waited 1 s for rank 0 to make the run directory; did rank 0 start?" in late.err
    assert answer.code == 1
    assert f"cannot listen on localhost:{port}" in answer.err
    assert "choose another port" in answer.err


SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("sum", total.item(), os.environ["LOCAL_RANK"])
dist.destroy_process_group()
"""


def test_two_terminals_run_a_script(drumline):
    (drumline.folder / "sum.py").write_text(SUM)
    port = free_port()
    other = drumline.start("run", *by_hand(1, port), "sum.py")
    answer = drumline("run", *by_hand(0, port), "sum.py")
    out, err = other.communicate(timeout=30)
    assert (answer.code, other.returncode) == (0, 0), (answer.err, err)
    assert answer.out.startswith("[0] sum 3.0 0\nrank 0 is done in ")
    assert out.startswith("[1] sum 3.0 1\nrank 1 is done in ")


def test_what_concerns_all_ranks_is_refused_beside_one(drumline):
    answer = drumline("run", *by_hand(0, 29500), "-j", "2x2", "--restarts", "1", "script.py")
    assert answer.code == 2
    assert answer.err == (
        "drumline: -j and --restarts beside --rank: this is one rank, and each is started by hand; "
        "leave them out\n"
    )
