"""`Claims`: whose folder is on a machine of one's own, asked there (`node/belongings.py`).

R/drumline.json on the machine holds the mark: the cluster's name and id, which node it is, and who
has made it. Only who has the id may use or remove the folder: two laptops may think of one name.
"""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from drumline.cluster.home import ClusterHome
from drumline.cluster.machine import Machine
from drumline.cluster.ssh.remote import Remote
from drumline.cluster.ssh.transport import host_error
from drumline.core.errors import ClusterError, HostError

_ASK_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a machine says of its folder."""

    machine: Machine
    owner: dict[str, Any] | None
    """the mark that is there now; {}: files without one, None: nothing"""
    ours: bool
    """whether it is this cluster's, or was until we had it removed"""
    new: bool = False
    """whether this claim has made it so"""
    processes: tuple[str, ...] = ()
    """what runs there"""

    @property
    def fits(self) -> bool:
        """Whether it is ours, and of the very node that the machine is now."""
        mark = self.owner or {}
        here = (self.machine.node, self.machine.identity)
        return self.ours and (mark.get("node"), mark.get("host")) == here

    def taken(self) -> HostError:
        """Return the error that says whose the folder is, and the way out."""
        root, mark = self.machine.root, self.owner
        if not mark:
            text = (
                f"{root} has files in it that are not Drumline's, and would be lost with the "
                f"cluster; empty it, or set ssh.root to another folder"
            )
        elif self.ours:
            text = (
                f"{root} is that of worker{mark['node']} of this very cluster; name each machine "
                f"once in ssh.hosts, in the order that they had, or remove the cluster first: "
                f"drumline down"
            )
        elif "id" in mark and "cluster" in mark:
            text = (
                f"{root} is that of worker{mark['node']} of the cluster {mark['cluster']}, made by "
                f"{mark['by']}; remove that cluster first (drumline down there, or here with --id "
                f"{mark['id']}), or set ssh.root to another folder"
            )
        else:
            text = f"{root} is that of something else; set ssh.root to another folder"
        return host_error(self.machine, "taken", text)


@dataclass(frozen=True)
class Claims:
    """One cluster's folders on machines of one's own."""

    home: ClusterHome

    async def ask(self, remote: Remote, what: Literal["claim", "list", "clear"]) -> Answer:
        """Ask a machine of its folder, or to make it ours, or to remove it if it is.

        Raises:
            HostError: it cannot be asked, or not be done.
        """
        source = files("drumline.node").joinpath("belongings.py").read_bytes()
        mark = json.dumps(self._mark(remote.machine))
        words = ["python3", "-IS", "-", what, remote.machine.root, mark]
        done = await remote.run(words, given=source, timeout_s=_ASK_S)
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"error": done.stderr.decode(errors="replace").strip()[-200:]}
        if "error" in answer:
            raise host_error(remote.machine, "setup", str(answer["error"]))
        return Answer(
            machine=remote.machine,
            owner=answer["owner"],
            ours=answer["ours"],
            new=answer.get("new", False),
            processes=tuple(answer.get("processes", ())),
        )

    def _mark(self, machine: Machine) -> dict[str, Any]:
        return {
            "cluster": self.home.name,
            "id": self.home.read_facts().get("id", ""),
            "node": machine.node,
            "host": machine.identity,
            "by": f"{getpass.getuser()}@{socket.gethostname()}",
        }


def joined(errors: Sequence[ClusterError]) -> ClusterError:
    """Return one error for all machines that cannot be used."""
    first = errors[0]
    if len(errors) == 1:
        return first
    return type(first)("; ".join(error.message for error in errors), **first.fields)
