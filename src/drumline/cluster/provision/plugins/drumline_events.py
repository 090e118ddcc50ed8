"""An Ansible callback: tells what each task did on each node as lines of JSON, for `playbook.py`.

It writes a few chosen fields only: the arguments of a task may hold what no log should. And it ends
Ansible, with all that it started, when the process that listens is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

from drumline.core.processes import when_parent_ends

DOCUMENTATION = """
    name: drumline_events
    type: stdout
    short_description: events as JSON lines
    description: one line of JSON for each task's result on each host
"""
_SHOWN = ("msg", "stderr", "stdout", "rc")


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """The callback, by the name that Ansible looks for."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "drumline_events"

    def __init__(self) -> None:
        super().__init__()
        when_parent_ends(int(os.environ["DRUMLINE_LISTENER"]), _give_up)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A task begins on a node."""
        self._emit("start", host.get_name(), task.get_name())

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task went well."""
        self._result("changed" if result._result.get("changed") else "ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._result("ignored" if ignore_errors else "failed", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A task was not needed."""
        self._result("skipped", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A node does not answer."""
        self._result("unreachable", result)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """A play is for nobody."""
        self._emit("note", "", "no hosts matched")

    def _result(self, state: str, result: Any) -> None:
        sources = [result._result]
        if state == "failed":  # of a loop, the first that failed
            sources += [one for one in result._result.get("results", ()) if one.get("failed")][:1]
        values = {key: one[key] for one in sources for key in _SHOWN if one.get(key) is not None}
        self._emit(state, result._host.get_name(), result._task.get_name(), **values)

    def _emit(self, state: str, node: str, task: str, **values: Any) -> None:
        line = json.dumps({"state": state, "node": node, "task": task, **values}, default=str)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _give_up() -> None:
    """Hang up on the nodes, for else a command there would be waited for, and end Ansible."""
    from drumline.cluster.ssh.config import hang_up  # loads asyncssh

    hang_up(Path(os.environ["ANSIBLE_CONFIG"]).parent)
    os.kill(os.getpid(), signal.SIGTERM)  # which it passes on to its workers
