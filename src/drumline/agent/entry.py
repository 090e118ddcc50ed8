"""What a worker does first, once it is forked: train by the spec, or run a script of the user's.

The agent imports this module too, to name the function; what only workers need is imported inside.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from drumline.agent.brake import sign_in
from drumline.core.task import MODULE


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
    from drumline.train.process import rank_process

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
