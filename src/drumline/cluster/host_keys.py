"""Host keys of machines of your own: what cluster.yaml gives, or what your known_hosts has.

Your files are only read. A key that nobody has told us is never taken from the machine itself.
"""

from __future__ import annotations

from pathlib import Path

import asyncssh

from drumline.cluster.ssh.keys import plain_key
from drumline.cluster.spec import HostSpec
from drumline.cluster.ssh.known_hosts import Origin, Pin
from drumline.core.errors import ClusterError

_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


def find_host_keys(host: HostSpec) -> list[Pin]:
    """Return the keys that a machine may prove itself with: the spec's, or your known_hosts'.

    Raises:
        ClusterError: there is none; says how to get one, and how to check it.
    """
    if host.host_key is not None:
        return [Pin(key=plain_key(host.host_key), origin=Origin.GIVEN)]
    found: list[Pin] = []
    for name in _KNOWN:
        path = Path(name).expanduser()
        try:
            known = asyncssh.read_known_hosts(str(path))
        except (OSError, ValueError, asyncssh.Error):
            continue
        keys, _, revoked = known.match(host.host, "", None if host.port == 22 else host.port)[:3]
        found += [
            Pin(key=plain_key(key.export_public_key().decode()), origin=Origin.GIVEN)
            for key in keys
            if key not in revoked
        ]
    if not found:
        port = "" if host.port == 22 else f"-p {host.port} "
        raise ClusterError(
            f"the host key of {host.host} is not known, so that anybody could answer in its place; "
            f"get it with: ssh-keyscan -t ed25519 {port}{host.host} (check it on the machine "
            f"itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), and write it into "
            f"cluster.yaml as host_key: ssh-ed25519 …",
            host=host.host,
        )
    return list(dict.fromkeys(found))
