"""Where the published image sets are looked for on this machine, and where they are put.

In order: `data.path` (and nowhere else, when it is given), the folder that DRUMLINE_DATA names, the
user's cache, and Debian's folder for packaged data sets. In each, the files may lie in a subfolder
of the set's name or right there, gzipped or not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from drumline.core.errors import DataError
from drumline.data.catalogue import FILE_NAMES, PUBLISHED, TEST_LABELS, Published
from drumline.data.idx import read_content

DEBIAN = Path("/usr/share/datasets")


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that data is fetched into: DRUMLINE_DATA, or else the user's cache."""
    return _folders(environ)[0]


def find_files(
    published: Published, *, path: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Path]:
    """Return the path of each of the set's four files, by its name in the catalogue.

    A folder that lacks a file, or that holds another known set under the same file names, is
    passed over.

    Raises:
        DataError: no folder holds the set; the message lists where it was looked for, and why not.
    """
    looked: list[str] = []
    for folder in _candidates(published, path, environ):
        found = _files_in(folder)
        missing = [name for name in FILE_NAMES if name not in found]
        other = None if missing else _other_set(found[TEST_LABELS], published)
        if not missing and other is None:
            return found
        if found:
            looked.append(f"{folder} ({f'holds {other}' if other else f'lacks {missing[0]}'})")
        else:
            looked.append(str(folder))
    raise DataError(
        f"{published.name} was not found in {', '.join(looked)}; run `drumline data fetch "
        f"{published.name}`, or set data.path to the folder with {FILE_NAMES[0]}[.gz] and the rest",
        path=path,
        looked=looked,
    )


def repair(published: Published) -> str:
    """Return the advice that goes with a damaged file of the set."""
    return f"delete it and run `drumline data fetch {published.name}`"


def _folders(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get("DRUMLINE_DATA")
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [*([Path(named).expanduser()] if named else []), Path(cache) / "drumline"]


def _candidates(
    published: Published, path: str | None, environ: Mapping[str, str]
) -> Iterator[Path]:
    for folder in [Path(path).expanduser()] if path else _folders(environ):
        yield from (folder / subfolder for subfolder in published.subfolders)
        yield folder
    if not path:
        yield DEBIAN / published.name


def _files_in(folder: Path) -> dict[str, Path]:
    # Of two forms the later, the plain one, stays: it is quicker to read. os.path.isfile, unlike
    # Path.is_file, says no to a folder that may not be entered.
    paths = ((name, folder / form) for name in FILE_NAMES for form in (f"{name}.gz", name))
    return {name: path for name, path in paths if os.path.isfile(path)}


def _other_set(labels: Path, published: Published) -> str | None:
    """Name the known set that these test labels belong to, if it is not the one meant."""
    digest = hashlib.sha256(read_content(labels, fix=repair(published))).hexdigest()
    for other in PUBLISHED.values():
        if other is not published and digest in (file.sha256 for file in other.files):
            return other.name
    return None
