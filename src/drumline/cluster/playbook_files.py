"""What a user's playbook consists of: the file, and those that it refers to.

Ansible finds some by their place beside a playbook (roles, group_vars, …). Others are named in it,
or in one that is named there: import_tasks, vars_files, the source of a copy or a template. A name
that a task makes up as it runs cannot be known here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

_BY_PLACE = ("roles", "group_vars", "host_vars", "library", "module_utils", "collections")
_PLUGINS = "*_plugins"
_LOOKED_IN = ("", "files", "tasks", "templates", "vars")
"""folders in which Ansible looks for a name, beside the playbook and the file that names it"""
_YAML = (".yml", ".yaml")


def playbook_digests(playbook: Path) -> dict[str, str]:
    """Return the digests of all files that a playbook consists of, by their paths from it."""
    found: dict[str, str] = {}
    base = playbook.parent
    _add(found, str(playbook), base)
    for folder in [*(base / name for name in _BY_PLACE), *base.glob(_PLUGINS)]:
        _add(found, str(folder), base)
    return {os.path.relpath(path, base): digest for path, digest in found.items()}


def _add(found: dict[str, str], path: str, base: Path) -> None:
    """Add a file and what it refers to, or all files of a folder."""
    if os.path.isdir(path):
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            for name in names:
                _add(found, os.path.join(folder, name), base)
        return
    path = os.path.normpath(path)
    if path in found or not os.path.isfile(path):
        return
    try:
        content = Path(path).read_bytes()
    except OSError:  # if it is needed, Ansible says so itself
        return
    found[path] = hashlib.sha256(content).hexdigest()
    if path.endswith(_YAML):
        for word in _words(content):
            for folder in dict.fromkeys((os.path.dirname(path), str(base))):
                for place in _LOOKED_IN:
                    other = os.path.join(folder, place, word)
                    # of folders only those below: a task's "." or "/etc" means another
                    if os.path.isfile(other) or ("/" in word and _is_below(other, base)):
                        _add(found, other, base)


def _words(content: bytes) -> Iterator[str]:
    """Give what may be names in a YAML file; what is not YAML, Ansible complains about itself."""
    try:
        for token in yaml.scan(content):
            if isinstance(token, yaml.ScalarToken):
                words = {token.value, *re.split(r"[\s=]+", token.value)}
                yield from (word for word in words if word and not os.path.isabs(word))
    except (yaml.YAMLError, UnicodeDecodeError):
        return


def _is_below(path: str, base: Path) -> bool:
    inside = os.path.relpath(path, base)
    return os.path.isdir(path) and inside != "." and not inside.startswith("..")
