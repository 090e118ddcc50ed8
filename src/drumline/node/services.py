"""JupyterLab, TensorBoard on the leader: `python -m drumline.node.services ROOT NAME start|stop`.

R/services/<name>/     for its owner alone
    state.json         process, its start time, and port; what a second start finds and reuses
    log                output of the program
    lock               held while one is started or ended

A `Service` outlives the command that started it. A process is identified by its PID and its start
time together, since PIDs are reused. Services listen on the loopback interface only.

JupyterLab admits whoever has its token. The token is random, and is in one file that only its owner
can read: not in the arguments or environment of a process, and in no log. Jupyter's own settings,
the user's as well, are not read: they may admit others. TensorBoard shows what the jobs in R/jobs
have written: run/tensorboard, and what a Lightning script leaves in work/lightning_logs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.core.errors import RunDirError
from drumline.core.files import write_atomic
from drumline.core.json_lines import JsonStream, Message, Record
from drumline.core.lock import FileLock
from drumline.core.processes import start_time

_START_S, _STOP_S, _PAUSE_S = 90.0, 10.0, 0.1
_TRIES = 3  # at a port that somebody else takes between our look and the start


class ServiceError(Exception):
    """A service that cannot run; the message says why, and what to do."""

    def __init__(self, message: str, *, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing
        """the package that must be installed first"""


@dataclass(frozen=True, kw_only=True)
class ServiceState(Record):
    """A service that runs."""

    pid: int
    since: int | None
    """its start time, in the kernel's ticks"""
    port: int

    @property
    def lives(self) -> bool:
        """Whether its process runs, and not another one of the same PID."""
        return self.since is not None and start_time(self.pid) == self.since


class Service:
    """One service of a node; everything of it is in its folder."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.folder = root / "services" / name
        self._state = self.folder / "state.json"

    def running(self) -> ServiceState | None:
        """Return the state of the service that runs; None where none does."""
        try:
            state = ServiceState(**json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return state if state.lives else None

    def launch(
        self, command: Callable[[int], Sequence[str]], *, cwd: Path, env: Mapping[str, str]
    ) -> ServiceState:
        """Start the service's command for a port, unless it runs; returns its state.

        Raises:
            ServiceError: it does not come up; holds the end of its log.
        """
        with self._lock():
            state, tries = self.running(), 0
            while state is None:
                tries += 1
                state = self._try(command, cwd, env, last=tries == _TRIES)
        return state

    def stop(self) -> bool:
        """End the service; returns whether one ran."""
        with self._lock():
            state = self.running()
            if state is not None:
                self._end(state)
            self._state.unlink(missing_ok=True)
        return state is not None

    def _try(
        self,
        command: Callable[[int], Sequence[str]],
        cwd: Path,
        env: Mapping[str, str],
        *,
        last: bool,
    ) -> ServiceState | None:
        """Start it on a port that nobody has; None where somebody was faster, unless it is last."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        argv, log = command(port), self.folder / "log"
        log.unlink(missing_ok=True)
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        state = ServiceState(pid=process.pid, since=start_time(process.pid), port=port)
        if self._wait(process, port):
            write_atomic(self._state, json.dumps(state.to_json()) + "\n")
            return state
        self._end(state)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        if not last and "ddress already in use" in tail:
            return None
        raise ServiceError(f"{self.name} does not start; the end of its log {log}:\n{tail}")

    def _wait(self, process: subprocess.Popen[bytes], port: int) -> bool:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return process.poll() is None
            time.sleep(_PAUSE_S)
        return False

    def _end(self, state: ServiceState) -> None:
        """End a process by SIGTERM, then it and all that it has started by SIGKILL."""
        for kind in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(state.pid, kind)
            deadline = time.monotonic() + _STOP_S
            while state.lives and time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(state.pid, os.WNOHANG)
                time.sleep(_PAUSE_S)

    def _lock(self) -> FileLock:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        return FileLock(self.folder / "lock")


def _start_tensorboard(service: Service) -> Message:
    """Start TensorBoard, unless it runs; returns its port."""
    if importlib.util.find_spec("tensorboard") is None:
        what = "tensorboard is not installed on the leader"
        raise ServiceError(what, missing="tensorboard>=2.16")
    jobs = service.root / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)

    def command(port: int) -> list[str]:
        args = ["--host=127.0.0.1", f"--port={port}", f"--logdir={jobs}", "--reload_interval=5"]
        return [sys.executable, "-m", "tensorboard.main", *args]

    env = {**os.environ, "TMPDIR": str(service.folder)}  # where it notes its port
    return {"port": service.launch(command, cwd=jobs, env=env).port}


def _start_jupyter(service: Service) -> Message:
    """Start JupyterLab in R/code, unless it runs; returns its port and token."""
    lab, code, config = _find_lab(), service.root / "code", service.folder / "config.json"
    code.mkdir(parents=True, exist_ok=True)

    def command(port: int) -> list[str]:
        write_atomic(config, json.dumps(_settings(code, port, lab)), mode=0o600)
        return [sys.executable, "-m", "jupyterlab", f"--config={config}", "--no-browser"]

    state = service.launch(command, cwd=code, env=_variables(service, lab))
    token = json.loads(config.read_text())["IdentityProvider"]["token"]
    return {"port": state.port, "token": token}


def _settings(code: Path, port: int, lab: Path) -> dict[str, dict[str, object]]:
    """Return Jupyter's configuration, with a new token in it."""
    return {
        "IdentityProvider": {"token": secrets.token_urlsafe(32)},
        "ServerApp": {
            "ip": "127.0.0.1",
            "port": port,
            "port_retries": 0,
            "open_browser": False,
            "root_dir": str(code),
            "allow_root": os.getuid() == 0,
        },
        "LabApp": {
            "app_dir": str(lab),
            "check_for_updates_class": "jupyterlab.handlers.announcements.NeverCheckForUpdate",
            "news_url": None,
        },
    }


def _variables(service: Service, lab: Path) -> dict[str, str]:
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
        "DRUMLINE_ROOT": str(service.root),  # for `drumline.node.requests`
        "JUPYTER_PATH": str(share),
        "JUPYTER_CONFIG_PATH": str(share.parents[1] / "etc" / "jupyter"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def _find_lab() -> Path:
    """Return JupyterLab's application folder, which lies beside the packages, not in them."""
    found = importlib.util.find_spec("jupyterlab")
    if found is None or found.origin is None or importlib.util.find_spec("ipykernel") is None:
        raise ServiceError("jupyterlab is not installed on the leader", missing="jupyterlab>=4.2")
    for prefix in (Path(sys.prefix), *Path(found.origin).parents):
        if (prefix / "share" / "jupyter" / "lab" / "static").is_dir():
            return prefix / "share" / "jupyter" / "lab"
    raise ServiceError(
        f"jupyterlab in {found.origin} is incomplete: no share/jupyter/lab/static",
        missing="jupyterlab>=4.2",
    )


_START: Mapping[str, Callable[[Service], Message]] = {
    "jupyter": _start_jupyter,
    "tensorboard": _start_tensorboard,
}


def main(argv: list[str]) -> None:
    """Start or stop Jupyter or TensorBoard on this node; answers with a line of JSON."""
    root, name, command = argv
    service = Service(Path(root), name)
    try:
        answer = _START[name](service) if command == "start" else {"stopped": service.stop()}
    except ServiceError as error:
        answer = {"error": str(error), "missing": error.missing}
    except (OSError, RunDirError) as error:
        answer = {"error": f"cannot {command} {name}: {error}", "missing": ""}
    JsonStream(sys.stdin.buffer, sys.stdout.buffer).send(**answer)


if __name__ == "__main__":
    main(sys.argv[1:])
