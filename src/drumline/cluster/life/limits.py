"""How long nodes may live: the limits that they enforce themselves, and moving them.

    R/limits/deadline        seconds of the epoch: nodes end themselves then
    R/limits/idle_minutes    … or after so long without a job; empty: never
    R/limits/busy            touched while a job runs or files travel (`node/folder.py`), while
                             a tunnel is open or a node is set up, and when the limits are set

A timer on the node checks these each minute (`limits.sh`); the laptop is not needed. Each `up`
decides the deadline, and records the limits that it was computed from:

    all nodes are new        from the first one's start: max_hours, or what the budget pays for
    again                    what it was; what `extend` has added stays
    again, other limits      moved by as much as they were: max_hours 8 → 10 is two hours more
    some nodes are new       no longer than the budget lasts, after what lost ones have cost

Whether a node has ended is asked of the provider: to SSH, it looks like one behind a firewall.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from drumline.cluster.home import ClusterFacts, ClusterHome
from drumline.cluster.life.receipt import bill
from drumline.cluster.providers import Machine, Provider, build_provider
from drumline.cluster.spec import ClusterSpec
from drumline.cluster.ssh.remote import Remote, host_error
from drumline.core.errors import ClusterError, DrumlineError, HostError, UsageError
from drumline.core.json_lines import Message

_SET = (
    'mkdir -p "$1" && cd "$1" && printf "%s\\n" "$2" > .deadline && printf "%s\\n" "$3" > '
    ".idle_minutes && mv .deadline deadline && mv .idle_minutes idle_minutes && touch busy"
)
_TOUCH = 'mkdir -p "$1" && touch "$1/busy"'
_BUSY_S = 20.0
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0}


def _allowed_hours(spec: ClusterSpec, price_usd: float) -> float:
    """Return after how many hours nodes end themselves, at a price per hour for all together."""
    if spec.budget_usd is None or price_usd <= 0:
        return spec.max_hours
    return min(spec.max_hours, spec.budget_usd / price_usd)


async def touch_busy(remote: Remote) -> None:
    """Mark a node as in use, which puts off its idle shutdown."""
    await remote.run(["sh", "-c", _TOUCH, "sh", f"{remote.machine.root}/limits"], timeout_s=20)


async def set_limits(remote: Remote, deadline: float, idle_minutes: float | None) -> None:
    """Set a node's lifetime limits: the deadline and the idle minutes after which it shuts down."""
    idle = "" if idle_minutes is None else f"{idle_minutes:g}"
    folder = f"{remote.machine.root}/limits"
    done = await remote.run(["sh", "-c", _SET, "sh", folder, f"{deadline:.0f}", idle], timeout_s=30)
    if done.code:
        raise HostError(
            f"{remote.machine.name} did not take its limits: {done.complaint}; is its disk "
            f"full? Look with: drumline ssh {remote.machine.name} df -h",
            node=remote.machine.node,
        )


@contextlib.asynccontextmanager
async def kept_busy(remotes: Sequence[Remote]) -> AsyncIterator[None]:
    """Keep nodes from their idle shutdown while the laptop works on them."""

    async def touch(remote: Remote) -> None:
        while True:
            await asyncio.sleep(_BUSY_S)
            with contextlib.suppress(HostError):  # what is done there tells of a lost node
                await touch_busy(remote)

    tasks = [asyncio.create_task(touch(remote)) for remote in remotes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def parse_duration(text: str) -> float:
    """Parse how much longer a cluster is to live, such as `2h`, `90m` or `1h30m`, into seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", text.strip().lower())
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    if not parts or whole != re.sub(r"\s", "", text.lower()):
        raise UsageError(f"{text!r} is no duration; write one such as 2h, 90m or 1h30m")
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"{text!r} is no time at all; write one such as 2h, 90m or 1h30m")
    return seconds


def describe_deadline(deadline: float) -> str:
    """Format the deadline at which a cluster's nodes shut down, in this machine's local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(deadline))


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """How long nodes may live."""

    deadline: float | None
    """when they end themselves, as seconds of the epoch; None: never, they are the user's own"""
    began: float = 0.0
    """since when the budget counts"""
    limits: Mapping[str, float | None]
    """what the deadline was computed from"""
    changes: tuple[str, ...] = ()
    """limits that are others than the last time: `max_hours 8 → 10`"""

    def to_json(self) -> Message:
        """Return what cluster.json keeps."""
        return {"deadline": self.deadline, "began": self.began, "limits": dict(self.limits)}


def refuse_passed(spec: ClusterSpec, home: ClusterHome, noted: Sequence[Machine]) -> None:
    """Refuse new lifetime limits that would shut the cluster's nodes down at once."""
    facts, now = home.read_facts(), time.time()
    if facts.deadline is None or facts.deadline <= now:  # they have ended already
        return
    moved_s = _moved_s(spec, facts, sum(one.price_usd for one in noted))
    if facts.deadline + moved_s <= now:
        changes = ", ".join(_changes(spec, facts))
        hours = (now - min((one.since for one in noted), default=now)) / 3600
        raise ClusterError(
            f"{changes}: by that, the nodes would end at once, since they have been there for "
            f"{hours:.1f} h; allow more, or remove them: drumline down"
        )


def decide_term(
    spec: ClusterSpec,
    home: ClusterHome,
    machines: Sequence[Machine],
    *,
    made: Sequence[Machine],
    former: Sequence[Machine],
) -> Lifetime:
    """Decide until when a cluster's nodes may live; `made` are those that were not there before."""
    facts, limits = home.read_facts(), _limits(spec)
    if spec.provider == "ssh":
        return Lifetime(deadline=None, limits=limits)
    now, price = time.time(), sum(machine.price_usd for machine in machines)
    if facts.deadline is None or len(made) == len(machines):
        began = min((machine.since for machine in machines if machine.since), default=now)
        deadline = began + _allowed_hours(spec, price) * 3600
        return Lifetime(deadline=deadline, began=began, limits=limits)
    began = facts.began
    deadline = facts.deadline + _moved_s(spec, facts, price)
    if made and spec.budget_usd is not None and price:
        counted = [*(one for one in former if one.since >= began), *machines]
        spent = sum(line.usd for line in bill(counted, now, None))
        deadline = min(deadline, now + max(0.0, spec.budget_usd - spent) / price * 3600)
    return Lifetime(deadline=deadline, began=began, limits=limits, changes=_changes(spec, facts))


def _limits(spec: ClusterSpec) -> dict[str, float | None]:
    return {key: getattr(spec, key) for key in ("max_hours", "budget_usd", "idle_minutes")}


def _changes(spec: ClusterSpec, facts: ClusterFacts) -> tuple[str, ...]:
    def shown(value: float | None) -> str:
        return "none" if value is None else f"{value:g}"

    old = facts.limits or {}
    changed = {key: new for key, new in _limits(spec).items() if old.get(key, new) != new}
    return tuple(f"{key} {shown(old[key])} → {shown(new)}" for key, new in changed.items())


def _moved_s(spec: ClusterSpec, facts: ClusterFacts, price_usd: float) -> float:
    """Return by how much the limits have moved the deadline since the last `up`."""
    if facts.limits is None:
        return 0.0
    before = spec.model_copy(update=facts.limits)
    return (_allowed_hours(spec, price_usd) - _allowed_hours(before, price_usd)) * 3600


ASK_S = 10.0
"""how long the provider may take to answer"""
GONE = "gone"
"""the `reason` of what the provider does not have any more"""


async def find_ended(
    provider: Callable[[], Provider], machines: Sequence[Machine]
) -> list[Machine]:
    """Ask the provider, in a thread, which of the machines no longer exist; no answer: none."""
    answer: Future[set[str]] = Future()

    def ask() -> None:
        answer.set_running_or_notify_cancel()
        try:
            answer.set_result({machine.identity for machine in provider().machines()})
        except BaseException as error:
            answer.set_exception(error)

    # a thread of its own: one of asyncio's would be waited for, however often AWS is tried
    threading.Thread(target=ask, daemon=True).start()
    try:
        living = await asyncio.wait_for(asyncio.wrap_future(answer), ASK_S)
    except (DrumlineError, TimeoutError):
        return []
    return [machine for machine in machines if machine.identity not in living]


async def find_gone(
    spec: ClusterSpec, home: ClusterHome, machines: Sequence[Machine]
) -> list[HostError]:
    """Return an error for each node that has shut down: `node` says which, `reason` is gone."""
    why = f"has ended {_when(home)}; drumline up makes it again"
    ended = await find_ended(lambda: build_provider(spec, home), machines)
    return [host_error(machine, GONE, why) for machine in ended]


def cluster_gone(home: ClusterHome) -> HostError:
    """Return the error for a cluster whose nodes have all shut down or were removed."""
    return HostError(
        f"the cluster {home.name} is gone: its nodes have ended {_when(home)}; make it again with: "
        f"drumline up, or clear up after it with: drumline down",
        reason=GONE,
    )


def _when(home: ClusterHome) -> str:
    """Say as much of when nodes ended as is known without them."""
    deadline = home.read_facts().deadline
    if deadline is None:
        return "or were removed"
    at = describe_deadline(deadline)
    if deadline < time.time():
        return f"at the limit ({at}), or before"
    return f"before the limit ({at}), idle or otherwise"
