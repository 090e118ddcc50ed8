"""The cluster's commands where only the package itself is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import sys
sys.modules["asyncssh"] = None  # as if it were not installed
sys.argv = ["drumline", *sys.argv[1:]]
from drumline.cli.main import main
main()
"""


@pytest.mark.parametrize("words", [["submit", "--", "train.py"], ["extend", "2h"]])
def test_what_to_install_is_told(tmp_path, words):
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("drumline: this command needs asyncssh, which is not installed")
    assert "pip install 'drumline[cluster]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_stacks_of_a_run_on_this_machine_need_no_cluster(tmp_path):
    command = [sys.executable, "-c", RUN, "stacks", "nothing"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "asyncssh" not in done.stderr
