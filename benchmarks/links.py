"""Time `chunked_ring` against gloo's own all-reduce on shaped links between simulated nodes.

    python benchmarks/links.py [--rounds 15] [--json PATH]

Four nodes with one rank each, all links at 100 Mbit/s, then at 1 Gbit/s. Measured by
`drumline bench collectives`: both take turns in the same processes, a barrier before each, the
slowest rank's time. Needs what `drumline train nodes=4` needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from measure import Row, arguments, compare, report

RATES = ("100mbit", "1gbit")
SIZES = ("64KiB", "256KiB", "1MiB", "4MiB", "32MiB")
OURS, GLOO = "chunked_ring", "native"
TIMEOUT_S = 420.0


def measure(rate: str, rounds: int) -> dict[str, Any]:
    """Run the command and return its document."""
    command = [
        *(sys.executable, "-m", "drumline", "bench", "collectives", "--json"),
        *("nodes=4", "workers=1", f"link.rate={rate}", f"sizes={','.join(SIZES)}"),
        *(f"algorithms={OURS},{GLOO}", f"rounds={rounds}"),
    ]
    try:  # all that it starts ends with it, also where it is killed
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True
        )
    except subprocess.SubprocessError as error:
        raise SystemExit(f"links: {error}") from None
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def compare_all(rate: str, document: dict[str, Any]) -> list[Row]:
    rows = []
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        by_size.setdefault(row["size"], {})[row["algorithm"]] = row
    for name, rivals in zip(SIZES, by_size.values(), strict=True):
        times = {who: [each * 1e3 for each in row["times_s"]] for who, row in rivals.items()}
        extra = {
            "of the link": rivals[OURS]["link_share"],
            "gloo's": rivals[GLOO]["link_share"],
            "predicted/measured": 1 + rivals[OURS]["prediction_error"],
            "gloo's, predicted": 1 + rivals[GLOO]["prediction_error"],
        }
        case = f"{name}, 4 nodes, {rate}"
        rows.append(compare(times, OURS, GLOO, case=case, unit="ms", extra=extra))
    return rows


def main() -> None:
    args = arguments(__doc__, rounds=15).parse_args()
    rows: list[Row] = []
    for rate in RATES:
        rows += compare_all(rate, measure(rate, args.rounds))
    note = (
        "All-reduce of float32, 4 simulated nodes with one rank each; `native` is gloo's own. Of "
        "the link: 2(n−1)/n · bytes ÷ rate ÷ time. Predicted: alpha and beta fitted to the other "
        "sizes of the table."
    )
    report("All-reduce on shaped links", note, rows, args.json)


if __name__ == "__main__":
    main()
