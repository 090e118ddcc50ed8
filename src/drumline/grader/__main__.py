"""`python -m drumline.grader`: the server of checks, warm before it is asked."""

from __future__ import annotations

import os
import signal
import sys

from drumline.core.processes import die_with_parent


def main() -> None:
    """Run the grader's server: load torch once, then answer requests from standard input.

    Threads are limited by OMP_NUM_THREADS (`drumline.launcher.grader` sets it), not by
    torch.set_num_threads: that makes a pool of threads, which a fork then replaces where two of its
    own threads may meet, and abort.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.dont_write_bytecode = True
    import gc

    from drumline.grader.fork import adopt_orphans
    from drumline.grader.server import serve

    gc.freeze()  # a collection in a fork would touch, and thereby copy, what it shares
    adopt_orphans()
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints here prints there
    serve(sys.stdin, events)


if __name__ == "__main__":
    main()
