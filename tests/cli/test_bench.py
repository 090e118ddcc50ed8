"""`drumline bench` as a user calls it: real ranks, few rounds, small sizes."""

from __future__ import annotations

import csv
import json
import re

import pytest

from namespaces import need_namespaces


def bench(drumline, *words):
    answer = drumline("bench", *words, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def test_all_rivals_on_the_loopback(drumline):
    ways = ("ring", "chunked_ring", "native", "gather_scatter")
    words = ("sizes=4,4KiB,64KiB", f"algorithms={','.join(ways)}", "backends=gloo,shm")
    document = bench(
        drumline, "collectives", *words, "rounds=3", "--csv", "rows.csv", "--figure", "times.png"
    )
    rows = document["rows"]
    rivals = [(b, a) for b in ("gloo", "shm") for a in ways]
    assert [(row["size"], row["backend"], row["algorithm"]) for row in rows] == [
        (size, *rival) for size in (4, 4096, 65536) for rival in rivals
    ]
    for row in rows:
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"]
        assert row["algorithm_bandwidth"] == pytest.approx(row["size"] / row["median_s"])
        assert (row["ranks"], row["rounds"], row["link_share"]) == (2, 3, None)
        assert row["predicted_s"] > 0
        assert min(row["wait_s"], row["transfer_s"]) >= 0
        assert max(row["wait_s"], row["transfer_s"]) > 0
    for row in (row for row in rows if row["algorithm"] in ("ring", "chunked_ring")):
        assert row["payload_bytes"][0] >= 2 * row["size"]
        assert len(row["wire_bytes"]) == 1  # how many is open: others use this loopback, too
    assert [(fit["backend"], fit["algorithm"]) for fit in document["fits"]] == rivals
    assert all(fit["alpha_s"] + fit["beta_s_per_byte"] > 0 for fit in document["fits"])
    with (drumline.folder / "rows.csv").open() as file:
        assert [line["algorithm"] for line in csv.DictReader(file)] == [b for _, b in rivals] * 3
    assert (drumline.folder / "times.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (drumline.folder / "times.svg").read_text()
    assert not (drumline.folder / "runs").exists()


@pytest.mark.slow
def test_mpi_takes_turns_with_the_others(drumline):
    pytest.importorskip("mpi4py", reason="the extra [mpi] is not installed")
    document = bench(
        drumline,
        *("collectives", "backends=gloo,shm,mpi", "algorithms=chunked_ring,native", "workers=3"),
        *("sizes=4,64KiB", "rounds=3"),
    )
    rivals = [(b, a) for b in ("gloo", "shm", "mpi") for a in ("chunked_ring", "native")]
    assert [(row["size"], row["backend"], row["algorithm"]) for row in document["rows"]] == [
        (size, *rival) for size in (4, 65536) for rival in rivals
    ]
    assert all(row["median_s"] > 0 for row in document["rows"])
    assert document["skipped"] == []


def test_nccl_wants_a_gpu_for_each_rank(drumline):
    answer = drumline("bench", "collectives", "backends=gloo,nccl", "workers=16", "sizes=4")
    assert (answer.code, answer.out) == (2, "")
    assert (
        "backends=nccl wants a GPU for each rank, but for 16 ranks this machine has" in answer.err
    )


@pytest.mark.slow
def test_shaped_links(drumline):
    need_namespaces()
    document = bench(
        drumline,
        *("collectives", "nodes=2", "workers=1", "link.rate=100mbit", "sizes=256KiB,1MiB"),
        *("algorithms=ring,chunked_ring,native", "backends=gloo,shm", "rounds=3"),
    )
    assert [skipped["backend"] for skipped in document["skipped"]] == ["shm"]
    for row in document["rows"]:
        assert 0 < row["link_share"] <= 1.1
        least = row["payload_bytes"] or [row["size"]] * 2  # 2(n−1)/n = 1
        for sent, payload in zip(row["wire_bytes"], least, strict=True):
            assert payload <= sent <= 1.2 * payload + 5000


@pytest.mark.parametrize(
    "collective",
    [
        "broadcast",
        "reduce_scatter",
        pytest.param("gather", marks=pytest.mark.slow),
        pytest.param("scatter", marks=pytest.mark.slow),
        pytest.param("all_to_all", marks=pytest.mark.slow),
    ],
)
def test_every_collective_by_every_algorithm_is_checked(drumline, collective):
    words = (f"collective={collective}", "sizes=4KiB", "rounds=1", "backends=gloo,shm")
    rows = bench(drumline, "collectives", *words)["rows"]
    assert {row["collective"] for row in rows} == {collective}
    assert [row["size"] for row in rows] == [4096] * len(rows)


def test_a_barrier_has_no_size(drumline):
    words = ("collectives", "collective=barrier", "rounds=2", "--out", "kept")
    rows = bench(drumline, *words)["rows"]
    assert {row["size"] for row in rows} == {0}
    assert "dissemination" in {row["algorithm"] for row in rows}
    assert set(json.loads((drumline.folder / "kept" / "probe.json").read_text())) == {
        *("collective", "rivals", "sizes", "workers", "rounds", "budget_s", "timeout_s")
    }
    statuses = list((drumline.folder / "kept" / "events").glob("*.status"))
    assert statuses == [], "a rank was observed, which takes as long as a small collective"


@pytest.mark.slow
def test_the_table_fits_a_terminal(drumline):
    words = ("collectives", "sizes=4,64KiB,1MiB", "rounds=2", "workers=2,3")
    answer = drumline("bench", *words, COLUMNS="80", NO_COLOR="1")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("all_reduce, 2 and 3 ranks\n")
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    assert "halving_doubling" in answer.out
    assert "what a message costs" in answer.out


def test_a_narrow_terminal_gets_fewer_columns_and_sizes_are_those_asked_for(drumline):
    words = ("collectives", "collective=scatter", "workers=3", "sizes=4,64KiB", "rounds=2")
    answer = drumline("bench", *words, COLUMNS="40", NO_COLOR="1")
    assert answer.code == 0, answer.err
    assert max(len(line) for line in answer.out.splitlines()) <= 40
    assert "…" not in answer.out
    said = " ".join(answer.out.split())
    assert re.search(r"no room for .*alg, .*wire, .*: see --json, --csv or a wider terminal", said)
    assert "equal parts: 12B for 4B, 65544B for 64KiB." in said
    assert [line.split()[0] for line in answer.out.splitlines() if "linear " in line][:2] == [
        "4B",
        "64KiB",
    ]


@pytest.mark.slow
def test_aggregation_without_and_with_a_bottleneck(drumline):
    need_namespaces()
    document = bench(
        drumline,
        *("aggregation", "nodes=2", "link=1gbit", "slow_nodes.1.rate=20mbit", "batch=8"),
        *("kinds=allreduce,chunked_ring", "bucket_bytes=128KiB", "rounds=3"),
        *("--figure", "parts.svg"),
    )
    assert list(document["situations"]) == ["even", "slow link"]
    assert len(document["bucket_bytes"]) > 1
    rows = document["rows"]
    assert [(row["situation"], row["kind"], row["rank"]) for row in rows] == [
        (situation, kind, rank)
        for situation in ("even", "slow link")
        for kind in ("allreduce", "chunked_ring")
        for rank in (0, 1)
    ]
    for row in rows[4:]:  # 544 kB at 2.5 MB/s
        assert row["transfer_ms"] + row["wait_ms"] > 150
    assert all(row["node"] == row["rank"] for row in rows)
    assert (drumline.folder / "parts.png").exists()


def test_aggregation_on_one_node(drumline):
    words = ("aggregation", "nodes=1", "workers=2", "rounds=2", "kinds=allreduce,tree", "batch=8")
    answer = drumline("bench", *words, "--out", "kept", COLUMNS="80", NO_COLOR="1")
    assert answer.code == 0, answer.err
    assert set(json.loads((drumline.folder / "kept" / "even" / "probe.json").read_text())) == {
        *("model", "text", "batch", "bucket_bytes", "kinds", "rounds", "budget_s", "timeout_s")
    }
    assert answer.out.startswith("gradients of mlp: 544 kB in 1 bucket, 2 ranks on one node\n")
    assert "slow" not in answer.out.replace("slowest", "")
    assert max(len(line) for line in answer.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("collectives", "algorithms=rign"), "no all_reduce algorithm 'rign' among linear, tree,"),
        (("collectives", "algorithms=rign"), "did you mean 'ring'?"),
        (("collectives", "backend=gloo"), "unknown key 'backend'; did you mean 'backends'?"),
        (("collectives", "backends=gloop"), "must be gloo, shm, mpi or nccl; did you mean 'gloo'?"),
        (("collectives", "backends=nccl", "algorithms=ring"), "add native to algorithms"),
        (
            ("collectives", "backends=nccl", "nodes=2"),
            "nccl joins ranks that have GPUs of their own",
        ),
        (("collectives", "backends=mpi", "nodes=2"), "mpi joins one mpirun's ranks on one node"),
        (("collectives", "sizes=3zb"), "expected a size such as 1MiB, 25MB or 4096, got '3zb'"),
        (("collectives", "sizes=128MiB"), "sizes go from 4 B to 64 MiB"),
        (("collectives", "sizes=6"), "in whole float32"),
        (("collectives", "sizes=[]"), "sizes is [], but must be a list with something in it"),
        (("collectives", "nodes=2", "link.rate=fast"), "expected a rate such as 100mbit"),
        (("collectives", "link.rate=1gbit"), "all workers are on one; set nodes=2 or more"),
        (("collectives", "nodes=4", "workers=1", "backends=shm"), "add backends=gloo"),
        (("collectives", "workers=1"), "communication needs 2"),
        (("collectives", "nodes=3", "workers=8"), "makes 24 ranks"),
        (("collectives", "collective=allreduce"), "did you mean 'all_reduce'?"),
        (("collectives", "rounds=0"), "rounds is 0, but must be 1 or more"),
        (("collectives", "spec.yaml"), "is not key=value; write it as in drumline bench coll"),
        (("collectives", "--figure", "a.pdf"), "expected a name that ends in .png or .svg"),
        (("collectives", "--csv", "no/such.csv"), "there is no folder no"),
        (("aggregation", "kinds=ddp"), "no strategy 'ddp' among allreduce, ring,"),
        (("aggregation", "model=cmn"), "did you mean 'cnn'?"),
        (("aggregation", "bottleneck=3"), "nodes run from 0 to 2"),
        (("aggregation", "bottleneck=1", "slow_nodes.1.cpu=0.5"), "drop one of the two"),
        (("aggregation", "algorithms=ring"), "unknown key 'algorithms'"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(drumline, words, why):
    answer = drumline("bench", *words)
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert why in line
