"""`torchrun … -m drumline.observe [-m] SCRIPT ARGS…`: observe a script of another launcher's ranks.

Each rank that the launcher starts runs the script as it would have been run, and is observed from
its first line on. In a script of one's own `drumline.observe()` does the same.
"""

import sys

from drumline.agent.worker import run_program
from drumline.core.errors import UsageError
from drumline.core.task import MODULE
from drumline.observer import observe


def main() -> None:
    """Observe the script that the arguments name."""
    script = sys.argv[1:]
    if not script or script == [MODULE] or (script[0].startswith("-") and script[0] != MODULE):
        sys.exit(f"drumline: {UsageError(_USAGE)}")
    name = script[1] if script[0] == MODULE else script[0]
    sys.argv = script[1:] if script[0] == MODULE else script
    observe(name.rpartition("/")[2].removesuffix(".py"))
    run_program(tuple(script))


_USAGE = "name a script: torchrun --nproc-per-node 2 -m drumline.observe train.py --epochs 3"

if __name__ == "__main__":
    main()
