"""Running the blocks of a page as a reader does: in order, in one folder, in bash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from doc_output import difference
from doc_pages import ROOT, Block, Command

BIN = Path(sys.executable).parent
TIMEOUT_S = 900
_UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONWARNINGS", "FORCE_COLOR")
_MARK = "\x1e"


class PageShell:
    """A folder with the page's files and a copy of examples/, and an environment.

    `enter` is what to put before bash (a network), if anything; `instead` has words of commands
    that must be others here, such as a port that is free.
    """

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        *,
        enter: Sequence[str] = (),
        instead: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.enter = tuple(enter)
        self.instead = {"29500": str(_port()), **instead}
        self.printed: list[tuple[Command, str]] = []
        """every command that has run, and its output"""
        kept = {name: value for name, value in environment.items() if name not in _UNSET}
        self.environment = {
            **kept,
            "PATH": f"{BIN}{os.pathsep}{kept['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "88",
            "DRUMLINE_HOME": str(folder.parent / "drumline-home"),
        }
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=_not_copied)

    def run(self, blocks: Iterable[Block]) -> list[str]:
        """Run blocks; returns what went wrong, block by block. The first that fails is the last."""
        for block in blocks:
            if block.title:
                path = self.folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.body)
            elif block.is_shell and not block.not_run:
                faults = self._run_block(block)
                if faults:
                    return faults
        return []

    def _run_block(self, block: Block) -> list[str]:
        commands = block.commands
        script = "\n".join(
            f"{{ {self._here(command.text)}\n}} </dev/null\nprintf '{_MARK}%d{_MARK}' $?"
            for command in commands
        )
        began = time.monotonic()
        text = self._bash(f"{script}\nwait\n", block)
        print(f"{time.monotonic() - began:5.1f} s  {block.where}\n{text}")  # -rP: to copy from
        parts = text.split(_MARK)
        outputs, codes = parts[0::2], [int(code) for code in parts[1::2]]
        self.printed += zip(commands, outputs, strict=False)
        faults = []
        for k, command in enumerate(commands):
            if k >= len(codes):
                faults.append(f"{block.where}: {command.text}: did not end\n{text}")
                break
            wanted = block.exit_code if k == len(commands) - 1 else 0
            if codes[k] != wanted:
                ended = f"ended with {codes[k]}, not {wanted}"
                faults.append(f"{block.where}: {command.text}: {ended}:\n{outputs[k]}")
            elif command.shown and (what := difference(command.shown, outputs[k].splitlines())):
                faults.append(f"{block.where}: {command.text}:\n{what}")
        return faults

    def _here(self, text: str) -> str:
        for word, other in self.instead.items():
            text = text.replace(word, other)
        return text

    def _bash(self, script: str, block: Block) -> str:
        process = subprocess.Popen(
            [*self.enter, "bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            return process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed = process.communicate()[0]
            raise AssertionError(f"{block.where} took over {TIMEOUT_S} s:\n{printed}") from None


def _not_copied(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name in ("runs", "__pycache__", "outputs")]


def _port() -> int:
    return 20000 + os.getpid() % 10000
