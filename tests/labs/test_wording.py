"""Everything that is said is there in both languages, and what it points at exists."""

from __future__ import annotations

import ast
import re
import shlex
import string
from pathlib import Path

import pytest

import drumline
from drumline.cli.app import app, lab_app
from drumline.cli.main import main  # noqa: F401  commands hang themselves on the app
from drumline.core.bench import AggregationSpec, CollectivesSpec
from drumline.core.language import Language
from drumline.examine.checks import CHECKS
from drumline.labs.catalogue import LABS
from drumline.labs.language import Said
from drumline.labs.start import starter_files
from drumline.labs.wording import MISTAKES, TITLES, anywhere
from drumline.labs.wording import aggregation as lab2
from drumline.labs.wording import data_parallel as lab3
from drumline.labs.wording import model_parallel as lab4
from drumline.labs.wording import optimizers as lab1
from drumline.spec.load import load_spec, read_words

SOURCE = Path(drumline.__file__).parent
PLACES = sorted({place for entry in MISTAKES.values() for place in entry.read})
OF_LAB = {1: lab1.MISTAKES, 2: lab2.MISTAKES, 3: lab3.MISTAKES, 4: lab4.MISTAKES}
CHINESE = re.compile("[\u4e00-\u9fff]")
SHEETS = {Language.EN: "TASK.md", Language.ZH: "TASK.zh.md"}


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def every_said() -> list[Said]:
    entries = MISTAKES.values()
    sentences = [said for e in entries for said in (e.expected, e.seen, e.belief)]
    return [*sentences, *TITLES.values(), *anywhere.WORDS.values()]


def test_both_languages_say_the_same_facts():
    for said in every_said():
        assert fields(said.en) == fields(said.zh), said
        assert bool(said.en) == bool(said.zh), said
        words = re.sub(r"{[^}]*}", "", said.en)
        if re.search("[a-z]{3}", words):
            assert CHINESE.search(said.zh), said


def test_every_check_has_a_title():
    names = {check.name for checks in CHECKS.values() for check in checks}
    assert {name for name in names if not name.endswith(".import")} == set(TITLES)


@pytest.mark.parametrize("place", PLACES)
def test_where_to_read_exists(place):
    file, _, symbol = place.partition(":")
    tree: ast.AST = ast.parse((SOURCE / file).read_text())
    for name in symbol.split(".") if symbol else []:
        tree = next(
            node
            for node in ast.iter_child_nodes(tree)
            if getattr(node, "name", None) == name or _assigned(node) == name
        )


def _assigned(node: ast.AST) -> str | None:
    return getattr(getattr(node, "target", None), "id", None)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_the_sheets_have_the_sections_that_mistakes_name(lab):
    files = starter_files(lab)
    named = {entry.section for entry in OF_LAB[lab.number].values()}
    for sheet in SHEETS.values():
        sections = [int(n) for n in re.findall(r"^## (\d+)\. ", files[sheet], re.MULTILINE)]
        assert sections == list(range(1, 9))
        assert named <= set(sections)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
@pytest.mark.parametrize("language", Language)
def test_the_sheets_name_files_and_commands_that_exist(lab, language):
    text = starter_files(lab)[SHEETS[language]]
    for file, rest in re.findall(r"^- `([\w/]+\.py)`[:：](.*)$", text, re.MULTILINE):
        source = (SOURCE / file).read_text()
        for symbol in re.findall(r"`([A-Za-z_.]+)`", rest):
            assert symbol.split(".")[-1] in source, (file, symbol)
    lines = re.findall(r"^    drumline (.*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        _check_command(shlex.split(line))


def _check_command(words: list[str]) -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    labs = {command.name or command.callback.__name__ for command in lab_app.registered_commands}
    match words:
        case ["train", *rest]:
            load_spec(None, rest)
        case ["bench", "collectives", *rest]:
            read_words(CollectivesSpec, rest, "")
        case ["bench", "aggregation", *rest]:
            read_words(AggregationSpec, rest, "")
        case ["bench", "model-parallel"]:
            pass
        case ["lab", name, *_]:
            assert name in labs
        case [name, *_]:
            assert name in commands


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_a_solution_has_the_names_of_the_starter_files(lab):
    """And all files compile: they are no modules of ours, so nothing else reads them."""
    files = starter_files(lab)
    assert {f"{module}.py" for module in lab.modules} <= set(files)
    assert {"TASK.md", "TASK.zh.md", "test_lab.py"} <= set(files)
    for name, text in files.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            assert "drumline" not in text.replace("drumline lab check", "")
    for module in lab.modules:
        solution = Path(__file__).parent / "solutions" / str(lab.number) / f"{module}.py"
        assert _signatures(files[f"{module}.py"]) <= _signatures(solution.read_text())


def _signatures(text: str) -> set[str]:
    return {
        f"{node.name}({ast.unparse(node.args)})"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }
