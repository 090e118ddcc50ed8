"""`Machine`: one node as the laptop sees it, whoever made it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from drumline.core.json_lines import Message

_REACH = "/twin/reach.py"
TWIN_PROXY = f"{Path(__file__).parent}/providers{_REACH}"
"""the program by which SSH reaches simulated nodes"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a node is, and how to reach it. Node 0 is the leader."""

    node: int
    host: str
    """where the laptop reaches its SSH server"""
    address: str
    """where the other nodes reach it"""
    user: str
    port: int = 22
    proxy: tuple[str, ...] = ()
    """a command whose input and output are the connection, where there is no direct way"""
    key_file: str | None = None
    """None: the cluster's own key; "": whatever the user's agent has"""
    root: str = "~/drumline"
    """the folder on the node that everything goes to"""
    identity: str = ""
    """what the provider calls it (an instance's id)"""
    price_usd: float = 0.0
    """per hour"""
    since: float = 0.0
    """when it began to cost, as seconds of the epoch"""
    until: float = 0.0
    """when it ended; 0: it has not, or nobody knows"""

    @property
    def name(self) -> str:
        """What it is called: worker0 is the leader."""
        return f"worker{self.node}"

    def to_json(self) -> Message:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Message) -> Self:
        """Read it back; the proxy of a simulated node is this version's, wherever it is now."""
        proxy = (TWIN_PROXY if part.endswith(_REACH) else part for part in values.get("proxy", ()))
        return cls(**{**values, "proxy": tuple(proxy)})

    def at(self, **changes: Any) -> Self:
        """Return it with other values."""
        return replace(self, **changes)
