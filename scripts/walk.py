"""Count how far a reader walks: the files, hops and border crossings of a command's real call path.

    python scripts/walk.py train strategy=ddp max_steps=4      # one command of drumline
    python scripts/walk.py --list train strategy=ddp …         # and its path, by first call
    python scripts/walk.py --all                               # the walks of WALKS, as one table
    python scripts/walk.py --source ../other-checkout --all    # the same of another checkout

A function of ours is on the path when it is called, but not while a module is being imported.

    files       modules of `drumline` with at least one function on the path
    functions   functions on the path; lambdas and comprehensions belong to the one around them
    hops        pairs (module, module) where the first calls the second; library frames between
                them are skipped, so a callback counts for whoever called the library
    crossings   hops between two folders directly below `drumline`

Each walk has two rows: the process that the operator started, and all processes (agents, worker
servers, forked ranks, jobs on simulated nodes). A `sitecustomize` on PYTHONPATH reaches them, and
on nodes one in their environment. Each process appends what it meets first to a file of its own, so
that os._exit and SIGKILL lose nothing. Not seen: processes started with `python -S`, and threads
that C++ started. Starting a process is no call, hence no hop.
"""

from __future__ import annotations

import argparse
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]
SPEC = "{model: mlp, data: {samples: 400, batch: 40}, strategy: ddp, max_steps: 4}\n"
WALKS = {
    "train": ("train", "strategy=ddp", "workers=2", "data.samples=400", "max_steps=4"),
    "submit": ("submit", "--", "spec.yaml"),
    "lab": ("lab", "run", "2"),
}
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Recorder:
    """A profile function that writes every new pair (calling module, called function) to a file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._modules: dict[str, str] = {}
        """file name of a code object → module below drumline ("comm/ring.py"), "" if not ours"""
        self.start()

    def start(self) -> None:
        """Begin anew, with no file yet: in this process, or in one just forked from it."""
        self._seen: set[tuple[str, str, int]] = set()
        self._path = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Write down a call of ours that was not met before; everything else returns at once."""
        if event != "call":
            return
        code = frame.f_code
        callee = self._module(code)
        if not callee or code.co_name.startswith("<") or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # not ours, or the body of a module, a comprehension or a class
        if code.co_flags & _GENERATORS and code.co_code[frame.f_lasti + 1] != 0:
            return  # RESUME with an argument: a generator or coroutine goes on
        above = list(self._ours_above(frame))
        caller = self._module(above[0].f_code) if above else ""
        key = (caller, callee, code.co_firstlineno)
        if key in self._seen or any(map(_is_import, above)):
            return
        self._seen.add(key)
        words = (f"{time.time():.6f}", caller, callee, str(code.co_firstlineno), code.co_qualname)
        self._write("\t".join(words) + "\n")

    def _module(self, code: CodeType) -> str:
        name = code.co_filename
        if name not in self._modules:
            folder, _, module = name.rpartition("/drumline/")
            # a checkout, an installed package, or the code that a node was sent
            known = folder.rpartition("/")[2].startswith(("src", "site-packages", "lib"))
            self._modules[name] = module if known else ""
        return self._modules[name]

    def _ours_above(self, frame: FrameType) -> Iterator[FrameType]:
        above = frame.f_back
        while above is not None:
            if self._module(above.f_code):
                yield above
            above = above.f_back

    def _write(self, line: str) -> None:
        self._path = self._path or f"{self._folder}/{os.getpid()}-{time.time_ns()}.tsv"
        # opened each time: a descriptor that is kept may be closed by who starts daemons
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line)


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__"


def arm(folder: str) -> None:
    """Record what this process calls, its later threads and the processes forked from it, too."""
    recorder = Recorder(folder)
    os.register_at_fork(after_in_child=recorder.start)
    threading.setprofile(recorder)
    sys.setprofile(recorder)


@dataclass(frozen=True)
class Call:
    """The first call of a function from a module, in one process."""

    at_s: float
    process: str
    own: bool  # whether the operator started it
    caller: str
    callee: str
    line: int
    function: str


def crosses(caller: str, callee: str) -> bool:
    """Tell whether a call leads from one package to another."""
    packages = {module.rpartition("/")[0].partition("/")[0] for module in (caller, callee)}
    return caller != "" and len(packages) == 2


def count(calls: list[Call]) -> tuple[int, int, int, int]:
    """Count files, functions, hops and crossings."""
    hops = {(call.caller, call.callee) for call in calls if call.caller not in ("", call.callee)}
    files = {call.callee for call in calls}
    functions = {(call.callee, call.line) for call in calls}
    return len(files), len(functions), len(hops), sum(crosses(*hop) for hop in hops)


class Tracer:
    """Runs commands of a checkout in a folder of its own; traced where asked to."""

    def __init__(self, source: Path, folder: Path) -> None:
        python = source / ".venv" / "bin" / "python"
        self._python = str(python) if python.exists() else sys.executable
        self._folder, self._records, self._project = folder, folder / "records", folder / "project"
        for each in (self._records, self._project, folder / "hook"):
            each.mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(
            f"import sys\nsys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
            f"import walk\ndel sys.path[0]\nwalk.arm({str(self._records)!r})\n"
        )
        self._paths = f"{source}/src"
        self._environment = {**os.environ, "COLUMNS": "100", "DRUMLINE_HOME": f"{folder}/home"}

    def walk(self, *args: str) -> list[Call]:
        """Run a command to its end, and read what all its processes called."""
        began = time.time()
        pid = self._run(*args, hook=f"{self._folder}/hook:")
        paths = [path for path in self._records.iterdir() if path.stat().st_mtime >= began]
        calls = [call for path in paths for call in _read(path, began, pid)]
        return sorted(calls, key=lambda call: call.at_s)

    def walk_submit(self) -> list[Call]:
        """Submit a job to two simulated nodes whose processes are traced, too."""
        (self._project / "spec.yaml").write_text(SPEC)
        self._run("cluster", "init", "twin", "--name", "walk")
        try:
            self._run("up")
            nodes = self._folder / "home" / "clusters" / "walk" / "twin"
            for site in nodes.glob("*/**/env/lib/python*/site-packages"):
                shutil.copy(self._folder / "hook" / "sitecustomize.py", site)
            self._run(*WALKS["submit"])  # takes the warm agents that know no hook
            time.sleep(5)
            return self.walk(*WALKS["submit"])
        finally:
            self._run("down")

    def _run(self, *args: str, hook: str = "") -> int:
        command = [self._python, "-m", "drumline", *args]
        environment = {**self._environment, "PYTHONPATH": f"{hook}{self._paths}"}
        with subprocess.Popen(
            command, cwd=self._project, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr
        ) as process:
            if process.wait() != 0:
                raise SystemExit(f"drumline {' '.join(args)} ended with {process.returncode}")
            return process.pid


def _read(path: Path, began: float, command: int) -> list[Call]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    # a process of a node may have the command's id, but began before it
    own = path.stem.startswith(f"{command}-") and float(rows[0][0]) >= began
    return [
        Call(float(at) - began, path.stem, own, caller, callee, int(line), function)
        for at, caller, callee, line, function in rows
    ]


def print_path(name: str, calls: list[Call]) -> None:
    """Print functions by their first call; * marks the operator's process, » a crossing."""
    print(f"== {name}")
    met: set[tuple[str, int]] = set()
    for call in calls:
        if (call.callee, call.line) not in met:
            met.add((call.callee, call.line))
            border = "»" if crosses(call.caller, call.callee) else " "
            came = f"  from {call.caller}" if call.caller not in ("", call.callee) else ""
            where = f"{border} {call.callee}:{call.line} {call.function}{came}"
            process = call.process.partition("-")[0] + ("*" if call.own else " ")
            print(f"{call.at_s:8.3f} {process:>8} {where}")


def print_table(walks: dict[str, list[Call]]) -> None:
    """Print two rows for each walk: the command's own process, and all processes."""
    row = "{:<8}{:<20}{:>7}{:>11}{:>7}{:>11}"
    print(row.format("walk", "", "files", "functions", "hops", "crossings"))
    for name, calls in walks.items():
        every = f"all {len({call.process for call in calls})} processes"
        print(row.format(name, "this process", *count([call for call in calls if call.own])))
        print(row.format(name, every, *count(calls)))


def main() -> None:
    """Walk as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, default=ROOT, help="a checkout (default: this one)")
    parser.add_argument("--list", action="store_true", help="print the path, by first call")
    parser.add_argument("--all", action="store_true", help=f"walk {', '.join(WALKS)}")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command of drumline")
    asked = parser.parse_args()
    if asked.all == bool(asked.command):
        parser.error("name a command of drumline, or --all")
    walks = {}
    for name, words in (WALKS if asked.all else {asked.command[0]: asked.command}).items():
        with tempfile.TemporaryDirectory(prefix="walk-") as folder:
            tracer = Tracer(asked.source.resolve(), Path(folder))
            submits = tuple(words) == WALKS["submit"]
            walks[name] = tracer.walk_submit() if submits else tracer.walk(*words)
        if asked.list:
            print_path(name, walks[name])
    print_table(walks)


if __name__ == "__main__":
    main()
