"""Write constraints.txt: the version of every package that this environment has for the project.

Run it in an environment with all extras, after upgrading what should be upgraded:

    make install-dev && .venv/bin/python scripts/write_constraints.py
"""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
HEAD = """\
# Versions that every install of this repository uses (see the Makefile): all packages that an
# install with all extras brings. Written by scripts/write_constraints.py. torch is pinned because
# the exact-equality tests and the benchmarks speak of one version (it pins its CUDA packages).
"""


def declared() -> list[str]:
    """Return all requirements of pyproject.toml, those of extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(each for extra in extras for each in extra)]


def installed(requirements: Iterable[str]) -> dict[str, str]:
    """Find the versions of all packages that requirements lead to, by name; "" if not here."""
    todo, seen = [Requirement(each) for each in requirements], set()
    versions: dict[str, str] = {}
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
            continue
        versions[name] = Version(distribution.version).public  # without +cpu
        for need in map(Requirement, distribution.requires or []):
            marker = need.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in {"", *extras}):
                todo.append(need)
    return versions


def main() -> None:
    """Write the file, unless something is missing here."""
    versions = installed(declared())
    if missing := [name for name, version in versions.items() if not version]:
        raise SystemExit(f"not installed here: {', '.join(missing)}; run: make install-dev")
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (ROOT / "constraints.txt").write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
