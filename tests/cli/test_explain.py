"""`drumline explain` as a user calls it: real ranks, real messages, real deadlocks."""

from __future__ import annotations

import os
import signal
import time

import pytest

from drumline.core.rundir import read_events


def explained(drumline, *words):
    answer = drumline("explain", *words, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def test_the_steps_are_printed_with_accounts_and_a_hint(drumline):
    answer = drumline("explain", "all_reduce", "--ranks", "3", COLUMNS="80", NO_COLOR="1")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("all_reduce by chunked_ring: 3 ranks, 65.5 kB\n")
    # the diagram of ring.chunked_all_reduce's docstring
    assert "step 1   0 ─c→ 1   1 ─a→ 2   2 ─b→ 0\n  rank 0   a▪··  b▪·▪  c▪··\n" in answer.out
    assert "step 4   0 ─c→ 1   1 ─a→ 2   2 ─b→ 0\n  rank 0   a▪▪▪  b▪▪▪  c▪▪▪\n" in answer.out
    assert answer.out.count("✓ the same") == 3
    assert "measured " in answer.out
    assert "4 rounds × alpha + 87,392 bytes × beta" in answer.out
    assert answer.out.endswith("as a page to play with: add --html all_reduce.html\n")
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    assert not (drumline.folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "last"),
    [
        # what each rank's last row holds in the end: (piece, owners)
        (
            ("reduce", "--algorithm", "tree", "--root", "1", "--ranks", "3"),
            {1: [[0, 7]]},
        ),
        (("gather", "--algorithm", "tree", "--ranks", "3"), {0: [[0, 1], [1, 2], [2, 4]]}),
        pytest.param(
            ("all_to_all", "--ranks", "2"),
            {0: [[0, 1], [0, 2]], 1: [[1, 1], [1, 2]]},
            marks=pytest.mark.slow,
        ),
        (
            ("all_reduce", "--algorithm", "hierarchical", "--ranks", "4", "--size", "1KiB"),
            {rank: [[0, 15], [1, 15]] for rank in range(4)},
        ),
        pytest.param(
            ("barrier", "--ranks", "5"),
            {rank: [[0, 31]] for rank in range(5)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_ends_with_the_result_and_as_many_messages_as_the_formulas_say(drumline, words, last):
    document = explained(drumline, *words)
    for rank, cells in last.items():
        assert document["holdings"][-1][rank]["rows"][-1]["cells"] == cells
    for row in document["traffic"]:
        assert row["counted"] == row["predicted"]
    assert len(document["moves"]) == sum(
        row["counted"]["sent_messages"] for row in document["traffic"]
    )
    assert all(move["received_ns"] >= move["posted_ns"] for move in document["moves"])
    assert document["timing"]["measured_s"] > 0
    assert document["timing"]["predicted_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("broadcast", "--size", "0", "--ranks", "2"), "tensors without elements make no messages"),
        (("all_gather", "--ranks", "1"), "one rank has all there is"),
    ],
)
def test_nothing_to_send(drumline, words, why):
    answer = drumline("explain", *words)
    assert answer.code == 0, answer.err
    assert f"nothing is sent: {why}" in answer.out


def test_a_deadlock_is_shown_at_its_message_and_nothing_is_left(drumline):
    page = drumline.folder / "stuck.html"
    answer = drumline("explain", "all_reduce", "--ranks", "3", "--mismatch", "--html", str(page))
    assert answer.code == 0, answer.err
    assert "stuck: nothing moved for 3 s" in answer.out
    said = " ".join(answer.out.split())
    assert "rank 2 calls broadcast with root 0 by linear, the others all_reduce by" in said
    assert "rank 0 waits to receive message 1 (21.8 kB) from rank 2, which never sends it" in said
    assert "rank 2 waits to receive message 1 (65.5 kB) from rank 0, which never sends it" in said
    assert "a circle: 0 → 2 → 0; each waits for the next" in said
    assert (
        "ranks 0 and 1 call all_reduce(int64[8192], sum) by chunked_ring, "
        "rank 2 calls broadcast(int64[8192], root 0)"
    ) in said
    assert "differs between ranks" in page.read_text()


def test_a_killed_rank_is_told_without_a_log_that_is_gone(drumline):
    process = drumline.start("explain", "all_reduce", "--ranks", "2", "--mismatch")
    deadline = time.monotonic() + 60
    while not (logs := list(drumline.temporary.glob("drumline-*/probe-1/events/rank-1.jsonl"))):
        assert time.monotonic() < deadline, "rank 1 did not start"
        time.sleep(0.02)
    while not (started := read_events(logs[0])):
        time.sleep(0.02)
    os.kill(started[0]["pid"], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith("drumline: rank 1 was killed by SIGKILL (out of memory?); ")
    assert err.endswith("give --out DIR to keep the logs\n")
    assert str(drumline.temporary) not in err


@pytest.mark.slow
def test_two_roots_both_send_first(drumline):
    dead = explained(drumline, "broadcast", "--ranks", "2", "--mismatch")["deadlock"]
    assert dead["circle"] == [0, 1]
    assert [(wait["kind"], wait["peer"]) for wait in dead["waits"]] == [("send", 1), ("send", 0)]
    assert dead["calls"] == ["broadcast with root 0 by tree", "broadcast with root 1 by tree"]


@pytest.mark.slow
def test_the_run_directory_can_be_kept(drumline):
    answer = drumline("explain", "barrier", "--ranks", "2", "--out", "kept")
    assert answer.code == 0, answer.err
    kept = {path.name for path in (drumline.folder / "kept").iterdir()}
    assert kept >= {"probe.json", "answer-0.json", "answer-1.json", "manifest.json", "logs"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["all-reduce"], "no collective 'all-reduce' among"),
        (["all-reduce"], "did you mean 'all_reduce'?"),
        (["all_reduce", "--algorithm", "rign"], "did you mean 'ring'?"),
        (["scatter", "--algorithm", "ring"], "no scatter algorithm 'ring' among linear, tree"),
        (["barrier", "--ranks", "0"], "--ranks 0: expected 1 to 16"),
        (["barrier", "--ranks", "1000"], "--ranks 1000: expected 1 to 16"),
        (["broadcast", "--root", "4"], "--root 4: ranks go from 0 to 3"),
        (["all_reduce", "--root", "1"], "all_reduce has no root"),
        (["broadcast", "--size", "many"], "--size: expected a size such as 1MiB"),
        (["broadcast", "--size", "1GiB"], "expected 4 MiB at most"),
        (["broadcast", "--size", "1TiB"], "--size 1TiB: expected 4 MiB at most"),
        (["all_reduce", "--ranks-per-node", "0"], "expected 1 or more"),
        (["all_reduce", "--mismatch", "--ranks", "1"], "--mismatch needs two ranks at least"),
        (["all_reduce", "--mismatch", "--size", "0"], "and something to send"),
        (["all_reduce", "--html", "no/such/page.html"], "there is no folder no/such"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(ask, folder, words, said):
    answer = ask("explain", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("drumline: ")
    assert said in answer.err
    assert answer.loaded == ()
    assert list(folder.iterdir()) == []


# drumline run -m


def test_a_module_runs_on_all_ranks(drumline):
    package = drumline.folder / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hello.py").write_text(
        "import os, sys\nprint('hello from', os.environ['RANK'], __name__, sys.argv[1:])\n"
    )
    answer = drumline("run", "-m", "pack.hello", "--epochs", "3")
    assert answer.code == 0, answer.err
    for rank in (0, 1):
        assert f"[{rank}] hello from {rank} __main__ ['--epochs', '3']" in answer.out


def test_a_module_that_is_not_there(ask):
    answer = ask("run", "-m", "no.such.module")
    assert answer.code == 2
    assert "no module no.such.module" in answer.err
