"""Run all benchmarks one after the other, and write `results/*.json` and `RESULTS.md`.

    python benchmarks/run_all.py            about twelve minutes on two quiet cores
    python benchmarks/run_all.py --smoke    few rounds, to see that everything runs; writes nothing
    python benchmarks/run_all.py --render   only write RESULTS.md again, from the JSON files

`--only NAME` (may be given several times) runs just that one; the other results stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launches import LaunchError, run_bounded
from measure import markdown

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE / "RESULTS.md"
HEAD = """# Benchmarks

Written by `python benchmarks/run_all.py`; every number below comes from `benchmarks/results/`. Each
ratio is the left rival's time over the right one's in the same round, the rivals taking turns:
below 1, the left one takes less time. Given are the median over the rounds and the quartiles. They
hold for the machine that is named under each table, and for the load that it had.
"""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of this folder, how many rounds it takes, and how long it may run."""

    name: str
    rounds: int
    smoke_rounds: int
    timeout_s: float


BENCHMARKS = (
    Benchmark(name="step_time", rounds=5, smoke_rounds=1, timeout_s=900),
    Benchmark(name="start_time", rounds=5, smoke_rounds=1, timeout_s=600),
    Benchmark(name="all_reduce", rounds=15, smoke_rounds=2, timeout_s=500),
    Benchmark(name="backends", rounds=60, smoke_rounds=3, timeout_s=500),
    Benchmark(name="pipeline", rounds=40, smoke_rounds=2, timeout_s=500),
    Benchmark(name="rpc", rounds=15, smoke_rounds=2, timeout_s=300),
    Benchmark(name="links", rounds=15, smoke_rounds=1, timeout_s=900),
    Benchmark(name="cluster", rounds=3, smoke_rounds=1, timeout_s=1200),
    Benchmark(name="ledger_overhead", rounds=120, smoke_rounds=5, timeout_s=300),
    Benchmark(name="observer_overhead", rounds=100, smoke_rounds=3, timeout_s=300),
    Benchmark(name="optimizers", rounds=30, smoke_rounds=2, timeout_s=300),
)

BY_HAND = ("faults", "healthy")
"""results of `faults.py`, which takes an hour: --json benchmarks/results/faults.json; and with
--healthy, healthy.json"""


def run(benchmark: Benchmark, folder: Path, *, smoke: bool) -> None:
    """Run one benchmark; its table is written to the folder."""
    rounds = benchmark.smoke_rounds if smoke else benchmark.rounds
    script = f"benchmarks/{benchmark.name}.py"
    path = folder / f"{benchmark.name}.json"
    shown = path.relative_to(HERE.parent) if path.is_relative_to(HERE) else path
    command = [sys.executable, script, f"--rounds={rounds}", f"--json={shown}"]
    print(f"{script} --rounds {rounds} …", flush=True)
    run_bounded(command, timeout_s=benchmark.timeout_s, cwd=HERE.parent)
    for row in json.loads(path.read_text())["rows"]:
        print(
            f"  {row['case']:30}{row['ours']:24}{row['rival']:20}{row['ratio']:8.3f}"
            f"  {row['low']:.3f}–{row['high']:.3f}"
        )


def render(folder: Path) -> str:
    """Make the page out of the results that there are."""
    names = (*(benchmark.name for benchmark in BENCHMARKS), *BY_HAND)
    found = [folder / f"{name}.json" for name in names]
    sections = [markdown(json.loads(path.read_text())) for path in found if path.exists()]
    return "\n".join([HEAD, *sections])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--only", action="append", choices=[each.name for each in BENCHMARKS])
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="drumline-bench-") as scratch:
        folder = Path(scratch) if args.smoke else RESULTS
        for benchmark in () if args.render else BENCHMARKS:
            if args.only and benchmark.name not in args.only:
                continue
            try:
                run(benchmark, folder, smoke=args.smoke)
            except LaunchError as error:  # the others are still worth having
                failed = True
                print(f"run_all: {error}", file=sys.stderr)
        page = render(folder)
    if not args.smoke:
        PAGE.write_text(page)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
