"""Everything that is said is there in both languages, and what it points at exists."""

from __future__ import annotations

import ast
import re
import shlex
import string
from pathlib import Path

import pytest

import drumline
from drumline.bench.specs import AggregationSpec, CollectivesSpec
from drumline.cli.app import app, lab_app
from drumline.cli.main import main  # noqa: F401  commands hang themselves on the app
from drumline.grader.server import CHECKS
from drumline.labs.catalogue import LABS, starter_files
from drumline.labs.check import load_pointers
from drumline.labs.text import read_texts
from drumline.report.page.translator import Language
from drumline.spec.load import load_spec, read_spec
from wrong import SOLUTIONS

SOURCE = Path(drumline.__file__).parent
PLACES = sorted({place for pointer in load_pointers().values() for place in pointer.read})
PARTS = ("expected", "seen", "belief")
CHINESE = re.compile("[\u4e00-\u9fff]")
SHEETS = {Language.EN: "TASK.md", Language.ZH: "TASK.zh.md"}


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_say_the_same_facts():
    english, chinese = (read_texts("verdicts")[language] for language in Language)
    assert list(english) == list(chinese)
    for key, en in english.items():
        zh = chinese[key]
        assert fields(en) == fields(zh), key
        assert bool(en) == bool(zh), key
        words = re.sub(r"{[^}]*}", "", en)
        if re.search("[a-z]{3}", words):
            assert CHINESE.search(zh), key


def test_every_check_and_mistake_has_its_text():
    keys = set(read_texts("verdicts")[Language.EN])
    names = {check.name for checks in CHECKS.values() for check in checks}
    titles = {f"titles.{name}" for name in names if not name.endswith(".import")}
    assert {key for key in keys if key.startswith("titles.")} == titles
    parts = {f"mistakes.{name}.{part}" for name in load_pointers() for part in PARTS}
    assert {key for key in keys if key.startswith("mistakes.")} == parts


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
    named = {p.section for p in load_pointers().values() if p.lab == lab.number}
    for table in SHEETS.values():
        sections = [int(n) for n in re.findall(r"^## (\d+)\. ", files[table], re.MULTILINE)]
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
            read_spec(CollectivesSpec, rest, "")
        case ["bench", "aggregation", *rest]:
            read_spec(AggregationSpec, rest, "")
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
        solution = SOLUTIONS / str(lab.number) / f"{module}.py"
        assert _signatures(files[f"{module}.py"]) <= _signatures(solution.read_text())


def _signatures(text: str) -> set[str]:
    return {
        f"{node.name}({ast.unparse(node.args)})"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }
