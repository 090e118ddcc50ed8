"""Running `drumline` as a user does, and looking for what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

MARK = "DRUMLINE_TEST_MARK"
# A model that does something bad in training: FAULT=rank:step:deed
FAULTY = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn

class Faulty(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Linear(784, 16)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(16, 10)
        self.calls = 0

    def forward(self, x):
        rank, call, deed = os.environ.get("FAULT", "-1:0:none").split(":")
        self.calls += self.training
        if int(rank) == int(os.environ["RANK"]) and self.training and self.calls == int(call):
            do(deed)
        x = torch.relu(self.first(x.flatten(1)))
        if deed == "nan" and int(rank) == int(os.environ["RANK"]) and self.calls >= int(call):
            x = x / 0
        return self.second(self.dropout(x))

def do(deed):
    once = Path("once")
    if deed == "raise":
        raise ValueError("the sky fell")
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "kill-once" and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "exit":
        os._exit(3)
    if deed == "leave":
        raise SystemExit(0)
    if deed == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if deed == "sleep":
        time.sleep(300)

def build(dropout=0.0):
    return Faulty(dropout)
"""
# a small quick job of the faulty model
JOB = (
    "model=faulty:build",
    "strategy=allreduce",
    "data.samples=400",
    "data.batch=40",
    "checkpoint.every_steps=5",
)


def wait_for_steps(run: Path, step: int, timeout_s: float = 40.0) -> None:
    """Wait until rank 0 of a run has taken so many steps."""
    log = run / "events" / "rank-0.jsonl"
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if log.exists() and f'"event":"step","step":{step},' in log.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"{log} did not come to step {step}")


@dataclass
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class Drumline:
    """The command, in a folder of its own, with every process it starts marked."""

    folder: Path
    temporary: Path
    """TMPDIR; short, since a socket's path must be"""
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self):
        (self.folder / "faulty.py").write_text(FAULTY)

    def environment(self, **extra):
        own = {MARK: self.mark, "COLUMNS": "100", "TMPDIR": str(self.temporary)}
        return {**os.environ, **own, **extra}

    def start(self, *words, prefix=(), **extra):
        """Start a command and return its process; it leads a process group of its own."""
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "drumline", *words],
            cwd=self.folder,
            env=self.environment(**extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *words, timeout_s=90, **extra):
        """Run a command to its end."""
        process = self.start(*words, **extra)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Answer(process.returncode, out, err)

    def train(self, *words, **extra):
        """Train, and return the JSON document of a run that went well."""
        answer = self("train", *words, "--json", **extra)
        assert answer.code == 0, answer.err
        return answer.json

    def kill(self, process):
        """Kill -9 a command: its processes end with it, its temporary files with the next one."""
        process.kill()
        process.communicate()
        assert self.left_behind(3) == []
        next_one = "from drumline.core.scratch import Scratch; Scratch().remove()"
        subprocess.run([sys.executable, "-c", next_one], env=self.environment(), check=True)

    def left_behind(self, within_s=5.0):
        """Processes that carry this command's mark, once they have had time to end."""
        deadline = time.monotonic() + within_s
        while (left := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def temporary_files(self):
        """What lies in TMPDIR, but for what torch and mpirun leave there of their own.

        torch.optim loads torch's compiler, which makes the folder of its cache.
        multiprocessing has one in a rank with loader workers, which one that is killed leaves.
        """
        theirs = ("torchelastic_", "torchinductor_", "ompi", "prte", "pymp-")
        names = [path.name for path in self.temporary.iterdir()]
        return [name for name in names if not name.startswith(theirs)]

    def _marked(self):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    variables = (entry / "environ").read_bytes()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if self.mark.encode() in variables and state != "Z":
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                        found.append(f"{entry.name}: {command.decode()[:120]}")
                except OSError:
                    continue
        return found
