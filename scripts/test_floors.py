"""Test the lower bounds of pyproject.toml: install exactly them, and run what shows that they work.

    make test-floors
    FLOORS_TORCH=2.8.0 make test-floors     with that PyTorch, whatever its wheel brings along

PyTorch's own floor is taken where a build without CUDA is to be had (its version ends in +cpu); the
usual one would bring 6 GB of CUDA packages. Otherwise it is the version of constraints.txt, which a
line says. Tools of the extra `dev` are as in constraints.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-floors"
PYTHON = FOLDER / "bin" / "python"
PIP = (str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check")
HINTS = ("aiobotocore<2.13",)
"""what pip would find out in minutes: the newest that goes with botocore's floor"""
TOOLS = ("dev", "docs")
"""extras for who works on the project"""
NO_TESTS = ("build", "coverage", "mypy", "ruff", "twine", "types-PyYAML")
"""tools of the extra `dev` that the tests do without"""
TESTS = (
    "tests/test_public_surface.py",
    "tests/cli/test_commands.py",
    "tests/spec",
    "tests/trainer/test_scalars.py",
    "tests/trainer/test_checkpoint.py",
    "tests/trainer/test_equality.py",
    "tests/trainer/test_training_runs.py::test_everything_is_in_the_run_directory",
    "tests/launcher/test_by_hand.py",
    "tests/report",
    "tests/cluster/test_spec.py",
    "tests/cluster/test_keys.py",
    "tests/cluster/test_fleet.py",
    "tests/cluster/test_provision.py",
    "tests/cluster/test_storage.py",
    "tests/cluster/test_ec2_life.py",
)


def floors(project: dict[str, dict[str, list[str]]]) -> dict[str, str]:
    """Return the lowest version of each package that the project and its extras allow."""
    found = {}
    extras = project["optional-dependencies"]
    optional = (text for extra in extras if extra not in TOOLS for text in extras[extra])
    for text in (*project["dependencies"], *optional):
        requirement = Requirement(text)
        (bound,) = requirement.specifier
        found[canonicalize_name(requirement.name)] = bound.version
    return found


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def choose_torch(floor: str) -> str:
    """Choose the version of PyTorch; says so where it is not the floor."""
    if wanted := os.environ.get("FLOORS_TORCH"):
        return wanted
    build = f"{floor}.0+cpu" if floor.count(".") == 1 else f"{floor}+cpu"
    command = [*PIP, "download", "--no-deps", "--dest", str(FOLDER / "torch"), f"torch=={build}"]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        return build
    print(f"torch {build} is not to be had here: its floor is not tried, {pins()['torch']} is used")
    return pins()["torch"]


def install() -> None:
    """Make the environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # an old pip would take long to find versions that go together
    options = ("--clear", "--upgrade-deps")
    subprocess.run([sys.executable, "-m", "venv", *options, str(FOLDER)], check=True)
    versions = floors(project)
    versions["torch"] = choose_torch(versions["torch"])
    tools = [Requirement(text) for text in project["optional-dependencies"]["dev"]]
    tools = [tool for tool in tools if tool.name not in NO_TESTS]
    known = pins()
    wanted = [*HINTS, *(f"{name}=={version}" for name, version in versions.items())]
    for tool in tools:
        extras = f"[{','.join(sorted(tool.extras))}]" if tool.extras else ""
        wanted.append(f"{tool.name}{extras}=={known[canonicalize_name(tool.name)]}")
    links = ["--find-links", str(FOLDER / "torch")] if (FOLDER / "torch").is_dir() else []
    subprocess.run([*PIP, "install", *links, *wanted], check=True)
    subprocess.run([*PIP, "install", "--no-deps", "-e", str(ROOT)], check=True)


def main() -> None:
    """Install, unless told that it is done, and run the tests."""
    install()
    # older versions have deprecations of their own, which the newer ones' tests look for
    tests = [str(PYTHON), "-m", "pytest", "-n", "2", "--dist", "loadfile", "-W", "default"]
    sys.exit(subprocess.run([*tests, *TESTS, *sys.argv[1:]], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
