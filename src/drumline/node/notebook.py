"""JupyterLab on the leader: `python -m drumline.node.notebook ROOT start|stop`.

It listens on the loopback interface only, and opens to whoever has its token. The token is random,
and stands in one file that only its owner can read: not in the words or variables of a process, and
in no log. Jupyter's own settings, the user's as well, are not read: they may let others in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from drumline.core.files import write_atomic
from drumline.node.service import Program, Service, ServiceError, serve


def start(service: Service) -> dict[str, Any]:
    """Start JupyterLab in R/code, unless it runs; returns its port and token."""
    lab = find_lab()
    (service.root / "code").mkdir(parents=True, exist_ok=True)

    def build(port: int) -> Program:
        config = service.folder / "config.json"
        write_atomic(config, json.dumps(settings(service, port, lab)), mode=0o600)
        return Program(
            argv=[sys.executable, "-m", "jupyterlab", f"--config={config}", "--no-browser"],
            folder=service.root / "code",
            variables=variables(service, lab),
        )

    state = service.start(build)
    config = json.loads((service.folder / "config.json").read_text())
    return {"port": state["port"], "token": config["IdentityProvider"]["token"]}


def settings(service: Service, port: int, lab: Path) -> dict[str, Any]:
    """Return Jupyter's configuration, with a new token in it."""
    return {
        "IdentityProvider": {"token": secrets.token_urlsafe(32)},
        "ServerApp": {
            "ip": "127.0.0.1",
            "port": port,
            "port_retries": 0,
            "open_browser": False,
            "root_dir": str(service.root / "code"),
            "allow_root": os.getuid() == 0,
        },
        "LabApp": {
            "app_dir": str(lab),
            "check_for_updates_class": "jupyterlab.handlers.announcements.NeverCheckForUpdate",
            "news_url": None,
        },
    }


def variables(service: Service, lab: Path) -> dict[str, str]:
    """Return the process's variables: everything that Jupyter writes goes to our folder."""
    own = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
    }
    share = lab.parent
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")},
        **{key: str(service.folder / name) for key, name in own.items()},
        "DRUMLINE_ROOT": str(service.root),  # for `drumline.node.asking`
        "JUPYTER_PATH": str(share),
        "JUPYTER_CONFIG_PATH": str(share.parents[1] / "etc" / "jupyter"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def find_lab() -> Path:
    """Return JupyterLab's application folder, which lies beside the packages, not in them.

    Raises:
        ServiceError: it is not installed.
    """
    found = importlib.util.find_spec("jupyterlab")
    if found is None or found.origin is None or importlib.util.find_spec("ipykernel") is None:
        raise ServiceError("jupyterlab is not installed on the leader", missing="jupyterlab>=4.2")
    above = [Path(sys.prefix), *Path(found.origin).parents]
    for prefix in above:
        if (prefix / "share" / "jupyter" / "lab" / "static").is_dir():
            return prefix / "share" / "jupyter" / "lab"
    raise ServiceError(
        f"jupyterlab in {found.origin} is incomplete: no share/jupyter/lab/static",
        missing="jupyterlab>=4.2",
    )


if __name__ == "__main__":
    serve("jupyter", start)
