"""What a worker does first, once it is forked: train by the spec, or run a script of the user's.

The agent imports this module too, to name the function; what only workers need is imported inside.
An agent may have been started ahead of its task, and its worker server with it: then a worker has
another folder and other variables than the server that it was forked from (`Setting`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drumline.agent.brake import sign_in
from drumline.core.task import MODULE


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a process works, and what its environment adds to what it has inherited."""

    folder: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def enter(self) -> None:
        """Be there."""
        os.environ.update(self.variables)
        if self.folder:
            os.chdir(self.folder)
            sys.path[0] = self.folder


def run_worker(setting: Setting, run_path: str, register: str, *script: str) -> None:
    """Be a rank, as `run_rank`, in the setting of its task."""
    setting.enter()
    if "OMP_NUM_THREADS" in setting.variables:  # read when torch was loaded, before it was set
        import torch

        torch.set_num_threads(int(setting.variables["OMP_NUM_THREADS"]))
    run_rank(run_path, register, *script)


def run_rank(run_path: str, register: str, *script: str) -> None:
    """Be the rank that the environment says, of the run in `run_path`.

    Args:
        run_path: the run directory.
        register: where workers sign in that the agent is to slow (`brake`); "" for nowhere.
        script: a script of the user's and its arguments; empty: train by the run's spec.
    """
    if register:
        sign_in(register)
    if script:
        run_script(Path(run_path), script)
    else:
        from drumline.train import train_rank

        train_rank(run_path)


def run_script(run_path: Path, script: tuple[str, ...]) -> None:
    """Run a script as `python script.py args…` would, or a module as `python -m module args…`."""
    from drumline.comm.group import pin_interface
    from drumline.comm.store import LOOPBACK
    from drumline.core.rundir import RunDir
    from drumline.train.rank import rank_process

    with rank_process(RunDir(run_path), runs_script=True):
        pin_interface(os.environ.get("MASTER_ADDR", LOOPBACK))  # mpirun names none
        if script[0] == MODULE:
            sys.argv = list(script[1:])
            sys.path[0] = str(Path.cwd())
            runpy.run_module(script[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(script)
            sys.path[0] = str(Path(script[0]).resolve().parent)
            runpy.run_path(script[0], run_name="__main__")
