"""Time from the command to the end of the first step: `drumline train` against torchrun.

    python benchmarks/start_time.py [--rounds 6] [--json PATH]

The same model and data by both; torchrun runs the loop by hand (`rivals/hand_ddp.py`: DDP and a
DataLoader). The clock starts right before the process does, and stops where rank 0 has taken its
first optimizer step. Every launch is a fresh process; one of each, before the first round and not
counted, brings the files into the page cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from launches import Launch, launch_drumline, launch_torchrun
from measure import Row, arguments, compare, report, turns

WORKERS = (2, 4)
STEPS = 2
TORCHRUN = "torchrun, by hand"
OURS = ("drumline ddp", "drumline allreduce")


def rivals(workers: int) -> dict[str, Callable[[], Launch]]:
    found: dict[str, Callable[[], Launch]] = {
        TORCHRUN: partial(launch_torchrun, "hand_ddp.py", workers=workers, steps=STEPS)
    }
    for name in OURS:
        kind = name.removeprefix("drumline ")
        found[name] = partial(launch_drumline, kind, workers=workers, steps=STEPS)
    return found


def measure(workers: int, rounds: int) -> dict[str, list[float]]:
    """Return each rival's start time of each round, in s."""
    launchers = rivals(workers)
    times: dict[str, list[float]] = {name: [] for name in launchers}
    for name in turns(list(launchers), rounds):
        launch = launchers[name]()
        times[name].append((launch.first_step_end - launch.started) / 1e9)
        print(f"  {workers} workers  {name:24}{times[name][-1]:8.3f} s", flush=True)
    return times


def main() -> None:
    args = arguments(__doc__, rounds=6).parse_args()
    for launch in rivals(WORKERS[0]).values():
        launch()
    rows: list[Row] = []
    for workers in WORKERS:
        times = measure(workers, args.rounds)
        rows += [
            compare(times, ours, TORCHRUN, case=f"{workers} workers", unit="s") for ours in OURS
        ]
    note = (
        "From right before the command starts to the end of the first step on rank 0: cnn, "
        "mnist-mini, 128 samples over all workers. Files are in the page cache."
    )
    report("Time to the first step", note, rows, args.json)


if __name__ == "__main__":
    main()
