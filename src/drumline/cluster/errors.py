"""What goes wrong with a cluster, in sentences that end in the way out: `errors.yaml`, by name."""

from __future__ import annotations

import functools
from pathlib import Path

import yaml


@functools.cache
def read_sentences() -> dict[str, str]:
    """Read all sentences, by name."""
    text = Path(__file__).with_name("errors.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def sentence(name: str, /, **values: object) -> str:
    """Return a cluster error's message, by its name in `errors.yaml`, with these values in it."""
    return read_sentences()[name].format(**values)
