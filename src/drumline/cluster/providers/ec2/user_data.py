"""What a node is told at boot, as cloud-init reads it (`cloud-config.yaml`).

    host key    made by the laptop, so that it knows the node at first contact; rotated then, since
                anybody on the node can read this text
    limits      a timer that checks R/limits each minute (`life/limits.sh`) and powers off

A node must end even if everything else fails, so there are three of them: the timer; a plain
`shutdown -h` a while after the deadline, planned again when the deadline moves; and, before any of
this, a watch that powers off if the timer has never run half an hour after boot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined


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
    """Return the script that ends an EC2 node at its limits; simulated nodes run the same one."""
    return resources.files("drumline.cluster.life").joinpath("limits.sh").read_text()


def cloud_config(boot: NodeBoot) -> str:
    """Return the #cloud-config of an EC2 node; always the same text for the same node."""
    text = resources.files("drumline.cluster.providers.ec2").joinpath("cloud-config.yaml")
    template = Environment(undefined=StrictUndefined).from_string(text.read_text())
    return template.render(
        boot=boot,
        limits=f"{boot.folder}/limits",
        limits_script=limits_script(),
        seconds=math.ceil(boot.hours * 3600),
        idle="never" if boot.idle_minutes is None else f"{boot.idle_minutes:g}",
    )
