"""What CONTRIBUTING.md and ARCHITECTURE.md name is there: files, folders, symbols, make targets.

The source is parsed, not imported. A name in backticks counts as ours unless FOREIGN has it.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from doc_pages import LANGUAGES, ROOT, pages

PAGES = ("CONTRIBUTING.md", "ARCHITECTURE.md")
SOURCE = ROOT / "src" / "drumline"
# Names of torch, of the system and of other tools.
FOREIGN = {
    *("DistributedOptimizer", "c10d", "init_rpc"),
    *("docker-compose", "ip", "kill", "memfd", "mpirun", "nsenter", "sshd", "tc", "unshare"),
    *("helpers", "utils"),  # what no file is called
}


@functools.cache
def files() -> list[str]:
    """Every file and folder of the tree, from the root, and of the package, from its own root."""
    found = []
    for folder in ("src", "tests", "examples", "benchmarks", "scripts", "docs"):
        found += [path for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    top = [path for path in ROOT.iterdir() if path.name != ".git"]
    return [f"/{path.relative_to(ROOT)}" for path in (*found, *top)]


@functools.cache
def symbols() -> set[str]:
    """Whatever has a name in our Python: modules, functions, classes, fields, constants, strings.

    Strings, since kinds of events, keys of a spec and choices are among them.
    """
    found = set()
    for path in (*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        found.update(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and SOURCE in path.parents
                and re.fullmatch(r"[\w.-]{1,30}", node.value)
            ):
                found.add(node.value)
    return found


def exists(path: str) -> bool:
    """Say whether a reader finds it: one file that ends so (`comm/ring.py`), or a folder."""
    ends = [file for file in files() if file.endswith("/" + path.strip("/"))]
    return len(ends) == 1 if "." in path else bool(ends)


def cited_paths(text: str) -> set[str]:
    """Python files anywhere, and paths in backticks."""
    python = set(re.findall(r"(?<![\w./<])((?:[\w-]+/)*[\w-]+\.(?:py|sh|html|txt))\b", text))
    quoted = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text)
    return python | {path for path in quoted if not path.startswith(("~", ".venv"))}


def cited_names(text: str) -> set[str]:
    """Single names in backticks; of `drumline.a.b` and `a.b` each part."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = set()
    for word in re.findall(r"`([A-Za-z_][\w.]*)`", plain):
        if not word.startswith("torch.") and not re.search(r"\.(py|json|txt|yaml)$", word):
            found.update(word.split("."))
    return found - {"drumline"}


@pytest.mark.parametrize("page", PAGES)
def test_cited_files_exist(page):
    text = (ROOT / page).read_text()
    assert sorted(path for path in cited_paths(text) if not exists(path)) == []


@pytest.mark.parametrize("page", [p for lang in LANGUAGES for p in pages(lang).values()], ids=str)
def test_source_files_that_pages_cite_exist(page):
    """Readers are sent to the source of an algorithm."""
    packages = "|".join(path.name for path in SOURCE.iterdir() if path.name != "labs")
    cited = re.findall(rf"`((?:{packages})/[\w/]*(?:\.py)?)`", page.read_text())
    assert [path for path in cited if not (SOURCE / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_cited_names_exist(page):
    text = (ROOT / page).read_text()
    assert sorted(cited_names(text) - symbols() - FOREIGN) == []


@pytest.mark.parametrize("page", PAGES)
def test_cited_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    cited = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert cited <= targets


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`comm/no_such_ring.py`", "comm/no_such_ring.py"),
        ("   3. meets the others     comm/nowhere.py", "comm/nowhere.py"),
        ("`tests/comm/test_all_reduce_of_old.py`", "tests/comm/test_all_reduce_of_old.py"),
        ("`nowhere/`", "nowhere/"),
        ("`runner.py`", "runner.py"),  # which of them?
    ],
)
def test_a_missing_file_is_noticed(text, missing):
    assert [path for path in cited_paths(text) if not exists(path)] == [missing]


def test_a_missing_name_is_noticed():
    text = "Name it in `SUMS_OF_OLD` and `StrategyKind`; `drumline.grader_of_old`."
    assert cited_names(text) - symbols() == {"SUMS_OF_OLD", "grader_of_old"}


def test_jinja_is_no_news():
    """A dependency that is declared is not said to be missing."""
    declared = (ROOT / "pyproject.toml").read_text()
    for page in PAGES:
        for name in re.findall(r"not yet a dependency: ([\w-]+)", Path(ROOT, page).read_text()):
            assert f'"{name}>' not in declared, page
