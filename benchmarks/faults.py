"""Put faults into six ordinary programs under `drumline run`, and count what it names rightly.

    python benchmarks/faults.py [--healthy] [--jobs 2] [--only TEXT] [--json PATH] [--log PATH]

Three ranks train with plain DDP, FSDP2, Lightning, Accelerate, transformers' Trainer, or add
numbers up without a model (`programs/faulty.py`). Something goes wrong on one of them:

    delay      30 or 80 ms in each step, asleep or computing     the rank, and in which phase
    hang       asleep, in a system call, or stopped by SIGSTOP   the rank, and the place in its code
    mismatch   it calls another collective, or another size      the rank
    death      an exception, SIGKILL, exit code 3, or 0          the rank
    link       one of three simulated nodes has a slow link      the node

The right column must be in what the run prints, and not only in its files. A hang must be told
within 5 s of the moment at which it struck. `--healthy`: runs without a fault (an evaluation of
12 s, a checkpoint of 20 s, compilation in the first step), in which no hang may be told and nobody
may be called slow. That rank 0 kept the others waiting once, as it evaluated or saved, is true.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from measure import report_table

HERE = Path(__file__).resolve().parent
DRUMLINE = (sys.executable, "-m", "drumline", "run")
PROGRAMS = ("ddp", "fsdp2", "lightning", "accelerate", "transformers", "loop")
RANKS = 3
LIMIT_S = 300
HANG_S = 5.0
PLACES = {"data": "__getitem__", "forward": "forward", "collective": "after_step"}
HEALTHY = ("none", "evaluation", "checkpoint", "compile")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: a program, and what goes wrong in it."""

    program: str
    kind: str
    fault: str = "none"
    at: str = "forward"
    rank: int = 0
    ms: int = 0
    options: tuple[str, ...] = ()
    """of `drumline run`"""
    steps: int = 120

    def __str__(self) -> str:
        what = f"{self.fault} at {self.at}" if self.kind != "link" else " ".join(self.options[4:])
        return f"{self.program}: {what}{f' {self.ms} ms' if self.ms else ''}, rank {self.rank}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended, and whether the right one was named."""

    case: Case
    right: bool
    said: str
    seconds: float
    told_after_s: float | None = None
    """how long after it struck a hang was told"""


def draw_cases() -> Iterator[Case]:
    """Lay out all cases; the ranks take turns."""
    turn = itertools.cycle(range(RANKS))
    for program in PROGRAMS:
        places = [place for place in (*PLACES, "backward") if program != "loop" or place in PLACES]
        case = partial(Case, program=program)
        for place, ms in itertools.product(places, (30, 80)):
            yield case(kind="delay", fault="sleep", at=place, ms=ms, rank=next(turn))
        for ms in (30, 80):
            yield case(kind="delay", fault="busy", ms=ms, rank=next(turn))
        for place in places:
            yield case(kind="hang", fault="hang", at=place, rank=next(turn))
        for fault in ("lock", "stopped"):
            yield case(kind="hang", fault=fault, rank=next(turn))
        for fault, place in itertools.product(
            ("broadcast", "size", "barrier"), ("forward", "collective")
        ):
            yield case(kind="mismatch", fault=fault, at=place, rank=next(turn))
        for fault, place in (
            *(("raise", "data"), ("raise", places[-1]), ("kill", "forward"), ("kill", "data")),
            *(("exit", "collective"), ("leave", "forward"), ("leave", "collective")),
        ):
            yield case(kind="death", fault=fault, at=place, rank=next(turn))
        for node, rate in itertools.product(range(RANKS), ("10mbit", "20mbit")):
            nodes = ("-j", f"{RANKS}x1", "--link-rate", "500mbit")
            slow = (*nodes, "--slow-node", f"{node}.rate={rate}")
            yield case(kind="link", rank=node, options=slow, steps=40)


def draw_healthy() -> Iterator[Case]:
    """Lay out the runs in which nothing is wrong."""
    for number in range(50):
        work = HEALTHY[number // len(PROGRAMS) % len(HEALTHY)]
        program = PROGRAMS[number % len(PROGRAMS)]
        yield Case(program=program, kind="healthy", fault=work)


def run(case: Case) -> Outcome:
    """Run a case, and judge what was printed."""
    options = case.options or ("-j", str(RANKS))
    if case.kind in ("hang", "mismatch"):
        options = (*options, "--on-hang", "stop")
    fault = ("--fault", case.fault, "--at", case.at, "--rank", case.rank, "--ms", case.ms)
    script = (HERE / "programs" / "faulty.py", case.program, *fault, "--steps", case.steps)
    environment = {**os.environ, "COLUMNS": "250", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as folder:
        command = list(map(str, (*DRUMLINE, *options, *script)))
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            said = f"{process.communicate()[0]}\nnot over after {LIMIT_S} s"
        told = _told_after(Path(folder))
    right = _judge(case, said, process.returncode)
    if case.kind == "hang":
        right = right and told is not None and told <= HANG_S
    took = time.monotonic() - began
    return Outcome(case=case, right=right, said=said, seconds=took, told_after_s=told)


def _told_after(folder: Path) -> float | None:
    """Return how long after the fault had struck the launcher wrote of a hang."""
    struck = folder / "struck"
    for log in folder.glob("runs/*/events/launcher.jsonl"):
        for event in map(json.loads, log.read_text().splitlines()):
            if event["event"] == "hang" and struck.exists():
                return float(event["time"]) - float(struck.read_text())
    return None


def _judge(case: Case, said: str, code: int) -> bool:
    """Whether the right one was named, and no other rank was called slow."""
    who = f"rank {case.rank}"
    slow = set(re.findall(r"(rank \d+) (?:cost|is slow)", said))
    stack = re.search(rf"^  {who}: (.*)", said, re.MULTILINE)
    place = stack.group(1) if stack else ""
    if case.kind == "healthy":
        blamed = "waiting for rank" in said and case.fault not in ("evaluation", "checkpoint")
        return code == 0 and not slow and not blamed and "no progress" not in said
    if case.kind == "delay":
        phase = "data" if case.at == "data" and case.program != "loop" else "compute"
        told = re.search(rf"^{who} is slow in {phase},", said, re.MULTILINE)
        return code == 0 and slow == {who} and told is not None
    if case.kind == "hang":
        where = PLACES.get(case.at, "strike")
        where = "loop" if case.program == "loop" and case.at != "collective" else where
        seen = "SIGSTOP" in said if case.fault == "stopped" else where in place
        return code == 1 and f"{who} has not called" in said and seen
    if case.kind == "mismatch":
        return code == 1 and bool(
            re.search(rf"drumline: (no progress.*: )?mismatch: {who} called", said)
        )
    if case.kind == "death":
        ways = {
            "raise": "failed:",
            "kill": "was killed by SIGKILL",
            "exit": "exited with code 3",
            "leave": "ended without calling",
        }
        return code == 1 and f"drumline: {who} {ways[case.fault]}" in said
    return code == 0 and f"the link of node {case.rank} " in said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once (default: 1)")
    parser.add_argument("--only", default="", help="cases that this regular expression finds")
    parser.add_argument("--healthy", action="store_true", help="the runs without a fault")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the table here, too")
    parser.add_argument("--log", type=Path, metavar="PATH", help="and here what each run printed")
    args = parser.parse_args()
    cases = list(draw_healthy() if args.healthy else draw_cases())
    cases = [case for case in cases if re.search(args.only, f"{case.kind}: {case}")]
    found: list[Outcome] = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for outcome in pool.map(run, cases):
            found.append(outcome)
            mark = "right" if outcome.right else "WRONG"
            print(f"{len(found):3} {mark} {outcome.seconds:5.1f} s  {outcome.case}", flush=True)
            if args.log is not None:
                with args.log.open("a") as log:
                    log.write(json.dumps(asdict(outcome)) + "\n")
    _report(found, args.json, healthy=args.healthy)
    least = len(found) if args.healthy else 0.95 * len(found)
    return 0 if sum(one.right for one in found) >= least else 1


def _report(found: Sequence[Outcome], path: Path | None, *, healthy: bool) -> None:
    """Print how many were named rightly, by program and by kind of fault."""
    column = "fault" if healthy else "kind"
    kinds = list(dict.fromkeys(getattr(one.case, column) for one in found))
    programs = list(dict.fromkeys(one.case.program for one in found))

    def count(**wanted: str) -> str:
        chosen = [
            one.right for one in found if all(getattr(one.case, k) == v for k, v in wanted.items())
        ]
        return f"{sum(chosen)} of {len(chosen)}" if chosen else ""

    rows = [
        [
            program,
            *(count(program=program, **{column: kind}) for kind in kinds),
            count(program=program),
        ]
        for program in programs
    ]
    rows.append(["all", *(count(**{column: kind}) for kind in kinds), count()])
    note = f"Runs of {RANKS} ranks in which, as is right, no hang was told and nobody called slow."
    if not healthy:
        note = f"Runs of {RANKS} ranks in which the right rank (or node), and phase, were named."
    if delays := sorted(one.told_after_s for one in found if one.told_after_s is not None):
        middle = delays[len(delays) // 2]
        note += (
            f" Hangs were told {middle:.2f} s after they began (median; longest {delays[-1]:.2f})."
        )
    title = "No false alarms" if healthy else "Faults named"
    report_table(title, note, ["program", *kinds, "all"], rows, path)


if __name__ == "__main__":
    sys.exit(main())
