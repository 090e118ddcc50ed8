from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BIN = Path(sys.executable).parent
_TIMEOUT_S = 60
# What would make a script believe that somebody has launched it, or change what it prints.
_UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONWARNINGS", "FORCE_COLOR")


@pytest.fixture
def run_here(tmp_path):
    """Run a command of this environment in an empty folder; it must end with `code`, if given."""
    folder = tmp_path / "here"
    folder.mkdir()

    def call(
        program: str, *words: object, cwd: Path = folder, code: int | None = 0
    ) -> SimpleNamespace:
        environment = {key: value for key, value in os.environ.items() if key not in _UNSET}
        environment |= {"NO_COLOR": "1", "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        done = subprocess.run(
            [str(BIN / program), *map(str, words)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        assert code in (None, done.returncode), (
            f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return SimpleNamespace(
            lines=done.stdout.splitlines(),
            stdout=done.stdout,
            left=sorted(path.name for path in cwd.iterdir()),
        )

    return call
