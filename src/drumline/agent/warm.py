"""Imported by the worker server before it forks: loads what every worker will need, once.

Forked workers share these modules instead of importing them each: `import torch` alone takes more
than a second. Garbage collection is off meanwhile (thousands of objects are made, none is garbage),
and what was loaded is kept out of it for good, so that a collection in a worker does not touch, and
thereby copy, the shared pages.

The server itself must end with the agent: its workers hold the pipe by which it would notice.
"""

import contextlib
import gc
import importlib
import os

from drumline.core.processes import die_with_parent
from drumline.core.task import PRELOAD_VARIABLE

if PRELOAD_VARIABLE in os.environ:
    die_with_parent()
    gc.disable()
    for _name in os.environ[PRELOAD_VARIABLE].split(","):
        with contextlib.suppress(ImportError):  # the worker will fail on it, and say why
            importlib.import_module(_name)
    gc.enable()
    gc.freeze()
