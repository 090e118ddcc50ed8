"""What `submit` makes of the words that name a script."""

from __future__ import annotations

import pytest

from drumline.cli.submit import path_from_here
from drumline.core.errors import UsageError


def test_a_script_is_named_from_the_folder_that_travels(tmp_path, monkeypatch):
    (tmp_path / "a project" / "src").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a project")
    monkeypatch.chdir(tmp_path / "link")
    for name in ("src/train.py", "./src/train.py", "../a project/src/train.py"):
        assert path_from_here(name) == "src/train.py"
    assert path_from_here("..data/train.py") == "..data/train.py"
    for folder in ("a project", "link"):
        assert path_from_here(str(tmp_path / folder / "src" / "train.py")) == "src/train.py"
    assert path_from_here("/opt/train.py") == "/opt/train.py", "the nodes may have it"
    with pytest.raises(UsageError, match=r"^\.\./train\.py is outside of .* which alone travels"):
        path_from_here("../train.py")
