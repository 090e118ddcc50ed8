"""examples/README.md names every example, and every file it names is there."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
README = EXAMPLES / "README.md"


def examples() -> set[str]:
    files = [path for ending in ("py", "yaml", "ipynb") for path in EXAMPLES.rglob(f"*.{ending}")]
    return {str(path.relative_to(EXAMPLES)) for path in files}


def test_the_table_and_the_folder_agree():
    rows = re.findall(r"^\| `([^`]+)`", README.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(examples() - {"lightning_hydra/ddp_train_example.yaml"})
