"""An agent ends its workers without waiting for what cannot come."""

from __future__ import annotations

import subprocess
import sys

LOG_A_FAILURE = """
import logging, sys
from drumline.agent import elastic
elastic._log_tracebacks_at_once()
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").exception("it failed")
assert "torch._dynamo" not in sys.modules
"""


def test_a_logged_traceback_does_not_load_torchs_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOG_A_FAILURE], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "it failed" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
