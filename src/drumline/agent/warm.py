"""Imported by the worker server before it forks: loads what every worker will need, once.

Forked workers share these modules instead of importing them each: `import torch` alone takes more
than a second, and DDP pulls in torch._dynamo for another. Garbage collection is off meanwhile
(thousands of objects are made, none is garbage), and what was loaded is kept out of it for good, so
that a collection in a worker does not touch, and thereby copy, the shared pages.
"""

import contextlib
import gc
import importlib
import os

PRELOAD_VARIABLE = "DRUMLINE_PRELOAD"

gc.disable()
for _name in filter(None, os.environ.get(PRELOAD_VARIABLE, "").split(",")):
    with contextlib.suppress(ImportError):  # the worker will fail on it, and say why
        importlib.import_module(_name)
gc.enable()
gc.freeze()
