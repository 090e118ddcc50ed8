"""`python -m drumline.trainer RUNDIR`: train as the rank that the environment says."""

import sys

from drumline.trainer.train import train_rank

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m drumline.trainer RUNDIR")
    train_rank(sys.argv[1])
