"""A hang, named while it happens: which rank keeps the others waiting, in what, and where it is.

`HangWatch` looks at the ranks' status files (`core.status`). A rank makes progress when its status
moves; or, unless it waits in a collective, when it and its children use the processor or read and
write: a long evaluation, a compilation or a checkpoint is no hang. Where no rank has made progress
for a while, `explain_hang` puts the ranks' last calls side by side, group by group:

    rank 0   all_reduce #41 ── all_reduce #42 ── waits
    rank 1   all_reduce #41 ── all_reduce #42 ── waits
    rank 2   all_reduce #41 ── broadcast  #42 ── waits      it called something else: a mismatch
    rank 3   all_reduce #41 …                               it has not called #42: the others wait

Both read files only, so they work for ranks that do not react at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drumline.core.formatting import format_bytes, format_seconds, name_ranks
from drumline.core.processes import is_stopped
from drumline.core.rundir import RunDir
from drumline.core.status import CallStatus, Phase, RankStatus, read_status
from drumline.launcher.stacks import Stacks, ask_stacks

_LOOK_S = 0.25
_USUAL_STEPS = 3
"""so many usual steps without progress are a hang, where they are longer than what was asked for"""
_PATIENCE = 10
"""so many times longer may take what is known to be slow, or uses the processor"""
_BUSY = 0.25
"""the share of one core that a rank uses at least that is not idle"""
_BUSY_BYTES = 2**20  # a second
_SLOW_WORK = (
    *("torch/serialization.py", "torch/distributed/checkpoint", "safetensors", "torch/_inductor"),
    *("torch/_dynamo", "torch/utils/cpp_extension.py"),
)
_SAME_SIZE = ("all_reduce", "reduce", "broadcast")


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
        """Return it as plain values, for an event."""
        places = {
            str(rank): str(stack.place or stack.silent) for rank, stack in self.stacks.items()
        }
        return {"what": self.what, "rank": self.rank, "idle_s": self.idle_s, "places": places}


@dataclass
class _Seen:
    """What a rank had done when it was last looked at, and when it has made progress."""

    beats: int = -1
    cpu_s: float = 0.0
    nbytes: int = 0
    looked: float = 0.0
    progress: float = 0.0
    beat: float = 0.0


@dataclass
class HangWatch:
    """Watch the ranks of a run on this host; `look` is called a few times a second."""

    run: RunDir
    world_size: int
    hang_after_s: float
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _looked: float = 0.0
    _asked: float = 0.0
    """when the ranks were last asked for their stacks"""
    _told: bool = False

    def look(self) -> Hang | None:
        """Return the hang that has begun, once; None while all is well, and after it was told."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        statuses = self._statuses()
        alive = [status for status in statuses if _lives(status)]
        moved = [self._progressed(status, now) for status in alive]
        if not alive or any(moved):
            self._told = False
            return None
        idle_s = now - max(self._seen[status.rank].progress for status in alive)
        usual_s = max(status.step_ns for status in alive) / 1e9
        if self._told or idle_s < max(self.hang_after_s, _USUAL_STEPS * usual_s):
            return None
        quiet_s = now - max(self._seen[status.rank].beat for status in alive)
        patient = quiet_s < _PATIENCE * self.hang_after_s
        if patient and not any(status.waits_in or status.step for status in alive):
            return None  # it has not begun to train: it loads, or waits for a person
        if now < self._asked + self.hang_after_s:
            return None
        self._asked = now
        stacks = ask_stacks(self.run, range(self.world_size))
        if patient and _works_slowly(statuses, stacks):
            return None
        self._told = True
        what, rank = explain_hang(statuses, stacks, self.world_size)
        return Hang(what=what, rank=rank, idle_s=idle_s, stacks=stacks)

    def _statuses(self) -> list[RankStatus]:
        found = (read_status(self.run.rank_status(rank), rank) for rank in range(self.world_size))
        return [status for status in found if status is not None]

    def _progressed(self, status: RankStatus, now: float) -> bool:
        """Whether a rank has made progress since the last look."""
        seen = self._seen.setdefault(status.rank, _Seen())
        cpu_s, nbytes = _used(status.pid)
        beats = status.beats != seen.beats
        works = not status.waits_in and (
            cpu_s - seen.cpu_s > _BUSY * (now - seen.looked)
            or nbytes - seen.nbytes > _BUSY_BYTES * (now - seen.looked)
        )
        if beats:
            seen.beat = now
        if now - seen.beat > _PATIENCE * self.hang_after_s:
            works = False
        if beats or works:
            seen.progress = now
        seen.beats, seen.cpu_s, seen.nbytes, seen.looked = status.beats, cpu_s, nbytes, now
        return beats or works


def _lives(status: RankStatus) -> bool:
    return status.phase is not Phase.ENDED and os.path.exists(f"/proc/{status.pid}")


def _works_slowly(statuses: Sequence[RankStatus], stacks: Mapping[int, Stacks]) -> bool:
    """Whether a rank that waits in no call does something that is known to take long."""
    for status in statuses:
        frames = stacks[status.rank].main if status.rank in stacks else ()
        if not status.waits_in and any(slow in f.path for f in frames for slow in _SLOW_WORK):
            return True
    return False


def _used(pid: int) -> tuple[float, int]:
    """Return the processor time and the bytes read and written of a process and its children."""
    seconds, nbytes = 0.0, 0
    for one in (pid, *_children(pid)):
        try:
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            io = Path(f"/proc/{one}/io").read_text().split()
        except OSError:
            continue
        seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        nbytes += int(io[1]) + int(io[3])
    return seconds, nbytes


def _children(pid: int) -> list[int]:
    """The processes that a process, or one of those, has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(word) for word in task.read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *_children(child)]
    return found


# --- what it is -----------------------------------------------------------------------------------


def explain_hang(
    statuses: Sequence[RankStatus], stacks: Mapping[int, Stacks], world_size: int
) -> tuple[str, int | None]:
    """Say in one sentence what ranks wait for, and name the rank that they wait for."""
    by_rank = {status.rank: status for status in statuses}
    waiting = [(call, status) for status in statuses for call in status.waits_in if _lives(status)]
    for group in dict.fromkeys(call.group for call, _ in waiting):
        members = next(s.groups[group] for c, s in waiting if c.group == group)
        found = _find_mismatch(group, members, by_rank, stacks)
        if found is not None:
            return found
    for first, status in sorted(waiting, key=lambda pair: _depth(pair[0], by_rank, pair[1])):
        members = status.groups[first.group]
        missing = [rank for rank in members if _has_not_called(by_rank.get(rank), first)]
        if missing:
            return _explain_missing(first, members, missing, by_rank, stacks)
    if waiting:
        call = waiting[0][0]
        ranks = name_ranks(sorted({status.rank for _, status in waiting}))
        return (
            f"{ranks} wait in {_name(call)}, which all of its ranks have called: {_NETWORK}",
            None,
        )
    idle = "; ".join(f"rank {rank} {_where(stacks.get(rank))}" for rank in sorted(by_rank))
    only = next(iter(by_rank)) if len(by_rank) == 1 else None
    return f"no rank makes progress: {idle}", only


_NETWORK = "the network between them does not answer, or one of them was stopped"


def _depth(
    call: CallStatus, by_rank: Mapping[int, RankStatus], status: RankStatus
) -> tuple[int, int]:
    """Order calls: those first whose missing ranks wait in nothing themselves."""
    missing = [r for r in status.groups[call.group] if _has_not_called(by_rank.get(r), call)]
    waits = sum(bool(by_rank[rank].waits_in) for rank in missing if rank in by_rank)
    return waits, call.seq


def _has_not_called(status: RankStatus | None, call: CallStatus) -> bool:
    if status is None:
        return True
    newest = max((c.seq for c in status.calls if c.group == call.group), default=0)
    return newest < call.seq


def _find_mismatch(
    group: str,
    members: Sequence[int],
    by_rank: Mapping[int, RankStatus],
    stacks: Mapping[int, Stacks],
) -> tuple[str, int | None] | None:
    """Find the first call of a group that its ranks do not agree on."""
    if ">" in group:  # a message
        return None
    known = [call for rank in members if rank in by_rank for call in by_rank[rank].calls]
    for seq in sorted({call.seq for call in known if call.group == group}):
        calls = {r: c for r in members if r in by_rank and (c := by_rank[r].call(group, seq))}
        kinds: dict[object, list[int]] = {}
        for rank, call in calls.items():
            kinds.setdefault((call.op, call.nbytes if call.op in _SAME_SIZE else 0), []).append(
                rank
            )
        if len(kinds) > 1:
            odd, *others = sorted(kinds.values(), key=lambda ranks: (len(ranks), -ranks[0]))
            rest = sorted(rank for ranks in others for rank in ranks)
            one, most = calls[odd[0]], calls[rest[0]]
            sentence = (
                f"mismatch: {name_ranks(odd)} called {_name(one)} where {name_ranks(rest)} called "
                f"{_name(most)}; {name_ranks(odd[:1])} {_where(stacks.get(odd[0]))}"
            )
            return sentence, odd[0]
    return None


def _explain_missing(
    call: CallStatus,
    members: Sequence[int],
    missing: Sequence[int],
    by_rank: Mapping[int, RankStatus],
    stacks: Mapping[int, Stacks],
) -> tuple[str, int | None]:
    waiting = [rank for rank in members if rank not in missing]
    have = "has" if len(missing) == 1 else "have"
    wait = "waits" if len(waiting) == 1 else "wait"
    unseen = [rank for rank in missing if rank not in by_rank]
    if unseen:
        known = f"{name_ranks(waiting)} {wait} in {_name(call)}"
        does = "does" if len(unseen) == 1 else "do"
        return f"{known}; what {name_ranks(unseen)} {does} is not known on this machine", None
    gone = [rank for rank in missing if not _lives(by_rank[rank])]
    if gone:
        have = "has" if len(gone) == 1 else "have"
        ended = f"{name_ranks(gone)} {have} ended without calling {_name(call)}"
        return f"{ended} that {name_ranks(waiting)} {wait} in", gone[0]
    first = missing[0]
    status = by_rank[first]
    where = _where(stacks.get(first))
    if is_stopped(status.pid):
        where = "is stopped by a signal (SIGSTOP)"
    elif status.waits_in:
        where = f"waits itself in {_name(status.waits_in[0])}, and {where}"
    who = "it" if len(missing) == 1 else f"rank {first}"
    sentence = (
        f"{name_ranks(missing)} {have} not called {_name(call)} that {name_ranks(waiting)} {wait} "
        f"in; {who} {where}"
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
