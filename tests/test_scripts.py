"""The scripts around the tests: what they say where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_programs_can_be_hidden():
    found = run(
        SCRIPTS / "without",
        "git",
        "ip",
        "--",
        "sh",
        "-c",
        "for p in git ip sh; do command -v $p; done",
    )
    assert [Path(line).name for line in found.stdout.splitlines()] == ["sh"]
    failed = run(SCRIPTS / "without", "git", "--", "sh", "-c", "exit 3")
    assert failed.returncode == 3
    assert run(SCRIPTS / "without", "git").returncode == 2


def test_what_cannot_be_installed_is_one_line():
    if run("unshare", "--mount", "true").returncode:
        pytest.skip("only root in a mount namespace can hide a program from its whole path")
    hide = (SCRIPTS / "without", "ip", "chromium", "apt-get", "sudo", "--")
    said = run(*hide, SCRIPTS / "system-packages")
    assert said.returncode == 0
    (line,) = said.stdout.splitlines()
    assert line.startswith("not installed: chromium, ")
    assert "iproute2" in line
    assert "(there is no apt here); skipped are the tests of " in line
    assert "pages in a browser" in line
    assert "simulated nodes and clusters" in line


def test_why_tests_were_skipped_is_one_line(tmp_path):
    """The summary of this suite's own conftest."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(3))\n"
        "def test_a(n): pytest.skip('no sshd here')\n"
        "def test_b(): pytest.skip('no ip here')\n"
        "def test_c(): pass\n"
    )
    tests = Path(__file__).parent
    words = ("-p", "conftest", "-p", "no:cacheprovider", "-n", "0", "-q", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, "PYTHONPATH": str(tests)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "4 tests were skipped: 3 × no sshd here; 1 × no ip here" in done.stdout.splitlines()
