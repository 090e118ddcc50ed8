"""How long nodes may live: the limits that they keep themselves, and moving them.

    R/limits/deadline        seconds of the epoch: nodes end themselves then
    R/limits/idle_minutes    … or after so long without a job; nothing in it: never
    R/limits/busy            touched while a job runs or files travel (`drumline.node.busy`), while
                             a tunnel is open or a node is set up, and when the limits are set

A timer on the node looks at these each minute (`files/limits.sh`); the laptop is not needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence

from drumline.cluster.ssh.remote import Remote
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import HostError, UsageError

_SET = (
    'mkdir -p "$1" && cd "$1" && printf "%s\\n" "$2" > .deadline && printf "%s\\n" "$3" > '
    ".idle_minutes && mv .deadline deadline && mv .idle_minutes idle_minutes && touch busy"
)
_TOUCH = 'mkdir -p "$1" && touch "$1/busy"'
_BUSY_S = 20.0
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}


def allowed_hours(spec: ClusterSpec, price_usd: float) -> float:
    """Return after how many hours nodes end themselves, at a price per hour for all together."""
    if spec.budget_usd is None or price_usd <= 0:
        return spec.max_hours
    return min(spec.max_hours, spec.budget_usd / price_usd)


async def set_limits(remote: Remote, deadline: float, idle_minutes: float | None) -> None:
    """Tell a node until when it may live.

    Raises:
        HostError: the node did not take it.
    """
    idle = "" if idle_minutes is None else f"{idle_minutes:g}"
    folder = f"{remote.machine.root}/limits"
    done = await remote.run(["sh", "-c", _SET, "sh", folder, f"{deadline:.0f}", idle], timeout_s=30)
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise HostError(
            f"{remote.machine.name} did not take its limits: {said}; is its disk full? Look with: "
            f"drumline ssh {remote.machine.name} df -h",
            node=remote.machine.node,
        )


@contextlib.asynccontextmanager
async def kept_busy(remotes: Sequence[Remote]) -> AsyncIterator[None]:
    """Keep nodes from ending themselves for idleness while something is done to them from here."""

    async def touch(remote: Remote) -> None:
        words = ["sh", "-c", _TOUCH, "sh", f"{remote.machine.root}/limits"]
        while True:
            await asyncio.sleep(_BUSY_S)
            with contextlib.suppress(HostError):  # what is done there tells of a lost node
                await remote.run(words, timeout_s=30)

    tasks = [asyncio.create_task(touch(remote)) for remote in remotes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parse_duration(text: str) -> float:
    """Read a duration such as `2h`, `90m` or `1h30m`, in seconds.

    Raises:
        UsageError: it is something else.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", text.strip().lower())
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    if not parts or whole != re.sub(r"\s", "", text.lower()):
        raise UsageError(f"{text!r} is no duration; write one such as 2h, 90m or 1h30m")
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"{text!r} is no time at all; write one such as 2h, 90m or 1h30m")
    return seconds


def describe_deadline(deadline: float) -> str:
    """Say when that is, by this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(deadline))
