"""TensorBoard on the leader: `python -m drumline.node.board ROOT start|stop`.

It shows what the jobs in R/jobs have written, wherever below it lies: run/tensorboard, and what a
Lightning script leaves in work/lightning_logs. It listens on the loopback interface only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from drumline.node.service import Program, Service, ServiceError, serve


def start(service: Service) -> dict[str, Any]:
    """Start TensorBoard, unless it runs; returns its port."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ServiceError(
            "tensorboard is not installed on the leader", missing="tensorboard>=2.16"
        )
    jobs = service.root / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)

    def build(port: int) -> Program:
        words = ["--host=127.0.0.1", f"--port={port}", f"--logdir={jobs}", "--reload_interval=5"]
        return Program(
            argv=[sys.executable, "-m", "tensorboard.main", *words],
            folder=jobs,
            variables={**os.environ, "TMPDIR": str(service.folder)},  # where it notes its port
        )

    return {"port": service.start(build)["port"]}


if __name__ == "__main__":
    serve("tensorboard", start)
