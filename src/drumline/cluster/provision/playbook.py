"""One run of `ansible-playbook`, with an inventory, files and settings of our own.

    a scratch folder/  ansible.cfg  inventory.json  variables.json  site.yml    removed at its end
    home.ansible/      last.log  home/

    all ── drumline ──┬── leader     worker0
                      └── workers    worker1, worker2, …

The user's Ansible and SSH settings are not read: they were written for other machines. Task results
come back as JSON lines from `plugins/drumline_events.py`. `drumline inventory` prints the same
inventory as a dynamic one, for any playbook; the cluster's SSH configuration says the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from drumline.cluster.providers import Machine, Reporter
from drumline.cluster.ssh.config import hang_up
from drumline.core.errors import ClusterError, UsageError
from drumline.core.files import write_atomic
from drumline.core.json_lines import Message
from drumline.core.scratch import Scratch

_PLUGINS = Path(__file__).parent / "plugins"
_SECRETS = re.compile(r"""(?<=://)[^/\s"']+(?=@)""")
_LINE_LIMIT = 64 << 20  # of one event: pip can have a lot to say
_END_S = 5.0
_CONFIG = Path(__file__).parent / "ansible.cfg"


def inventory_list(
    machines: Sequence[Machine], ssh_config: Path, pythons: Mapping[str, str] = MappingProxyType({})
) -> Message:
    """Return what an Ansible inventory script prints for `--list`: a cluster's nodes.

    `pythons`: the interpreter that runs Ansible's modules, by node name, where it is known.
    """
    leader, workers = machines[:1], machines[1:]
    return {
        "_meta": {
            "hostvars": {
                machine.name: {
                    "ansible_connection": "ssh",
                    "ansible_remote_tmp": f"{machine.root}/.ansible",
                    "drumline_root": machine.root,
                    "drumline_node": machine.node,
                    "drumline_address": machine.address,
                    "ansible_python_interpreter": pythons.get(machine.name, "auto_silent"),
                }
                for machine in machines
            }
        },
        "all": {"children": ["drumline"]},
        "drumline": {
            "children": ["leader", "workers"],
            "vars": {
                "ansible_ssh_common_args": f"-F {shlex.quote(str(ssh_config))}",
                "drumline_leader": leader[0].address if leader else "",
                "drumline_nodes": len(machines),
            },
        },
        "leader": {"hosts": [machine.name for machine in leader]},
        "workers": {"hosts": [machine.name for machine in workers]},
    }


def inventory_host(document: Message, name: str) -> Message:
    """Return what an Ansible inventory script prints for `--host NAME`: a node's variables."""
    hosts: dict[str, Message] = document["_meta"]["hostvars"]
    if name not in hosts:
        raise UsageError(f"no node {name!r}; this cluster has {', '.join(hosts) or 'none'}")
    return hosts[name]


def static_inventory(document: Message) -> Message:
    """Return the Ansible inventory as a file has it, which needs no script to be run."""
    hosts = document["_meta"]["hostvars"]

    def group(name: str) -> Message:
        found = document[name]
        return {
            "hosts": {host: hosts[host] for host in found.get("hosts", ())},
            "children": {child: group(child) for child in found.get("children", ())},
            "vars": found.get("vars", {}),
        }

    return {"all": group("all")}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A task that went wrong on a node."""

    node: str
    task: str
    state: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PlaybookOutcome:
    """What a run did."""

    code: int
    failures: tuple[Failure, ...] = ()
    output: str = ""
    """what Ansible itself said, where it said something"""


@dataclass(frozen=True, kw_only=True)
class PlaybookRun:
    """Playbooks over an inventory, with variables."""

    folder: Path
    inventory: Message
    """as `inventory_list` gives it"""
    variables: Mapping[str, object]
    playbooks: Sequence[Path]
    limit: tuple[str, ...]
    """the nodes that it is for"""

    async def run(self, report: Reporter, *, timeout_s: float = 7200.0) -> PlaybookOutcome:
        """Run it to its end; raises ClusterError where Ansible is missing, or takes too long."""
        program = ansible_program()
        with Scratch() as scratch:
            self._write(scratch.path)  # of this run alone: another one may go on meanwhile
            process = await asyncio.create_subprocess_exec(
                program,
                f"--limit={','.join(self.limit)}",
                f"--extra-vars=@{scratch.path / 'variables.json'}",
                str(scratch.path / "site.yml"),
                cwd=self.folder,
                env=_own_environment(scratch.path / "ansible.cfg"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._follow(process, report)
            except TimeoutError:
                raise ClusterError(
                    f"provisioning took longer than {timeout_s:.0f} s and was ended; the log is "
                    f"{self.folder / 'last.log'}; run drumline up again to continue"
                ) from None
            finally:
                await _end(process)
                await asyncio.to_thread(hang_up, scratch.path)

    def _write(self, scratch: Path) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = _CONFIG.read_text().format(
            folder=self.folder, scratch=scratch, plugins=_PLUGINS, forks=max(1, len(self.limit))
        )
        site = [{"ansible.builtin.import_playbook": str(path)} for path in self.playbooks]
        for name, text in {
            "ansible.cfg": config,
            "inventory.json": json.dumps(static_inventory(self.inventory), indent=2),
            "variables.json": json.dumps(self.variables),
            "site.yml": json.dumps(site, indent=2),
        }.items():
            write_atomic(scratch / name, text, mode=0o600)

    async def _follow(
        self, process: asyncio.subprocess.Process, report: Reporter
    ) -> PlaybookOutcome:
        failures: list[Failure] = []
        output: list[str] = []
        log = self.folder / "last.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(log, flags, 0o600), "w", encoding="utf-8") as file:
            warnings = asyncio.create_task(_drain(process.stderr, file, output))
            try:
                assert process.stdout is not None
                async for line in process.stdout:
                    event = _read_event(line, file)
                    if event is None:
                        continue
                    node, task, state = event["node"], event["task"], event["state"]
                    if state in ("failed", "unreachable"):
                        said = _said(event)
                        failures.append(Failure(node=node, task=task, state=state, message=said))
                    report(node, f"{task}: {state}")
                await warnings
                code = await process.wait()
            finally:  # of a run that takes too long, too: it writes to the same file
                warnings.cancel()
                await asyncio.gather(warnings, return_exceptions=True)
        return PlaybookOutcome(code=code, failures=tuple(failures), output="".join(output).strip())


def ansible_program() -> str:
    """Return the path of `ansible-playbook` in the environment of this Python."""
    path = Path(sys.executable).parent / "ansible-playbook"
    if not path.is_file():
        raise ClusterError(
            "ansible-core is not installed, which sets up the nodes; install it with: "
            "pip install 'drumline[cluster]'"
        )
    return str(path)


def _own_environment(config: Path) -> dict[str, str]:
    """Return this process's variables, without Ansible settings of the user's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    own = {"ANSIBLE_CONFIG": str(config), "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    return {**kept, **own, "ANSIBLE_NOCOLOR": "1", "DRUMLINE_LISTENER": str(os.getpid())}


def without_secrets(text: str) -> str:
    """Return Ansible's output without the user names, passwords and tokens of URLs in it."""
    return _SECRETS.sub("***", text)


def _read_event(line: bytes, log: TextIO) -> Message | None:
    """Read an event and write it to the log; anything else is only written."""
    text = without_secrets(line.decode(errors="replace")).rstrip("\n")
    try:
        event = json.loads(text)
        shown = f"{event['state']:11} {event['node']:10} {event['task']}"
    except (ValueError, TypeError, KeyError):
        log.write(text + "\n")
        return None
    if event["state"] != "start":
        log.write(shown + "\n")
        for key in ("msg", "stdout", "stderr"):
            if str(event.get(key, "")).strip():
                log.write("".join(f"    {part}\n" for part in str(event[key]).splitlines()))
        log.flush()
    return dict(event)


def _said(event: Message) -> str:
    """Return the last that a task said of why it failed."""
    said = [str(event.get(key) or "").strip() for key in ("stderr", "msg", "stdout")]
    return "\n".join(next(filter(None, said), "it gave no reason").splitlines()[-20:])


async def _drain(stream: asyncio.StreamReader | None, log: TextIO, output: list[str]) -> None:
    assert stream is not None
    async for line in stream:
        output.append(without_secrets(line.decode(errors="replace")))
        log.write(output[-1])


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a run and all that it started by SIGTERM, then SIGKILL, if it has not ended."""
    if process.returncode is not None:
        return
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)
            return
