"""A laptop: the command line as a user runs it, in a folder, a network and a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands import Answer

LONG_JOB = """
import pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1000):
    dist.all_reduce(torch.ones(1))
    print("step", step, flush=True)
    time.sleep(0.2)
    enough = torch.tensor([pathlib.Path(__file__).with_name("enough").exists()])
    dist.broadcast(enough, 0)
    if enough:
        break
print("that was all", flush=True)
"""
"""goes on until there is a file called enough beside it"""


class Running:
    """A command that runs; what it prints is kept."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, word: str, within_s: float = 90.0) -> str:
        """Wait until it has printed a word; returns the line."""
        deadline = time.monotonic() + within_s
        while True:
            ended = self.process.poll() is not None and not self._reader.is_alive()
            for line in list(self.lines):
                if word in line:
                    return line
            assert not ended, f"it ended without {word!r}: {self.text}"
            assert time.monotonic() < deadline, f"waited in vain for {word!r}: {self.text}"
            time.sleep(0.05)

    def wait(self, within_s: float = 120.0) -> int:
        """Wait for its end; returns its exit code."""
        code = self.process.wait(within_s)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def end(self) -> None:
        """Press Ctrl-C, if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait(30)
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))


class Laptop:
    """Runs `drumline`. `enter` is what to put before commands (a network), if anything."""

    def __init__(
        self, folder: Path, environment: dict[str, str], *, enter: Sequence[str] = ()
    ) -> None:
        self.project = folder / "my projéct"
        self.project.mkdir(parents=True)
        self.home = folder / "drumline's hömé"
        self.enter = tuple(enter)
        keep = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "TMPDIR", "HOME", "USER")
        own = {name: os.environ[name] for name in keep if name in os.environ}
        self.environment = {**own, "DRUMLINE_HOME": str(self.home), "COLUMNS": "200"}
        self.environment |= environment
        self.answers: list[Answer] = []
        self.running: list[Running] = []

    def command(self, words: Sequence[str]) -> list[str]:
        return [*self.enter, sys.executable, "-m", "drumline", *words]

    def __call__(self, *words: str, code: int | None = 0, timeout_s: float = 240) -> Answer:
        """Run a command to its end."""
        began = time.monotonic()
        done = subprocess.run(
            self.command(words),
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        answer = Answer(done.returncode, done.stdout, done.stderr)
        self.answers.append(answer)
        print(f"{time.monotonic() - began:5.1f} s  {' '.join(words)}")  # for who looks for time
        assert code is None or answer.code == code, f"{words}: {answer}"
        return answer

    def json(self, *words: str) -> Any:
        return json.loads(self(*words).out)

    def start(self, *words: str) -> Running:
        """Start a command; its output and its errors come as one."""
        process = subprocess.Popen(
            self.command(words),
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(Running(process))
        return self.running[-1]

    def close(self) -> None:
        """End what a failed test has left."""
        for one in self.running:
            if one.process.poll() is None:
                one.process.kill()
            one.wait(30)

    def fetch(self, url: str) -> tuple[int, str]:
        """Ask for a page from the laptop; returns the status, and where that ended up."""
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import laptop; "
        code += "print(*laptop.fetch_page(sys.argv[1]))"
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [*self.enter, sys.executable, "-c", code, url],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        status, _, place = done.stdout.strip().partition(" ")
        return int(status), place


def fetch_page(url: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=30) as answer:
            return answer.status, answer.geturl()
    except urllib.error.HTTPError as error:
        return error.code, url
