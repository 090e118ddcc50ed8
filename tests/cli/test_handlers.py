"""Every command declares the options that the function it calls asks for, of the same types."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any, get_origin, get_type_hints

import pytest

from drumline.cli.app import bind_options, find_handler
from drumline.cli.main import app

NOT_ASKED_FOR = {"everything"}
"""inventory --list: Ansible says it, and there is nothing else that could be meant"""


def commands_of(group):
    for command in group.registered_commands:
        if hasattr(command.callback, "__wrapped__"):
            yield command.callback
    for inner in group.registered_groups:
        yield from commands_of(inner.typer_instance)


def types_asked_for(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(function).items():
        if is_dataclass(hint):
            found |= types_asked_for(hint)
        elif name != "return":
            found[name] = hint
    return found


@pytest.mark.parametrize(
    "command", list(commands_of(app)), ids=lambda command: command.__qualname__
)
def test_a_command_declares_what_its_handler_asks_for(command):
    handler = find_handler(inspect.getclosurevars(command).nonlocals["calls"])
    declared = types_asked_for(command.__wrapped__)
    asked_for = types_asked_for(handler)
    assert declared.keys() - asked_for.keys() <= NOT_ASKED_FOR
    for name, type_ in asked_for.items():  # a list that is not given is empty
        optional = get_origin(type_) is list and declared[name] == type_ | None
        assert declared[name] == type_ or optional, name
    bind_options(handler, dict.fromkeys(declared))


def test_most_commands_are_declarations():
    assert len(list(commands_of(app))) > 30
