"""What can be known of a run's data before ranks start: whether files and columns are there.

It takes a blink, loads neither torch nor the data, and raises what loading would raise later, when
every rank has started. numpy and Pillow are loaded only where there is such a file to look at.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from drumline.core.errors import UsageError
from drumline.spec.data import DataSpec


def check_data(spec: DataSpec) -> None:
    """Refuse data that is not there, or lacks a column that the spec names.

    Raises:
        DataError: a file, folder or published set is missing or cannot be read.
        UsageError: there is no such column, no use for a path, or a library to read it is missing.
    """
    match spec.form:
        case "built-in":
            from drumline.data.catalogue import PUBLISHED, find_files, refuse_unused_path

            refuse_unused_path(spec)
            if spec.name in PUBLISHED:
                find_files(PUBLISHED[spec.name], path=spec.path)
        case "table":
            from drumline.data.columns import column_names
            from drumline.data.table import choose_columns, table_files

            for path in table_files(spec).values():
                names = column_names(path)
                if names is not None:
                    choose_columns(spec, names, path)
        case "text":
            from drumline.data.columns import open_file
            from drumline.data.table import table_files

            for path in table_files(spec).values():
                open_file(path).close()
        case "folder":
            from drumline.data.folder import find_sets, list_classes
            from drumline.data.saved import NOT_INSTALLED, is_saved

            if not is_saved(Path(spec.name)):
                list_classes(find_sets(Path(spec.name))["train"])
            elif find_spec("datasets") is None:
                raise UsageError(NOT_INSTALLED.format(name=spec.name))
