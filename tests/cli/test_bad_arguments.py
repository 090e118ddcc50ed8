"""Words that are off: one sentence on stderr, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.launcher.preflight import may_have_gpu
from drumline.launcher.runs import resumed_run
from drumline.spec.load import read_run_spec
from drumline.spec.strategy import StrategySpec


def files(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def refused(ask, folder):
    """Call a command that must be refused, and return what it says: refused("show", "x")."""

    def call(*words: str, code: int = 2, **variables: str) -> str:
        before = files(folder)
        answer = ask(*words, **variables)
        assert answer.code == code, answer
        assert answer.out.strip() == ""
        assert "Traceback" not in answer.err
        assert files(folder) == before
        assert "torch" not in answer.loaded
        assert answer.err.startswith("drumline: ")
        (line,) = answer.err.splitlines()
        return line.removeprefix("drumline: ")

    return call


def test_a_missing_spec(refused):
    assert refused("train", "nowhere.yaml") == (
        "no spec file nowhere.yaml; write one, or give keys alone: "
        "drumline train model=cnn workers=2 strategy.kind=ring"
    )


def test_a_spec_with_a_typo(refused, folder):
    (folder / "spec.yaml").write_text("epochs: 1\nwrokers: 2\n")
    said = "spec.yaml, line 2: unknown key 'wrokers'; did you mean 'workers'?"
    assert refused("train", "spec.yaml") == said
    assert refused("train", "spec.yaml", "--json") == said


def test_a_folder_that_is_no_run(refused, folder):
    (folder / "empty").mkdir()
    said = "empty is no run: it has neither spec.yaml nor events/; name a run's folder"
    assert refused("report", "empty").startswith(said)
    assert refused("compare", "empty", "empty").startswith(said)


def test_two_spec_files(refused):
    said = "one spec file at most, got a.yaml, b.yaml; keys are key=value"
    assert refused("train", "a.yaml", "b.yaml") == said


def test_what_a_hang_cannot_do_is_refused_before_a_folder_is_made(ask, refused, folder):
    (folder / "x.py").write_text("")
    answer = ask("run", "--on-hang", "foo", "x.py")
    assert (answer.code, (folder / "runs").exists()) == (2, False)
    assert all(word in answer.err for word in ("'foo'", "'report'", "'stop'"))
    never = "a hang is not looked for then; leave one of them out"
    for off in (["--no-ledger"], ["--hang-after", "0"]):
        said = f"{' '.join(off)} --on-hang stop: {never}"
        assert refused("run", *off, "--on-hang", "stop", "x.py") == said


def test_a_spec_takes_no_options_of_scripts(refused, folder):
    (folder / "spec.yaml").write_text("model: mlp\n")
    for option in (["--on-hang", "stop"], ["--hang-after", "30"], ["--no-ledger"]):
        said = refused("submit", *option, "--", "spec.yaml")
        assert said.startswith("--no-ledger, --hang-after and --on-hang are for scripts")


def test_batch_zero(refused):
    assert refused("train", "data.batch=0") == (
        "'data.batch=0': data.batch is 0, but must be 1 or more; write e.g. data.batch=128"
    )


@pytest.mark.parametrize("words", [["spec.yaml"], ["--out", "elsewhere"]])
def test_resume_with_a_spec_or_directory_of_its_own(refused, make_run, folder, words):
    make_run()
    (folder / "spec.yaml").write_text("epochs: 5\n")
    said = "resume=RUN brings its own spec and directory; leave the others out"
    assert refused("train", "resume=demo-1", *words) == said


@pytest.mark.parametrize("words", [["show", "demo-9"], ["train", "resume=demo-9"]])
def test_an_unknown_run(refused, make_run, words):
    no_runs = "no run 'demo-9': there are none in runs/; give a run's path, or start one with: "
    assert refused(*words) == f"{no_runs}drumline train"
    make_run()
    assert refused(*words) == (
        "no run 'demo-9': the newest are demo-1; name one of them, or give a run's path"
    )


def test_resuming_a_finished_run_without_saying_how_long(refused, make_run):
    make_run()
    assert refused("train", "resume=demo-1") == (
        "demo-1 is finished, at step 3; to train it further say how long, e.g. epochs=2"
    )


def test_resuming_with_another_model(refused, make_run):
    make_run(finished=False)
    said = refused("train", "resume=demo-1", "model=mlp")
    assert said.startswith(
        "model of demo-1 cannot change when it is resumed (model.name: cnn became mlp); "
    )


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("optimizer.lr=0.5", "optimizer.lr: 0.1 became 0.5"),
        ("data.batch=64", "data.batch: 128 became 64"),
        ("data.partition=random", "data.partition.kind: shuffle became random"),
        ("strategy.average=sum", "strategy.average: mean became sum"),
        ("strategy.compress=fp16", "strategy.compress: none became fp16"),
        ("model.dropout=0", "model.dropout: None became 0"),
        ("seed=7", "seed: 1234 became 7"),
    ],
)
def test_resuming_with_what_would_change_the_weights(refused, make_run, word, change):
    make_run(finished=False)
    said = refused("train", "resume=demo-1", word)
    assert f"{word.partition('.')[0].partition('=')[0]} of demo-1 cannot change" in said
    assert f"({change})" in said


@pytest.mark.parametrize("word", ["strategy=tensor", "strategy.kind=tensor"])
def test_resuming_by_another_strategy_leaves_the_words_of_the_old_one(make_run, folder, word):
    run = make_run(
        *("strategy=pipeline", "strategy.schedule=interleaved", "strategy.balance=[1, 1, 2, 1]"),
        finished=False,
    )
    overrides = ["strategy.engine=torch", word, "workers=3", "max_steps=6"]
    with resumed_run("demo-1", overrides, root=folder / "runs") as (_, spec):
        wanted = StrategySpec(kind="tensor", engine="torch")
        assert spec.strategy == read_run_spec(run).strategy == wanted


def test_resuming_by_another_strategy_keeps_how_copies_are_averaged(make_run, folder):
    make_run("strategy.average=sum", "strategy.bucketed=false", finished=False)
    with resumed_run("demo-1", ["strategy=ddp"], root=folder / "runs") as (_, spec):
        assert spec.strategy == StrategySpec(kind="ddp", average="sum")


def test_resuming_by_the_same_strategy_keeps_its_words(make_run, folder):
    run = make_run("strategy=pipeline", "strategy.schedule=gpipe", finished=False)
    before = read_run_spec(run).strategy
    with resumed_run("demo-1", ["strategy=pipeline"], root=folder / "runs") as (_, spec):
        assert spec.strategy == before


def test_resuming_with_another_world_size(refused, make_run):
    make_run(finished=False)
    said = refused("train", "resume=demo-1", "workers=3")
    assert said.startswith("demo-1 ran on 2 ranks, not 3: ")
    assert said.endswith("resume with workers=2 nodes=1, or with a mesh whose data axis is 2")


def test_resuming_one_copy_as_two(refused, make_run):
    make_run("strategy=pipeline", finished=False)
    said = refused("train", "resume=demo-1", "strategy=allreduce")
    assert said.startswith("demo-1 ran on 1 copy of the model, not 2: ")


def test_resuming_a_run_without_a_checkpoint(refused, make_run):
    make_run(finished=False, checkpoint=False)
    said = refused("train", "resume=demo-1", code=1)
    assert said.startswith("demo-1 has no checkpoint to continue from; ")


def test_out_that_exists(refused, make_run, folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("years")
    said = "the run directory mine exists already; choose another --out"
    assert refused("train", "--out", "mine") == said
    make_run()
    said = refused("train", "--out", "runs/demo-1")
    assert said.endswith("or continue that run with: drumline train resume=runs/demo-1")


def test_a_file_in_the_place_of_the_runs_folder(refused, folder):
    (folder / "runs").write_text("not a folder")
    said = refused("train", code=1)
    assert said.startswith("cannot make a run directory in runs: ")
    assert said.endswith("give one with --out")


@pytest.mark.parametrize("name", ["BIG_x", "", "a: b", "ünï"])
def test_a_name_that_no_cluster_can_have(refused, name):
    said = refused("cluster", "init", "--name", name)
    assert said.startswith(f"--name: {name!r} cannot name a cluster; write small letters")


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_file_in_the_place_of_the_clusters_folder(refused, folder, command):
    (folder / "home").write_text("not a folder")
    (folder / "cluster.yaml").write_text("{name: lab, provider: twin}\n")
    said = refused(command, code=1, DRUMLINE_HOME=str(folder / "home"))
    assert said.startswith(f"cannot write {folder / 'home'}/clusters/lab, where ")
    assert said.endswith("name a folder that you can write to: export DRUMLINE_HOME=…")


def test_a_page_in_the_place_of_a_folder(refused, folder):
    (folder / "mine").mkdir()
    said = "--html mine is a folder; name a file, such as mine/page.html"
    assert refused("explain", "all_reduce", "--html", "mine") == said


def test_a_meeting_file_that_exists(refused, folder):
    stale = folder / "meeting"
    stale.write_text("old addresses")
    said = refused("train", f"init=file://{stale}")
    assert "the file exists already" in said
    assert "remove it" in said
    assert "there is no such folder" in refused("train", f"init=file://{folder}/no/where")


@pytest.mark.parametrize("more", [[], ["nodes=2"], ["--rank=0", "--world-size=2", "--master=a:1"]])
def test_a_meeting_file_that_cannot_be_made(refused, more):
    said = refused("train", "init=file:///proc/drumline-meeting", *more)
    assert said.startswith("init: file:///proc/drumline-meeting: the file cannot be made (")
    assert said.endswith("or write init: file to do without")


def test_a_backend_for_gpus_where_there_is_none(refused):
    if may_have_gpu():
        pytest.skip("there may be a GPU here")
    said = refused("train", "backend=nccl")
    assert said.startswith("backend: nccl moves GPU tensors, and this machine has no GPU (")
    assert said.endswith("set backend=auto")
    assert "device=cuda" not in said


@pytest.mark.parametrize("word", ["threads=100000", "timeout_s=1e30", "timeout_s=0.001"])
def test_numbers_out_of_reason(refused, word):
    assert word.partition("=")[0] in refused("train", word)


def test_a_script_that_is_not_there(refused):
    assert refused("run", "gone.py") == "no script gone.py; give the path of a Python file"


@pytest.mark.parametrize("shape", ["0x2", "2x0", "0", "x", "2x", "-1x2", "2x2x2", "two"])
def test_a_shape_that_is_none(refused, folder, shape):
    (folder / "script.py").write_text("print('ran')\n")
    assert refused("run", f"-j{shape}", "script.py").startswith(f"-j {shape}: expected nodes x ")


def test_a_shape_that_is_too_large(refused, folder):
    (folder / "script.py").write_text("print('ran')\n")
    assert "at most 254 nodes with 100 workers" in refused("run", "-j5000", "script.py")


def test_a_link_where_there_is_one_node_only(refused, folder):
    (folder / "script.py").write_text("print('ran')\n")
    assert refused("run", "-j", "2", "--link-rate", "1gbit", "script.py") == (
        "--link-rate 1gbit: links join simulated nodes, but all workers are on one; write -j 2x1 "
        "for nodes with one worker each, or leave it out"
    )
    said = refused("run", "-j", "2x1", "--link-rate", "fast", "script.py")
    assert said.startswith("--link-rate fast: link.rate: expected a rate such as 100mbit")


def test_a_spec_whose_name_has_an_equals_sign(refused, folder):
    (folder / "lr=1.yaml").write_text("modle: cnn\n")
    assert refused("train", "lr=1.yaml").startswith("lr=1.yaml, line 1: ")


def test_a_launcher_s_bad_number(refused):
    said = refused("train", code=1, RANK="first", WORLD_SIZE="2")
    assert said.startswith("torchrun has set RANK='first' and WORLD_SIZE='2'")


def test_a_damaged_summary(refused, make_run):
    run = make_run()
    (run.path / "summary.json").write_text("{")
    assert "summary.json is damaged" in refused("show", "demo-1", code=1)


def test_an_unknown_data_set(refused):
    assert "imagenet" in refused("data", "fetch", "imagenet")


@pytest.mark.parametrize(
    "words", [["trian"], ["train", "--jsno"], ["show"], ["run"], ["data", "fetch"]]
)
def test_words_that_are_no_command(ask, folder, words):
    answer = ask(*words)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert "Usage:" in answer.err
    assert files(folder) == {}


def test_one_unreadable_run_does_not_hide_the_others(ask, make_run):
    make_run("name=good")
    bad = make_run("name=bad")
    (bad.path / "spec.yaml").write_text("wrokers: 2\n")
    rows = {row["run"]: row["state"] for row in json.loads(ask("runs", "--json").out)}
    assert rows["good-1"] == "done"
    assert rows["bad-1"].startswith("unreadable: ")
    shown = " ".join(ask("runs", COLUMNS="80").out.split())
    assert "unreadable" in shown
    assert "line 1: unknown key 'wrokers'; did you mean 'workers'?" in shown
