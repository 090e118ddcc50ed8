"""What a node is found to lack: the maker's check, on real virtual environments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import packaging
import pytest

from drumline.node.environment import Maker, Packages, Wanted

WANTED = [
    {"name": "torch", "requirement": "torch>=2.8", "version": "2.13.0", "keep": True},
    {"name": "numpy", "requirement": "numpy>=1.26", "version": "2.4.6", "keep": False},
    {"name": "PyYAML", "requirement": "PyYAML>=6.0.1", "version": "6.0.3", "keep": False},
]
FLOORS = ["torch>=2.8", "numpy>=1.26", "PyYAML>=6.0.1"]
EQUAL = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "PyYAML": "6.0.3"}
NODE = {
    "python": "auto",
    "requirements": {},
    "leader": "127.0.0.1",
    "address": "127.0.0.1",
    "node": 0,
    "nodes": 1,
    "login": False,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("node")
    words = [sys.executable, "-m", "venv", "--without-pip", str(root / "env")]
    subprocess.run(words, check=True, timeout=120)
    return root


@pytest.fixture
def left(root):
    """What is left to install where a node has certain versions."""
    site = next((root / "env" / "lib").glob("python*/site-packages"))

    def check(has, *, has_packaging=True, wanted=WANTED):
        for name, version in has.items():
            info = site / f"{name}-{version}.dist-info"
            info.mkdir()
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (info / "METADATA").write_text(text)
        if has_packaging:
            (site / "packaging").symlink_to(Path(packaging.__file__).parent)
        (site / "pip.py").touch()  # enough to be found
        return Maker(Wanted(**NODE, root=str(root), dependencies=wanted)).check_packages()

    yield check
    for path in site.iterdir():
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


@pytest.mark.parametrize(
    ("has", "missing", "install"),
    [
        (EQUAL, [], []),
        ({}, FLOORS, ["torch==2.13.0", "numpy==2.4.6", "PyYAML==6.0.3"]),
        # PyTorch stays where it is new enough, in any build; everything else is as on the laptop
        ({**EQUAL, "torch": "2.9.1+cu128"}, [], []),
        ({**EQUAL, "torch": "2.8.0a0+5228986c39.nv25.6"}, [], []),
        ({**EQUAL, "torch": "2.10.0"}, [], []),
        ({**EQUAL, "torch": "2.7.1"}, ["torch>=2.8"], ["torch==2.13.0"]),
        ({**EQUAL, "numpy": "2.3.0"}, [], ["numpy==2.4.6"]),
        ({**EQUAL, "numpy": "1.9.3"}, ["numpy>=1.26"], ["numpy==2.4.6"]),
        ({**EQUAL, "PyYAML": "6.0.1rc1"}, [], ["PyYAML==6.0.3"]),
    ],
)
def test_what_is_not_as_on_the_laptop_is_to_be_installed(left, has, missing, install):
    assert left(has) == Packages(missing=missing, install=install, pip=True)


def test_without_packaging_pip_compares(left):
    """What the base has of PyTorch is only compared with the floor, so that it stays if it can."""
    answer = left({**EQUAL, "torch": "2.9.1+cu128"}, has_packaging=False)
    assert answer.install == ["torch>=2.8", "numpy==2.4.6", "PyYAML==6.0.3"]
    assert answer.missing == FLOORS


def test_what_the_laptop_does_not_have_is_installed_by_its_requirement(left):
    wanted = [{"name": "gcsfs", "requirement": "gcsfs>=2024.6", "version": "", "keep": False}]
    assert left({}, wanted=wanted).install == ["gcsfs>=2024.6"]
