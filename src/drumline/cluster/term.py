"""`Term`: until when the nodes of a cluster live, as each `up` decides it.

    all nodes are new        from the first one's beginning: max_hours, or what the budget pays for
    again                    what it was; what `extend` has added stays
    again, other limits      moved by as much as they were: max_hours 8 → 10 is two hours more
    some nodes are new       no longer than the budget lasts, after what lost ones have cost

The limits that a term was reckoned from are noted beside it, so that an `up` that was cut short
does not forget that they have changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.cluster.home import ClusterHome
from drumline.cluster.life.limits import allowed_hours
from drumline.cluster.machine import Machine
from drumline.cluster.life.receipt import bill
from drumline.cluster.spec import ClusterSpec
from drumline.core.errors import ClusterError

_KEYS = ("max_hours", "budget_usd", "idle_minutes")


@dataclass(frozen=True, kw_only=True)
class Term:
    """How long nodes may live."""

    deadline: float | None
    """when they end themselves, as seconds of the epoch; None: never, they are the user's own"""
    began: float = 0.0
    """since when the budget counts"""
    limits: Mapping[str, float | None]
    """what it was reckoned from"""
    changes: tuple[str, ...] = ()
    """limits that are others than the last time: `max_hours 8 → 10`"""

    def to_json(self) -> dict[str, Any]:
        """Return what cluster.json keeps."""
        return {"deadline": self.deadline, "began": self.began, "limits": dict(self.limits)}


def refuse_passed(spec: ClusterSpec, home: ClusterHome, noted: Sequence[Machine]) -> None:
    """Refuse new limits that would end nodes at once.

    Raises:
        ClusterError: they would; says since when the nodes are there.
    """
    facts, now = home.read_facts(), time.time()
    deadline = facts.get("deadline")
    if deadline is None or deadline <= now:  # they have ended already
        return
    moved = float(deadline) + _moved_s(spec, facts, sum(one.price_usd for one in noted))
    if moved <= now:
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
) -> Term:
    """Say until when the nodes live.

    Args:
        spec: what is wanted.
        home: says what was decided the last time.
        machines: all nodes.
        made: those of them that were not there the last time.
        former: machines that were lost.
    """
    facts, limits = home.read_facts(), _limits(spec)
    if spec.provider == "ssh":
        return Term(deadline=None, limits=limits)
    now = time.time()
    price = sum(machine.price_usd for machine in machines)
    known = facts.get("deadline")
    if known is None or len(made) == len(machines):
        began = min((machine.since for machine in machines if machine.since), default=now)
        deadline = began + allowed_hours(spec, price) * 3600
        return Term(deadline=deadline, began=began, limits=limits)
    began = float(facts.get("began", 0.0))
    deadline = float(known) + _moved_s(spec, facts, price)
    if made and spec.budget_usd is not None and price:
        counted = [*(one for one in former if one.since >= began), *machines]
        spent = sum(line.usd for line in bill(counted, now, None))
        deadline = min(deadline, now + max(0.0, spec.budget_usd - spent) / price * 3600)
    return Term(deadline=deadline, began=began, limits=limits, changes=_changes(spec, facts))


def _limits(spec: ClusterSpec) -> dict[str, float | None]:
    return {key: getattr(spec, key) for key in _KEYS}


def _changes(spec: ClusterSpec, facts: Mapping[str, Any]) -> tuple[str, ...]:
    new, old = _limits(spec), facts.get("limits", {})
    return tuple(
        f"{key} {_word(old[key])} → {_word(new[key])}"
        for key in _KEYS
        if key in old and old[key] != new[key]
    )


def _word(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _moved_s(spec: ClusterSpec, facts: Mapping[str, Any], price_usd: float) -> float:
    """Return by how much the limits have moved the deadline since the last `up`."""
    if "limits" not in facts:
        return 0.0
    before = spec.model_copy(update=facts["limits"])
    return (allowed_hours(spec, price_usd) - allowed_hours(before, price_usd)) * 3600
