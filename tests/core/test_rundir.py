from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from drumline.core.errors import RunDirError, UsageError
from drumline.core.files import write_atomic
from drumline.core.rundir import EventWriter, RunDir, list_runs
from drumline.spec.load import read_run_spec, write_run_spec
from drumline.spec.run_spec import RunSpec


def finish_creating(run: RunDir) -> RunDir:
    run.write_json("manifest.json", {"argv": []})
    return run


# Making one


def test_runs_are_numbered_from_one(tmp_path):
    root = tmp_path / "deep" / "runs"
    made = [RunDir.create("demo", root=root) for _ in range(3)]
    assert [run.path for run in made] == [root / f"demo-{n}" for n in (1, 2, 3)]
    assert RunDir.create("other", root=root).path.name == "other-1"
    assert sorted(path.name for path in made[0].path.iterdir()) == ["events", "logs"]


def test_a_file_in_the_place_of_a_number_is_passed_over(tmp_path):
    (tmp_path / "demo-1").write_text("mine")
    assert RunDir.create("demo", root=tmp_path).path.name == "demo-2"
    assert (tmp_path / "demo-1").read_text() == "mine"


def test_threads_that_race_get_a_number_each(tmp_path):
    gate = threading.Barrier(8)
    made: list[str] = []

    def create() -> None:
        gate.wait()
        made.extend(RunDir.create("demo", root=tmp_path / "runs").path.name for _ in range(10))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == sorted(f"demo-{n}" for n in range(1, 81))


def test_processes_that_race_get_a_number_each(tmp_path):
    code = (
        "import sys; from pathlib import Path; from drumline.core.rundir import RunDir\n"
        "print(flush=True); sys.stdin.readline()\n"
        "for _ in range(20): print(RunDir.create('demo', root=Path('runs')).path.name)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()  # it is ready
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    made = [name for racer in racers for name in racer.communicate(timeout=30)[0].split()]
    assert sorted(made) == sorted(f"demo-{n}" for n in range(1, 41))


def test_the_exact_path_is_taken_as_it_is(tmp_path):
    exact = tmp_path / "here" / "it-is"
    assert RunDir.create("demo", root=tmp_path / "runs", exact=exact).path == exact
    assert not (tmp_path / "runs").exists()


def test_the_word_for_a_run_finds_it_again(tmp_path, monkeypatch):
    root = Path("runs")
    monkeypatch.chdir(tmp_path)
    ours = finish_creating(RunDir.create("demo", root=root))
    exact = finish_creating(RunDir.create("demo", root=root, exact=Path("elsewhere/f")))
    assert ours.word(root=root) == "demo-1"
    assert exact.word(root=root) == str(tmp_path / "elsewhere" / "f")
    for run in (ours, exact):
        assert RunDir.open(run.word(root=root), root=root).path == run.path


def test_a_path_that_exists_is_refused_and_left_alone(tmp_path):
    exact = tmp_path / "taken"
    exact.mkdir()
    (exact / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError) as caught:
        RunDir.create("demo", root=tmp_path, exact=exact)
    assert caught.value.message == (
        f"the run directory {exact} exists already; choose another --out"
    )
    assert [path.name for path in exact.iterdir()] == ["thesis.txt"]


def test_a_run_that_exists_is_refused_with_the_way_to_continue_it(tmp_path):
    run = finish_creating(RunDir.create("demo", root=tmp_path))
    with pytest.raises(UsageError, match=rf"continue .+: drumline train resume={run.path}$"):
        RunDir.create("demo", root=tmp_path, exact=run.path)


def test_a_dangling_link_is_a_path_that_exists(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="exists already; choose another --out"):
        RunDir.create("demo", root=tmp_path, exact=tmp_path / "link")


@pytest.mark.parametrize("below", ["runs", "runs/deeper"])
def test_a_file_in_the_place_of_the_folder_is_told(tmp_path, below):
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(RunDirError) as caught:
        RunDir.create("demo", root=tmp_path / below)
    assert caught.value.message.startswith(f"cannot make a run directory in {tmp_path / below}: ")
    assert "give one with --out" in caught.value.message
    with pytest.raises(RunDirError, match=r"cannot make a run directory in .+exact: Not a dir"):
        RunDir.create("demo", root=tmp_path, exact=tmp_path / "runs" / "exact")


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere (root)")
        with pytest.raises(RunDirError, match="Permission denied; go to a folder that you can"):
            RunDir.create("demo", root=tmp_path / "runs")
    finally:
        tmp_path.chmod(0o700)


# Finding one


def test_a_run_is_found_by_name_and_by_path(tmp_path, monkeypatch):
    run = finish_creating(RunDir.create("demo", root=tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    for name in ("demo-1", "runs/demo-1", "runs/demo-1/", str(run.path)):
        assert RunDir.open(name, root=Path("runs")).path == run.path


def test_an_unknown_run_is_answered_with_the_newest(tmp_path):
    for age, name in enumerate(["c", "a", "b", "e", "d", "f"]):
        run = finish_creating(RunDir.create(name, root=tmp_path))
        os.utime(run.path / "manifest.json", (10**9 - age, 10**9 - age))
    assert [run.path.name for run in list_runs(tmp_path)] == [f"{n}-1" for n in "cabedf"]
    with pytest.raises(UsageError) as caught:
        RunDir.open("demo-9", root=tmp_path)
    assert caught.value.message == (
        "no run 'demo-9': the newest are c-1, a-1, b-1, e-1, d-1; "
        "name one of them, or give a run's path"
    )


def test_where_there_are_no_runs_it_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"no run 'demo-1': there are none in .+/runs/; give"):
        RunDir.open("demo-1", root=tmp_path / "runs")


def test_a_folder_without_a_manifest_is_no_run(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(UsageError, match="no run 'photos'"):
        RunDir.open("photos", root=tmp_path)
    assert list_runs(tmp_path) == []


# What is in it


def test_the_spec_comes_back(tmp_path):
    run = RunDir.create("demo", root=tmp_path)
    spec = RunSpec(workers=3, max_steps=5)
    write_run_spec(run, spec)
    assert read_run_spec(run) == spec


def test_the_layout(tmp_path):
    run = RunDir(tmp_path)
    with EventWriter(run.rank_events(1)) as events:
        events.write("start")
    assert run.read_rank_events(2) == [[], [{"event": "start"}]]
    assert run.rank_events(1) == tmp_path / "events" / "rank-1.jsonl"
    assert run.node_events(0) == tmp_path / "events" / "node-0.jsonl"
    assert run.rank_log(2) == tmp_path / "logs" / "rank-2.log"


def test_documents_come_back_and_absent_ones_are_none(tmp_path):
    run = RunDir(tmp_path)
    assert run.read_json("summary.json") is None
    run.write_json("summary.json", {"name": "größe", "loss": 0.25})
    assert run.read_json("summary.json") == {"name": "größe", "loss": 0.25}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff"])
def test_a_damaged_document_is_told(tmp_path, content):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(RunDirError, match=r"summary\.json is damaged: it holds no JSON object; "):
        RunDir(tmp_path).read_json("summary.json")


# Atomic writes


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "spec.yaml"
    write_atomic(path, "old")
    write_atomic(path, "nëw")
    assert path.read_text(encoding="utf-8") == "nëw"
    assert [file.name for file in tmp_path.iterdir()] == ["spec.yaml"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "summary.json"
    run = RunDir(tmp_path)
    run.write_json("summary.json", {"old": 1})
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    with pytest.raises(TypeError):
        run.write_json("summary.json", {"new": object()})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_a_place_that_cannot_be_written_is_told_and_left_clean(tmp_path):
    taken = tmp_path / "summary.json"
    taken.mkdir()
    with pytest.raises(RunDirError, match=r"cannot write .+summary\.json: Is a directory; make "):
        write_atomic(taken, "text")
    with pytest.raises(RunDirError, match=r"cannot write .+x\.json: No such file"):
        write_atomic(tmp_path / "gone" / "x.json", "text")
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_readers_never_see_half_of_a_document(tmp_path):
    path = tmp_path / "document.json"
    write_atomic(path, "a" * 5000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_atomic(path, "b" * 5000)
            write_atomic(path, "a" * 5000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        contents = {path.read_text() for _ in range(300)}
    finally:
        stop.set()
        writer.join()
    assert contents <= {"a" * 5000, "b" * 5000}
