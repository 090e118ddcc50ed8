"""What `import drumline` gives, and what it must not cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import drumline


def test_the_names_are_sorted_and_few():
    assert drumline.__all__ == sorted(drumline.__all__)
    assert drumline.__all__ == [
        "DataParallel",
        "DrumlineError",
        "Pipeline",
        "Run",
        "RunSpec",
        "TensorParallel",
        "average_gradients",
        "comm_hook",
        "launch",
        "load_model",
        "load_spec",
        "mark_step",
        "observe",
        "train",
    ]


@pytest.mark.parametrize("name", drumline.__all__)
def test_each_name_is_there(name):
    assert callable(getattr(drumline, name))
    assert name in dir(drumline)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'drumline' has no attribute 'nonsense'"):
        drumline.nonsense  # noqa: B018


def test_importing_it_does_not_import_torch():
    code = "import drumline, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["False", "False"]


def test_functions_keep_their_names_whatever_is_imported():
    """No package may be called as a function is: its import would put it in that one's place."""
    packages = {path.name for path in Path(drumline.__file__).parent.iterdir()}
    assert not packages & set(drumline.__all__)
