"""What a node is told at boot, as cloud-init reads it.

    host key    made by the laptop, so that it knows the node at first contact; rotated then, since
                anybody on the node can read this text
    limits      a timer that checks R/limits each minute (`life/limits.sh`) and powers off

A node must end even if everything else fails, so there are three of them: the timer; a plain
`shutdown -h` a while after the deadline, planned again when the deadline moves; and, before any of
this, a watch that powers off if the timer has never run half an hour after boot. `boot/` has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources

import yaml

SCRIPT = "/usr/local/sbin/drumline-limits"
_FALLBACK = "/usr/local/sbin/drumline-fallback"
_RAN = "/run/drumline-limits-ran"
_UNITS = "/etc/systemd/system/drumline-limits"
_WATCH_S = 1800


@dataclass(frozen=True, kw_only=True)
class NodeBoot:
    """What one node needs to know."""

    user: str
    authorized_key: str
    """who is let in"""
    host_key_private: str
    """ed25519, in OpenSSH's format"""
    host_key_public: str
    hours: float
    """after so long since boot it ends itself"""
    idle_minutes: float | None = None
    """and after so long without a job; None: never"""

    @property
    def folder(self) -> str:
        """R, absolute: ~/drumline of the user."""
        return f"/home/{self.user}/drumline"


def limits_script() -> str:
    """Return the script that ends a node; simulated nodes run the very same one."""
    return resources.files("drumline.cluster.life").joinpath("limits.sh").read_text()


def cloud_config(boot: NodeBoot) -> str:
    """Return a node's #cloud-config; the same text for the same node each time."""
    limits = f"{boot.folder}/limits"
    config = {
        "ssh_pwauth": False,
        "disable_root": True,
        "ssh_deletekeys": True,
        "ssh_keys": {
            "ed25519_private": boot.host_key_private.strip() + "\n",
            "ed25519_public": boot.host_key_public.strip(),
        },
        "ssh_authorized_keys": [boot.authorized_key.strip()],
        "bootcmd": [_watch()],
        "write_files": [
            _file(SCRIPT, limits_script(), "0755"),
            _file(_FALLBACK, _read("fallback.sh", limits), "0755"),
            _file(f"{_UNITS}.service", _read("drumline-limits.service", limits)),
            _file(f"{_UNITS}.timer", _read("drumline-limits.timer")),
        ],
        "runcmd": [
            ["sh", "-c", _prepare(boot, limits)],
            [_FALLBACK],
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", "drumline-limits.timer"],
        ],
    }
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=4096)
    return f"#cloud-config\n{text}"


def _file(path: str, content: str, mode: str = "0644") -> dict[str, str]:
    return {"path": path, "permissions": mode, "owner": "root:root", "content": content}


def _watch() -> list[str]:
    """Power off if the limits are not looked after: what follows may fail, or never come."""
    wait = f"sleep {_WATCH_S}; [ -e {_RAN} ] || systemctl poweroff --force"
    return ["sh", "-c", f"nohup sh -c '{wait}' >/dev/null 2>&1 &"]


def _prepare(boot: NodeBoot, limits: str) -> str:
    """Write the limits, counted from the moment of boot; those that are there stay."""
    seconds = math.ceil(boot.hours * 3600)
    idle = "never" if boot.idle_minutes is None else f"{boot.idle_minutes:g}"
    booted = "$(( $(date +%s) - $(cut -d. -f1 /proc/uptime) ))"
    return (
        f"mkdir -p '{limits}'"
        f" && {{ [ -e '{limits}/deadline' ]"
        f" || echo $(( {booted} + {seconds} )) > '{limits}/deadline'; }}"
        f" && {{ [ -e '{limits}/idle_minutes' ] || echo {idle} > '{limits}/idle_minutes'; }}"
        f" && chown -R '{boot.user}:' '{boot.folder}'"
    )


def _read(name: str, limits: str = "") -> str:
    """Return a file of `boot/`, filled in with the folder of the limits."""
    folder = resources.files("drumline.cluster.providers.ec2")
    return folder.joinpath(f"boot/{name}").read_text().replace("@limits@", limits)
