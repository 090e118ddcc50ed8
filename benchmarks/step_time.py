"""Time a training step of `drumline train` against loops by hand, Lightning and Accelerate.

    python benchmarks/step_time.py [--rounds 6] [--steps 60] [--json PATH]

The job: the MNIST cnn with dropout on mnist-mini, 128 samples a step over 2 workers, SGD with
momentum, gloo on this host, one CPU thread per worker. In each round every rival is launched afresh
and takes `--steps` steps. Measured on rank 0 is the time from one step to the next, so that
fetching data, logging and everything else between steps is in it; the first 5 are left out. A
round's value is the median of its steps; a ratio compares two values of the same round.

    by hand                 DDP, DataLoader, DistributedSampler: as in most tutorials
    by hand, sliced         the same loop, but whole batches are taken out of one tensor
    … + channels_last       besides, the model in that memory format, as drumline has it
    lightning, accelerate   the same model, Dataset and DataLoader; launched by torchrun, too
    drumline KIND           drumline train strategy.kind=KIND
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from launches import Launch, launch_drumline, launch_torchrun
from measure import Row, arguments, compare, report, turns

WORKERS = 2
SKIP = 5
HAND, SLICED, LAST = "by hand", "by hand, sliced", "… + channels_last"
OURS = "drumline ddp"
OTHERS = ("drumline allreduce", "drumline ring", "drumline chunked_ring")


def rivals() -> dict[str, Callable[..., Launch]]:
    by_hand = partial(launch_torchrun, "hand_ddp.py")
    found: dict[str, Callable[..., Launch]] = {
        HAND: by_hand,
        SLICED: partial(by_hand, "--sliced"),
        LAST: partial(by_hand, "--sliced", "--channels-last"),
        "lightning": partial(launch_torchrun, "lightning_job.py"),
        "accelerate": partial(launch_torchrun, "accelerate_job.py"),
    }
    for name in (OURS, *OTHERS):
        found[name] = partial(launch_drumline, name.removeprefix("drumline "))
    return found


def measure(rounds: int, steps: int) -> dict[str, list[float]]:
    """Return each rival's median step of each round, in ms."""
    launchers = rivals()
    times: dict[str, list[float]] = {name: [] for name in launchers}
    for name in turns(list(launchers), rounds):
        launch = launchers[name](workers=WORKERS, steps=steps)
        times[name].append(statistics.median(launch.between_steps[SKIP:]) / 1e6)
        print(f"  {name:24}{times[name][-1]:8.2f} ms", flush=True)
    return times


def compare_all(times: dict[str, list[float]]) -> list[Row]:
    pairs = [(OURS, rival) for rival in (HAND, SLICED, LAST, "lightning", "accelerate")]
    pairs += [(name, HAND) for name in OTHERS]
    pairs += [(SLICED, HAND), (LAST, SLICED)]  # what slicing and what channels_last bring
    return [
        compare(times, ours, rival, case=f"{WORKERS} workers", unit="ms") for ours, rival in pairs
    ]


def main() -> None:
    parser = arguments(__doc__, rounds=6)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    if args.steps < SKIP + 3:
        parser.error(f"--steps must be at least {SKIP + 3}: the first {SKIP} are left out")
    rows = compare_all(measure(args.rounds, args.steps))
    note = (
        f"From one step to the next on rank 0: cnn, mnist-mini, 128 samples over {WORKERS} "
        f"workers, one thread each. A launch of {args.steps} steps a round; its value is the "
        f"median of the times between them, the first {SKIP} left out."
    )
    report("Step time", note, rows, args.json)


if __name__ == "__main__":
    main()
