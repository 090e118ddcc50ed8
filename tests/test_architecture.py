"""The shape of the package, read from its imports: who may know whom, and what may be loaded where.

All imports count: those inside functions and under TYPE_CHECKING too, since each says that one part
knows of another. `check` gives the breaches of a source tree; it is tested on a small one below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "drumline"

# Who may import whom: ARCHITECTURE.md has the picture.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "spec": {"core"},
    "schedules": {"core"},
    "comm": {"schedules", "core"},
    "data": {"spec", "core"},
    "models": {"spec", "core"},
    "optim": {"spec", "core"},
    "parallel": {"comm", "optim", "spec", "core"},
    # of report the ledger alone, which is arithmetic on events: loggers get its numbers
    "trainer": {"parallel", "comm", "data", "models", "optim", "report", "spec", "core"},
    "probe": {"parallel", "comm", "models", "schedules", "spec", "core"},
    "observer": {"comm", "core"},
    "observe": {"observer", "agent", "core"},
    "agent": {"observer", "trainer", "parallel", "comm", "core"},
    "grader": {"comm", "core"},
    "launcher": {"spec", "core"},
    "report": {"schedules", "spec", "core"},
    "bench": {"launcher", "report", "schedules", "spec", "core"},
    "labs": {"bench", "launcher", "report", "spec", "core", "data"},
    "node": {"launcher", "spec", "core"},
    "cluster": {"node", "launcher", "spec", "core"},
    "interactive": {"cli", "launcher", "report", "spec", "core"},
    "cli": {
        *("bench", "cluster", "labs", "node", "launcher", "report"),
        *("schedules", "spec", "core", "data"),
    },
}
OPERATIONS = {
    *("core", "spec", "schedules", "launcher", "report", "bench", "labs", "node", "cluster", "cli"),
    "interactive",
}
RUNTIME = {
    "observe",
    "comm",
    "data",
    "models",
    "optim",
    "parallel",
    "trainer",
    "probe",
    "agent",
    "grader",
    "observer",
}
# Modules of `data` that hold tensors. The others serve both columns, and know numpy at most.
TENSORS = {f"data.{name}" for name in ("dataset", "loader", "own", "sampler", "splits")}
HEAVY = {"torch", "safetensors", "tensorboard"}
CLOUD = {"boto3", "botocore", "asyncssh", "ansible", "ansible_runner"}
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
MAX_LINES = 400  # a reminder, no reason to cut: one subject that a reader wants to see whole


@dataclass(frozen=True)
class Import:
    """One module that another one names, and where."""

    target: str
    line: int
    names: tuple[str, ...] = field(default=())
    for_types: bool = False

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def modules_of(source: Path) -> dict[str, Path]:
    """Name each module below a package's folder: `comm.ring`, and `comm` for its __init__."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, module: str, package: str) -> Iterator[Import]:
    """Find all imports of a file, wherever they stand."""
    yield from _walk(ast.parse(path.read_text()), path, module, package, for_types=False)


def _walk(
    node: ast.AST, path: Path, module: str, package: str, *, for_types: bool
) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, for_types=for_types)
    elif isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names)
        base = node.module or ""
        if node.level:
            here = [package, *filter(None, module.split("."))]
            up = node.level - (path.name == "__init__.py")
            base = ".".join([*here[: len(here) - up], *filter(None, [node.module])])
        yield Import(base, node.lineno, names, for_types=for_types)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.body:
            yield from _walk(child, path, module, package, for_types=True)
        for child in node.orelse:
            yield from _walk(child, path, module, package, for_types=for_types)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _walk(child, path, module, package, for_types=for_types)


def targets(found: Import, modules: dict[str, Path], package: str) -> Iterator[str]:
    """Name the modules of ours that an import means, without the package's own name in front."""
    if found.top != package:
        return
    base = found.target.partition(".")[2]
    inner = [f"{base}.{name}".lstrip(".") for name in found.names]
    submodules = [name for name in inner if name in modules]
    yield from submodules
    if base and (len(submodules) < len(found.names) or not found.names):
        yield base


def check(source: Path) -> list[str]:
    """Return every breach of the architecture in a source tree, one line each."""
    package = source.name
    modules = modules_of(source)
    edges: dict[str, set[str]] = {}
    breaches = []
    for module, path in modules.items():
        home = module.partition(".")[0]
        breaches += _check_file(path, module)
        for found in imports_of(path, module, package):
            where = f"{module or package}:{found.line}"
            breaches += _check_outside(where, module, found)
            for target in targets(found, modules, package):
                other = target.partition(".")[0]
                if other == home or not module or module == "__main__":
                    continue
                edges.setdefault(home, set()).add(other)
                if other not in MAY_IMPORT.get(home, set()):
                    breaches.append(f"{where}: {home} may not import {target}")
                if home in OPERATIONS and target in TENSORS:
                    breaches.append(f"{where}: {target} loads torch; {home} may not")
    breaches += [f"cycle: {' -> '.join(cycle)}" for cycle in cycles(edges)]
    return breaches


def _check_outside(where: str, module: str, found: Import) -> Iterator[str]:
    home = module.partition(".")[0]
    light = home in OPERATIONS or (home == "data" and module not in TENSORS) or not home
    if found.top in HEAVY and light:
        yield f"{where}: {found.top} in the operations column"
    if found.top == "numpy" and home not in RUNTIME:
        yield f"{where}: numpy outside the runtime column"
    if found.top in CLOUD and home in RUNTIME:
        yield f"{where}: {found.top} in the runtime column"


def _check_file(path: Path, module: str) -> Iterator[str]:
    text = path.read_text()
    if (lines := text.count("\n")) > MAX_LINES:
        yield f"{module}: {lines} lines; look for the second noun in it"
    if path.stem in DRAWERS or path.parent.name in DRAWERS:
        yield f"{module}: named as a drawer, not after what it owns"
    if module.partition(".")[0] not in {*MAY_IMPORT, "", "__main__"}:
        yield f"{module}: a package that the table does not know"
    if not ast.get_docstring(ast.parse(text)):
        yield f"{module}: no docstring"


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Find a way from each package back to itself."""
    found = []
    for start in sorted(edges):
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            for after in sorted(edges.get(way[-1], ())):
                if after == start:
                    found.append([*way, start])
                    ways = []
                    break
                if after not in seen:
                    seen.add(after)
                    ways.append([*way, after])
    return found


def test_the_package_keeps_its_shape():
    assert check(SOURCE) == []


def test_a_whole_training_run_is_read_in_one_sitting():
    text = (SOURCE / "trainer" / "train.py").read_text()
    assert len(text.splitlines()) <= 310


def test_the_modules_of_data_with_tensors_are_those_that_say_so():
    """What the test allows to load torch does; else the list would hide something."""
    modules = modules_of(SOURCE)
    loads = {
        name
        for name, path in modules.items()
        if name.startswith("data.")
        and any(found.top == "torch" for found in imports_of(path, name, "drumline"))
    }
    assert loads == TENSORS


def test_light_modules_of_data_do_not_reach_the_heavy_ones():
    """Types apart: those are never loaded."""
    modules = modules_of(SOURCE)
    for name, path in modules.items():
        if name.startswith("data.") and name not in TENSORS:
            for found in imports_of(path, name, "drumline"):
                reached = set(targets(found, modules, "drumline")) & TENSORS
                assert found.for_types or not reached, f"{name}:{found.line} reaches {reached}"


# The check itself, on a tree that breaks each rule

GOOD = {
    "__init__.py": '"""Ours."""\n',
    "core/__init__.py": '"""Core."""\n',
    "spec/run_spec.py": '"""Spec."""\nimport yaml\n',
    "comm/__init__.py": '"""Comm."""\nimport torch\n',
    "comm/ring.py": '"""Ring."""\nfrom pkg.core.spec import RunSpec\nfrom .group import join\n',
    "comm/group.py": '"""Group."""\n',
    "report/__init__.py": '"""Report."""\n',
    "data/__init__.py": '"""Data."""\n',
    "data/dataset.py": '"""Splits."""\nimport torch\n',
    "data/fetch.py": '"""Fetch."""\nimport numpy\n',
    "cli/__init__.py": '"""Cli."""\n',
    "cli/main.py": '"""Main."""\ndef f():\n    from pkg.data.fetch import fetch\n',
}


@pytest.fixture
def tree(tmp_path):
    """Write a package; further files may replace those of the good one."""

    def write(files: dict[str, str] | None = None) -> Path:
        root = tmp_path / "pkg"
        for name, text in {**GOOD, **(files or {})}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


def test_a_good_tree_has_no_breaches(tree):
    assert check(tree()) == []


@pytest.mark.parametrize(
    ("file", "text", "breach"),
    [
        ("report/a.py", "import pkg.comm.ring\n", "report may not import comm.ring"),
        ("report/a.py", "from pkg import comm\n", "report may not import comm"),
        ("report/a.py", "from pkg.comm import ring\n", "report may not import comm.ring"),
        ("report/a.py", "from ..comm.ring import x\n", "report may not import comm.ring"),
        ("report/a.py", "def f():\n    from pkg.comm import x\n", "report may not import comm"),
        (
            "report/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.comm import x\n",
            "report may not import comm",
        ),
        ("core/a.py", "from pkg.comm import x\n", "core may not import comm"),
        ("core/a.py", "from pkg.comm import x\n", "cycle: comm -> core -> comm"),
        ("core/a.py", "class A:\n    def f(self):\n        import torch.nn\n", "torch in the op"),
        ("report/a.py", "from safetensors.torch import save\n", "safetensors in the operations"),
        ("report/a.py", "import numpy as np\n", "numpy outside the runtime column"),
        ("data/fetch.py", "import torch\n", "torch in the operations column"),
        ("__init__.py", "import torch\n", "torch in the operations column"),
        ("cli/a.py", "from pkg.data.dataset import x\n", "data.dataset loads torch"),
        ("comm/a.py", "import boto3\n", "boto3 in the runtime column"),
        ("comm/a.py", "try:\n    import asyncssh\nexcept ImportError:\n    pass\n", "asyncssh in"),
        ("comm/utils.py", "", "named as a drawer"),
        ("comm/helpers/__init__.py", "", "named as a drawer"),
        ("comm/a.py", "x = 1\n" * (MAX_LINES + 1), "look for the second noun"),
        ("magic/__init__.py", "", "a package that the table does not know"),
    ],
)
def test_each_breach_is_seen(tree, file, text, breach):
    found = check(tree({file: f'"""A."""\n{text}'}))
    assert any(breach in line for line in found), found


def test_a_module_without_a_docstring_is_seen(tree):
    assert check(tree({"comm/__init__.py": "import torch\n"})) == ["comm: no docstring"]
