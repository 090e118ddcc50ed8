"""`python -m drumline.grader`: the server of checks, warm before it is asked."""

from __future__ import annotations

import signal
import sys

from drumline.core.processes import die_with_parent


def main() -> None:
    """Load torch once, and serve.

    Threads are limited by OMP_NUM_THREADS (`drumline.labs.check` sets it), not by
    torch.set_num_threads: that makes a pool of threads, which a fork then replaces where two of its
    own threads may meet, and abort.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.dont_write_bytecode = True
    import gc

    from drumline.grader import server
    from drumline.grader.fork import adopt_orphans

    gc.freeze()  # a collection in a fork would touch, and thereby copy, what it shares
    adopt_orphans()
    server.main()


if __name__ == "__main__":
    main()
