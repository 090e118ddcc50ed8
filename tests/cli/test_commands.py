"""What the commands print that start nothing: help, schema, runs, show."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
ESCAPE = "\x1b"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ["train", "run", "explain", "runs", "show", "compose", "doctor", "schema", "data"]),
        (["train"], ["Examples", "strategy=chunked_ring", "resume=runs/run-3", "torchrun"]),
        (["run"], ["Examples", "drumline run -j 2x2 train.py"]),
        (["explain"], ["Examples", "drumline explain all_reduce --mismatch"]),
        (["compose"], ["Examples", "drumline compose -n 4 --cpus 1.5", "docker compose up"]),
        (["doctor"], ["Examples", "drumline doctor --clean"]),
        (["runs"], ["newest first"]),
        (["show"], ["Example", "drumline show run-1"]),
        (["schema"], ["Example", "drumline schema > "]),
        (["data"], ["fetch"]),
        (["data", "fetch"], ["Example", "drumline data fetch mnist fashion-mnist"]),
    ],
)
def test_help_shows_an_example_and_loads_nothing_heavy(ask, folder, words, shown):
    answer = ask(*words, "--help")
    assert answer.code == 0
    assert answer.err == ""
    assert [word for word in shown if word not in answer.out] == []
    assert answer.loaded == ()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("columns", ["60", "80"])
@pytest.mark.parametrize("bench", ["collectives", "aggregation"])
def test_the_keys_of_a_bench_are_broken_where_the_line_is_full(ask, bench, columns):
    lines = [
        line.strip() for line in ask("bench", bench, "--help", COLUMNS=columns).out.split("\n")
    ]
    first = next(n for n, line in enumerate(lines) if line.startswith("Keys: "))
    paragraph = lines[first : lines.index("", first)]
    for line, after in itertools.pairwise(paragraph):
        assert len(f" {line} {after.split()[0]}") > int(columns) - 2, line


@pytest.mark.parametrize("words", [["train"], ["lab", "run"], ["cluster", "init"], ["data"], []])
def test_help_reads_the_same_with_every_typer(ask, words):
    """Newer ones put brackets around brackets, types beside flags, and lines between lines."""
    shown = ask(*words, "--help").out
    for odd in ("[[", "]]", "{", "<bool>", "BOOLEAN", "list[str]"):
        assert odd not in shown
    lines = [line.strip() for line in shown.splitlines()]
    if "Examples" in lines:
        examples = lines[lines.index("Examples") + 2 :]
        assert len(examples[: examples.index("")]) >= 2, "no empty lines between examples"


def test_usage_lines_name_arguments_as_people_write_them(ask):
    def usage(*words):
        lines = ask(*words, "--help", COLUMNS="120").out.splitlines()
        return next(line.partition("[OPTIONS] ")[2].strip() for line in lines if "Usage:" in line)

    assert usage("train") == "[SPEC.yaml] [KEY=VALUE]…"
    assert usage("lab", "run") == "LAB [KEY=VALUE]…"
    assert usage("cluster", "init") == "[PROVIDER]"
    assert usage("run") == "SCRIPT [ARGS…]"
    assert usage("bench") == "COMMAND [ARGS]..."


def complete(instruction, **variables):
    answer = subprocess.run(
        [Path(sys.executable).with_name("drumline")],
        env={"_DRUMLINE_COMPLETE": instruction, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return answer.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell):
    assert "_DRUMLINE_COMPLETE" in complete(f"source_{shell}")
    found = complete("complete_bash", COMP_WORDS="drumline te", COMP_CWORD="1")
    assert found.split() == ["tensorboard"]


def test_the_module_can_be_started_too():
    command = [sys.executable, "-m", "drumline", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Usage:" in answer.stdout


def test_the_version(ask):
    assert ask("--version").out.count(".") == 2


@pytest.mark.parametrize("words", [["runs"], ["show", "demo-1"], ["schema"], ["--help"]])
def test_output_to_a_full_disk_is_one_sentence(make_run, folder, words):
    make_run()
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "drumline", *words],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert answer.stderr == "drumline: the output is not whole: No space left on device\n"
    assert answer.returncode == 1


def test_signs_that_the_terminal_does_not_have_are_replaced(ask, make_run):
    make_run()
    answer = ask("show", "demo-1", PYTHONIOENCODING="ascii")
    assert (answer.code, answer.err) == (0, "")
    assert "97.31%" in answer.out


# Schema


@pytest.fixture(scope="module")
def schema():
    from drumline.spec.run_spec import RunSpec

    return RunSpec.model_json_schema()


def test_the_schema_is_printed_and_valid(ask, schema):
    answer = ask("schema")
    assert (answer.code, answer.err, answer.loaded) == (0, "", ())
    printed = json.loads(answer.out)
    assert printed.pop("$schema") == "https://json-schema.org/draft/2020-12/schema"
    assert printed == schema
    jsonschema.Draft202012Validator.check_schema(printed)


def spec_files() -> list[Path]:
    return [EXAMPLES / "demo.yaml", *sorted((EXAMPLES / "specs").glob("*.yaml"))]


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.name)
def test_the_schema_accepts_the_examples(schema, path):
    """An editor must not underline what `drumline train` takes, one-word parts included."""
    spec = json.loads(json.dumps(yaml.safe_load(path.read_text())))
    jsonschema.validate(spec, schema, cls=jsonschema.Draft202012Validator)


def test_the_schema_accepts_what_is_written_into_run_directories(schema, make_run):
    spec = yaml.safe_load(make_run("data.partition=random").spec_file.read_text())
    jsonschema.validate(spec, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "spec",
    [
        {"wrokers": 2},
        {"workers": 0},
        {"strategy": "rign"},
        {"strategy": {"kind": "rign"}},
        {"data": "imagenet"},
        {"data": {"btach": 2}},
        {"dtype": "float16"},
    ],
)
def test_the_schema_refuses_what_the_spec_refuses(schema, spec):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, schema, cls=jsonschema.Draft202012Validator)


def test_every_key_is_described_for_the_editor(schema):
    undescribed = {"seed", "model", "data", "optimizer", "schedule", "strategy", "checkpoint"}
    undescribed |= {"device"}
    for name, key in schema["properties"].items():
        assert "description" in key or name in undescribed, name


# Runs and show


def test_runs_are_listed_at_eighty_columns_without_a_cut(ask, make_run):
    make_run("name=a-name-that-somebody-gave-his-run", "strategy=parameter_server")
    make_run("name=b", "data.name=fashion-mnist", "model=lenet", finished=False)
    make_run("name=c", "model=package.module.deeper:factory")
    answer = ask("runs", COLUMNS="80")
    assert (answer.code, answer.err, answer.loaded) == (0, "", ())
    assert "…" not in answer.out
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 80
    headings = "run started model, data strategy ranks steps result"
    assert lines[0].split() == headings.split()
    assert answer.out.count("97.31%") == 2
    assert answer.out.count("01-02 03:04") == 3
    for word in ("killed", "parameter_server", "lenet", "fashion-mnist"):
        assert word in answer.out


def test_runs_as_json(ask, make_run):
    make_run()
    assert json.loads(ask("runs", "--json").out) == [
        {
            "run": "demo-1",
            "started": "2025-01-02 03:04",
            "model": "cnn",
            "data": "mnist-mini",
            "strategy": "chunked_ring",
            "world_size": 2,
            "steps": 3,
            "accuracy": 0.9731,
            "metrics": {"accuracy": 0.9731},
            "state": "done",
        }
    ]


def test_where_there_are_no_runs_it_says_how_to_make_one(ask, folder):
    answer = ask("runs")
    assert answer.code == 0
    assert "make one with: drumline train" in " ".join(answer.out.split())
    assert list(folder.iterdir()) == []


def test_show_tells_the_whole_run_at_eighty_columns(ask, make_run):
    run = make_run()
    answer = ask("show", "demo-1", COLUMNS="80")
    assert (answer.code, answer.err, answer.loaded) == (0, "", ())
    lines = [line.split() for line in answer.out.splitlines()]
    assert max(len(line) for line in answer.out.splitlines()) <= 80
    assert ["rank", "step", "data", "compute", "wait", "transfer", "exposed"] in lines
    numbers = [line[:7] for line in lines]
    assert ["0", "100.00", "2.00", "38.00", "50.00", "10.00", "60.00"] in numbers
    assert ["1", "100.00", "2.00", "88.00", "0.00", "10.00", "10.00"] in numbers
    assert "71% of that was waiting for rank 1" in " ".join(answer.out.split())
    assert ["0", "192", "190", "7", *["19"] * 10] in lines
    assert ["test", "accuracy", "97.31%"] in lines
    assert str(run.path) in "".join(answer.out.split())


def test_show_as_json_is_one_document(ask, make_run):
    run = make_run()
    document = json.loads(ask("show", str(run.path), "--json").out)
    assert document["run_dir"] == str(run.path)
    assert document["ledger"]["ranks"][1]["lost_time_share"] == pytest.approx(5 / 7, abs=1e-4)
    assert document["spec"]["strategy"]["kind"] == "chunked_ring"
    assert document["coverage"]["run"]["seen"] == 380


def test_show_of_an_unfinished_run_tells_what_there_is(ask, make_run):
    run = make_run(finished=False)
    answer = ask("show", "demo-1")
    assert answer.code == 0
    assert "where the time went" in answer.out
    assert f"demo-1:killed;itslogsarein{run.logs}" in "".join(answer.out.split())
    run.write_json("failure.json", {"type": "WorkerError", "message": "rank 1 was killed"})
    assert "demo-1: failed (rank 1 was killed)" in ask("show", "demo-1").out
    run.write_json("failure.json", {"type": "InterruptError", "message": "at step 3"})
    assert "interrupted" in ask("runs").out


@pytest.mark.parametrize("words", [["--help"], ["runs"], ["show", "demo-1"], ["schema"]])
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"NO_COLOR": "1", "TERM": "xterm"}])
def test_piped_output_has_no_escape_codes(ask, make_run, words, variables):
    make_run()
    answer = ask(*words, **variables)
    assert answer.code == 0
    assert ESCAPE not in answer.out + answer.err


def test_errors_have_no_escape_codes(ask):
    for words in (["train", "nowhere.yaml"], ["trian"]):
        assert ESCAPE not in ask(*words, NO_COLOR="1").err
