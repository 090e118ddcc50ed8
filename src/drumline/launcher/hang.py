"""A hang, named while it happens: which rank keeps the others waiting, in what, and where it is.

`HangWatch` looks at what ranks do (`activity`), of one host or of several. Where none has made
progress for a while, `explain_hang` puts the ranks' last calls side by side, group by group:

    rank 0   all_reduce #41 ── all_reduce #42 ── waits
    rank 1   all_reduce #41 ── all_reduce #42 ── waits
    rank 2   all_reduce #41 ── broadcast  #42 ── waits      it called something else: a mismatch
    rank 3   all_reduce #41 …                               it has not called #42: the others wait
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.core.formatting import format_bytes, format_seconds, name_ranks
from drumline.core.rundir import RunDir
from drumline.core.status import CallStatus
from drumline.launcher.activity import PATIENCE, RankActivity, look_at_ranks
from drumline.launcher.stacks import Stacks

_USUAL_STEPS = 3
"""so many usual steps without progress are a hang, where they are longer than what was asked for"""
_EARLIER = 0.85
"""the share of the time that was asked for after which to look, so that it is told within it"""
_SLOW_WORK = (
    *("torch/serialization.py", "torch/distributed/checkpoint", "safetensors", "torch/_inductor"),
    *("torch/_dynamo", "torch/utils/cpp_extension.py"),
)
_SAME_SIZE = ("all_reduce", "reduce", "broadcast")
Ranks = Mapping[int, RankActivity]


@dataclass(frozen=True, kw_only=True)
class Hang:
    """What keeps a run from going on."""

    what: str
    """one sentence"""
    rank: int | None
    """the rank that the others wait for, where it is one"""
    idle_s: float
    """how long no rank had made progress"""
    stacks: Mapping[int, Stacks]

    def to_record(self) -> dict[str, object]:
        """Return it as plain values, for an event that is written now."""
        places = {
            str(rank): str(stack.place or stack.silent) for rank, stack in self.stacks.items()
        }
        told = {"what": self.what, "rank": self.rank, "idle_s": self.idle_s, "places": places}
        return {**told, "time": time.time()}


class HangWatch:
    """Find the hang of a run in what its ranks do; call it a few times a second."""

    def __init__(self, hang_after_s: float) -> None:
        self.hang_after_s = hang_after_s
        self.hang: Hang | None = None
        """while it lasts"""
        self._asked = 0.0
        self._beats: dict[int, int] = {}
        """of the ranks, when they were suspected"""

    def suspects(self, ranks: Sequence[RankActivity]) -> bool:
        """Whether ranks may hang, and their stacks are to be asked for; not again while they do."""
        alive = [rank for rank in ranks if rank.alive]
        usual_s = max((rank.status.step_ns for rank in alive), default=0) / 1e9
        if _idle_s(alive) < max(_EARLIER * self.hang_after_s, _USUAL_STEPS * usual_s):
            self.hang = None
            return False
        if self.hang is not None:
            return False
        if self._is_patient(alive) and not any(r.status.waits_in or r.status.step for r in alive):
            return False  # it has not begun to train: it loads, or waits for a person
        now = time.monotonic()
        if now < self._asked + self.hang_after_s:
            return False
        self._asked = now
        self._beats = {rank.status.rank: rank.status.beats for rank in ranks}
        return True

    def find(self, ranks: Sequence[RankActivity], stacks: Mapping[int, Stacks]) -> Hang | None:
        """Return the hang, from what suspected ranks do and where they are; None if it is none.

        `ranks` are looked at when their stacks have come: if one has gone on since, there is none.
        """
        alive = [rank for rank in ranks if rank.alive]
        if any(self._beats.get(r.status.rank) != r.status.beats for r in ranks):
            return None
        if not alive or (self._is_patient(alive) and _works_slowly(ranks, stacks)):
            return None
        what, rank = explain_hang(ranks, stacks)
        idle_s = _idle_s(alive)
        if not self._is_patient(alive):  # they were busy, and nothing came of it
            idle_s = min(rank.quiet_s for rank in alive)
        self.hang = Hang(what=what, rank=rank, idle_s=idle_s, stacks=stacks)
        return self.hang

    def _is_patient(self, alive: Sequence[RankActivity]) -> bool:
        return min(rank.quiet_s for rank in alive) < PATIENCE * self.hang_after_s


def _idle_s(alive: Sequence[RankActivity]) -> float:
    """Return how long none of these ranks has made progress."""
    return min((rank.idle_s for rank in alive), default=0.0)


def _works_slowly(ranks: Sequence[RankActivity], stacks: Mapping[int, Stacks]) -> bool:
    """Whether a rank that waits in no call does something that is known to take long."""
    for rank in (rank.status for rank in ranks):
        frames = stacks[rank.rank].main if rank.rank in stacks else ()
        if not rank.waits_in and any(slow in f.path for f in frames for slow in _SLOW_WORK):
            return True
    return False


# --- what it is -----------------------------------------------------------------------------------


def explain_hang(
    ranks: Sequence[RankActivity], stacks: Mapping[int, Stacks]
) -> tuple[str, int | None]:
    """Say in one sentence why no rank goes on, and name the rank that the others wait for."""
    if (waits := explain_waits(ranks, stacks)) is not None:
        return waits
    known = sorted(rank.status.rank for rank in ranks)
    idle = "; ".join(f"rank {rank} {_where(stacks.get(rank))}" for rank in known)
    return f"no rank makes progress: {idle}", known[0] if len(known) == 1 else None


def explain_waits(
    ranks: Sequence[RankActivity], stacks: Mapping[int, Stacks]
) -> tuple[str, int | None] | None:
    """Say what ranks wait for in a collective or message, and who has not come; None if none do."""
    known: Ranks = {rank.status.rank: rank for rank in ranks}
    alive = [rank.status for rank in ranks if rank.alive]
    waiting = [(call, status) for status in alive for call in status.waits_in]
    if (found := explain_mismatch({call.group for call, _ in waiting}, known, stacks)) is not None:
        return found

    def missing_in(call: CallStatus, members: Sequence[int]) -> list[int]:
        return [rank for rank in members if _has_not_called(known.get(rank), call)]

    def order(call: CallStatus, members: Sequence[int]) -> tuple[int, int]:
        """Put those first whose missing ranks wait in nothing themselves."""
        absent = [known[rank] for rank in missing_in(call, members) if rank in known]
        return sum(bool(rank.status.waits_in) for rank in absent), call.seq

    calls = [(call, status.groups[call.group]) for call, status in waiting]
    for call, members in sorted(calls, key=lambda pair: order(*pair)):
        if missing := missing_in(call, members):
            return _explain_missing(call, members, missing, known, stacks)
    if not waiting:
        return None
    who = name_ranks(sorted({status.rank for _, status in waiting}))
    name = _name(waiting[0][0])
    return f"{who} wait in {name}, which all of its ranks have called: {_NETWORK}", None


_NETWORK = "the network between them does not answer, or one of them was stopped"


def _has_not_called(rank: RankActivity | None, call: CallStatus) -> bool:
    return rank is None or rank.status.counts.get(call.group, 0) < call.seq


def explain_mismatch(
    groups: Collection[str], known: Ranks, stacks: Mapping[int, Stacks]
) -> tuple[str, int | None] | None:
    """Say which rank called what the others of its group did not: the first time that it did."""
    found = []
    everybody = [rank.status for rank in known.values()]
    for group, members in {pair for s in everybody for pair in s.groups.items()}:
        if group not in groups or ">" in group:  # it is of messages
            continue
        statuses = [s for s in everybody if s.groups.get(group) == members]
        for seq in sorted({c.seq for s in statuses for c in s.calls if c.group == group}):
            calls = {s.rank: call for s in statuses if (call := s.call(group, seq)) is not None}
            if len({_kind(call) for call in calls.values()}) > 1:
                found.append(calls)
                break
    if not found:
        return None
    calls = min(found, key=lambda calls: min(call.arrived_ns for call in calls.values()))
    kinds: dict[object, list[int]] = {}
    for rank, call in sorted(calls.items()):
        kinds.setdefault(_kind(call), []).append(rank)
    odd, *others = sorted(kinds.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    rest = sorted(rank for ranks in others for rank in ranks)
    one, most = calls[odd[0]], calls[rest[0]]
    where = f"; {name_ranks(odd[:1])} {_where(stacks.get(odd[0]))}" if stacks else ""
    sentence = (
        f"mismatch: {name_ranks(odd)} called {_name(one)} where {name_ranks(rest)} called "
        f"{_name(most)}{where}"
    )
    return sentence, odd[0]


def explain_end(run: RunDir, world_size: int) -> tuple[str, int | None] | None:
    """Say from what ranks of this host called last why they failed, where that tells it."""
    ended = _read_last(run, world_size)
    groups = {call.group for rank in ended.values() for call in rank.status.calls}
    return explain_mismatch(groups, ended, {})


def missed_call(run: RunDir, world_size: int, left: Collection[int]) -> str | None:
    """Name the call that others waited in when ranks of this host left; None: there is none."""
    ended = _read_last(run, world_size)
    others = [rank.status for rank in ended.values() if rank.status.rank not in left]
    last = [(max(status.calls, key=_arrived), status) for status in others if status.calls]
    for call, status in sorted(last, key=lambda pair: _arrived(pair[0])):
        members = status.groups[call.group]
        if all(r in members and r in ended and _has_not_called(ended[r], call) for r in left):
            waited = [s.rank for s in others if s.call(call.group, call.seq)]
            return f"{_name(call)} that {name_ranks(waited)} waited in"
    return None


def _read_last(run: RunDir, world_size: int) -> dict[int, RankActivity]:
    return {one.status.rank: one for one in look_at_ranks(run, range(world_size))}


def _arrived(call: CallStatus) -> int:
    return call.arrived_ns


def _kind(call: CallStatus) -> object:
    """Return what must be the same on all ranks that take part in a call."""
    return call.op, call.nbytes if call.op in _SAME_SIZE else 0


def _explain_missing(
    call: CallStatus,
    members: Sequence[int],
    missing: Sequence[int],
    known: Ranks,
    stacks: Mapping[int, Stacks],
) -> tuple[str, int | None]:
    waiting = [rank for rank in members if rank not in missing]
    have = "has" if len(missing) == 1 else "have"
    wait = "waits" if len(waiting) == 1 else "wait"
    unseen = [rank for rank in missing if rank not in known]
    if unseen:
        others = f"{name_ranks(waiting)} {wait} in {_name(call)}"
        does = "does" if len(unseen) == 1 else "do"
        return f"{others}; what {name_ranks(unseen)} {does} is not known on this machine", None
    gone = [rank for rank in missing if not known[rank].alive]
    if gone:
        have = "has" if len(gone) == 1 else "have"
        ended = f"{name_ranks(gone)} {have} ended without calling {_name(call)}"
        return f"{ended} that {name_ranks(waiting)} {wait} in", gone[0]
    first = missing[0]
    where, waits_in = _where(stacks.get(first)), known[first].status.waits_in
    if known[first].stopped:
        where = "is stopped by a signal (SIGSTOP)"
    elif waits_in:
        where = f"waits itself in {_name(waits_in[0])}, and {where}"
    who = "it" if len(missing) == 1 else f"rank {first}"
    sentence = (
        f"{name_ranks(missing)} {have} not called {_name(_counterpart(call))} that "
        f"{name_ranks(waiting)} {wait} in; {who} {where}"
    )
    return sentence, first


def _name(call: CallStatus) -> str:
    """Name a call: `all_reduce #1042 (gradients, 1.0 MB)`."""
    about = ["gradients"] if call.in_backward else []
    if call.nbytes:
        about.append(format_bytes(call.nbytes))
    told = f" ({', '.join(about)})" if about else ""
    group = "" if call.group == "0" else f" of group {call.group}"
    if ">" in call.group:
        source, _, target = call.group.partition(">")
        group = f" from rank {source} to rank {target}"
    return f"{call.op} #{call.seq}{group}{told}"


def _counterpart(call: CallStatus) -> CallStatus:
    """Return what the others have to call, for a rank to go on that waits in a call."""
    other = {"recv": "send", "send": "recv"}
    return replace(call, op=other.get(call.op, call.op))


def _where(stacks: Stacks | None) -> str:
    if stacks is None or stacks.place is None:
        return "is at an unknown place" if stacks is None else f"tells nothing: {stacks.silent}"
    place = stacks.place
    return f"is in {Path(place.path).name}:{place.line} ({place.function})"


def say_hang(hang: Hang) -> str:
    """Say a hang for the terminal, and where each rank is."""
    lines = [f"no progress for {format_seconds(hang.idle_s)}: {hang.what}"]
    for rank, stacks in sorted(hang.stacks.items()):
        shown = [f for f in stacks.main if not f.of_library][:3] or list(stacks.main[:3])
        where = " ← ".join(str(frame) for frame in shown) or stacks.silent
        lines.append(f"  rank {rank}: {where}")
    return "\n".join(lines)


def say_stacks(ranks: Sequence[RankActivity], stacks: Mapping[int, Stacks], *, whole: bool) -> str:
    """Say for the terminal what ranks wait for, and where each is; `whole`: all of its threads."""
    waits = explain_waits(ranks, stacks)
    lines = [] if waits is None else [waits[0]]
    for rank in ranks:
        found = stacks[rank.status.rank]
        lines.append(f"{rank.status.doing}: {found.silent or found.place}")
        text = found.text.rstrip() if whole else "\n".join(f"    {frame}" for frame in found.main)
        lines += [text] if text else []
    return "\n".join(lines)
