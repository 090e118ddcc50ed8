from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drumline.core import errors
from drumline.core.errors import DrumlineError, SpecError, UsageError


def classes() -> list[type[DrumlineError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, DrumlineError)]


def drawn_tree() -> dict[str, str | None]:
    """Read the tree in the module's docstring: each name and the name above it."""
    above: dict[str, str | None] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│ ├└─]*)([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth = len(match.group(1))
        while stack and stack[-1][0] >= depth:
            stack.pop()
        above[match.group(2)] = stack[-1][1] if stack else None
        stack.append((depth, match.group(2)))
    return above


def test_the_tree_is_as_drawn():
    real = {
        cls.__name__: None if cls is DrumlineError else cls.__mro__[1].__name__ for cls in classes()
    }
    assert drawn_tree() == real
    assert len(real) == 16


def test_only_words_that_were_off_exit_with_two():
    codes = {cls.__name__: cls.exit_code for cls in classes()}
    others = {"UsageError": 2, "SpecError": 2, "InterruptError": 130}
    assert codes == dict.fromkeys(codes, 1) | others


def test_an_error_carries_fields_and_becomes_json():
    error = SpecError("no", path=Path("/x"), rank=3, nothing=None)
    assert str(error) == error.message == "no"
    record = json.loads(json.dumps(error.to_record()))
    assert record == {
        "type": "SpecError",
        "message": "no",
        "exit_code": 2,
        "path": "/x",
        "rank": 3,
        "nothing": None,
    }


def test_an_error_can_be_caught_by_its_branch():
    with pytest.raises(UsageError):
        raise SpecError("no")
