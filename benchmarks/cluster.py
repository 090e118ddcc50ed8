"""Time what a person waits for on a cluster of simulated nodes: up, submit, sync, down.

    python benchmarks/cluster.py [--rounds 3] [--json PATH]

By the command line, as a person would. By hand means: OpenSSH runs the same script on one node. All
nodes share this machine's cores, so that many nodes are slower here than they would be elsewhere;
before each time is taken, the cores must have come to rest (nodes get an agent ready for the next
job when one has ended). Needs what `provider: twin` needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Row, arguments, compare, report

BOOT_S = 5.0
FILES = 10_000
SCRIPT = "import os, torch\nprint('first line of rank', os.environ.get('RANK'), flush=True)\n"
TIMEOUT_S = 300.0
REST = 0.8
"""the share of the cores' time that is idle when nothing is left to do"""


def rest(within_s: float = 120.0) -> None:
    """Wait until the cores have little to do for a second."""
    deadline = time.monotonic() + within_s
    before = _ticks()
    while time.monotonic() < deadline:
        time.sleep(1)
        now = _ticks()
        idle, total = now[0] - before[0], now[1] - before[1]
        if idle > REST * total:
            return
        before = now
    raise SystemExit(f"cluster: this machine is busy for {within_s:g} s; try again later")


def _ticks() -> tuple[int, int]:
    """Idle and total, since the machine's start."""
    values = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return values[3] + values[4], sum(values)


class Cluster:
    """A cluster of so many nodes, and the folder that it is used from."""

    def __init__(self, folder: Path, nodes: int, boot_s: float = 0.0) -> None:
        self.folder = folder
        self.nodes = nodes
        folder.mkdir(parents=True)
        (folder / "first_line.py").write_text(SCRIPT)
        twin = f"twin: {{boot_s: {boot_s}}}\n"
        spec = f"name: bench{nodes}\nprovider: twin\nnodes: {nodes}\n{twin}"
        (folder / "cluster.yaml").write_text(spec)

    def up(self) -> float:
        """Make it; returns how long that took, in s."""
        return self._run("up")[0]

    def down(self) -> float:
        """Remove it; returns how long that took, in s."""
        return self._run("down", "--no-pull")[0]

    def first_line(self) -> float:
        """From the command to the first line of any rank, in s."""
        return self._first([*self._command("submit"), "--", "first_line.py"])

    def by_hand(self) -> float:
        """The same on one node, by OpenSSH and the node's own Python."""
        root = self.status()["nodes"][0]["root"]
        home = Path(os.environ["DRUMLINE_HOME"]) / "clusters" / f"bench{self.nodes}"
        ssh = ["ssh", "-F", str(home / "ssh" / "config"), "-o", "ControlPath=none", "worker0"]
        return self._first([*ssh, f"{root}/env/bin/python", f"{root}/code/first_line.py"])

    def sync(self) -> float:
        """A submit of a script that does nothing, but for the job itself: what syncing takes."""
        code = (
            "import asyncio, sys, time\n"
            "from pathlib import Path\n"
            "from drumline.cluster.spec import find_cluster\n"
            "from drumline.cluster.ssh.fleet import connected\n"
            "from drumline.cluster.files.sync import sync_folder\n"
            "async def main():\n"
            "    spec, home = find_cluster(None)\n"
            "    async with connected(spec, home) as fleet:\n"
            "        began = time.monotonic()\n"
            "        await sync_folder(fleet.remotes, Path.cwd(), home, note=lambda _: None)\n"
            "        print(time.monotonic() - began)\n"
            "asyncio.run(main())\n"
        )
        rest()
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, stdout=subprocess.PIPE, check=True
        )
        return float(done.stdout)

    def status(self) -> dict[str, Any]:
        """Return what `drumline status --json` prints."""
        document: dict[str, Any] = json.loads(self._run("status", "--json")[1])
        return document

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "drumline", *words]

    def _run(self, *words: str) -> tuple[float, str]:
        rest()
        began = time.monotonic()
        done = subprocess.run(
            self._command(*words),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"cluster: {' '.join(words)}: {done.stderr}")
        return time.monotonic() - began, done.stdout

    def _first(self, command: list[str]) -> float:
        rest()
        began = time.monotonic()
        process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.monotonic() - began
        process.communicate(timeout=TIMEOUT_S)
        if "first line" not in line:
            raise SystemExit(f"cluster: {' '.join(command)}: exit code {process.returncode}")
        return took


@contextlib.contextmanager
def standing(folder: Path, nodes: int, boot_s: float = 0.0) -> Iterator[tuple[Cluster, float]]:
    """Make a cluster, and remove it whatever happens; gives how long `up` took, too."""
    cluster = Cluster(folder / f"of{nodes}", nodes, boot_s)
    try:
        yield cluster, cluster.up()
    finally:
        cluster.down()


def measure_eight(folder: Path, rounds: int) -> list[Row]:
    ups, downs = [], []
    for number in range(rounds):
        cluster = Cluster(folder / f"round{number}", 8, BOOT_S)
        try:
            ups.append(cluster.up())
        finally:
            downs.append(cluster.down())
        print(f"  8 nodes  up {ups[-1]:.2f} s  down {downs[-1]:.2f} s", flush=True)
    boots = [BOOT_S] * rounds
    over = sorted(ups)[rounds // 2] - BOOT_S
    names = {"up": ups, "the nodes' own boot": boots, "down": downs}
    return [
        compare(
            names, "up", "the nodes' own boot", case="8 nodes", unit="s", extra={"over it, s": over}
        ),
        compare(names, "down", "up", case="8 nodes", unit="s"),
    ]


def measure_submit(folder: Path, rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {"submit": [], "by hand on one": []}
    first: dict[int, list[float]] = {1: [], 16: []}
    with standing(folder, 8) as (cluster, _):
        cluster.first_line()  # warm
        for _round in range(rounds):
            times["submit"].append(cluster.first_line())
            times["by hand on one"].append(cluster.by_hand())
            print(f"  8 nodes  {times['submit'][-1]:.2f} s  {times['by hand on one'][-1]:.2f} s")
    for nodes, found in first.items():
        with standing(folder, nodes) as (cluster, _):
            cluster.first_line()
            found += [cluster.first_line() for _ in range(rounds)]
        print(f"  {nodes} nodes  {' '.join(f'{each:.2f}' for each in found)} s", flush=True)
    medians = [sorted(times[name])[rounds // 2] for name in ("submit", "by hand on one")]
    extra = {"over it, s": medians[0] - medians[1]}
    grown = {"16 nodes": first[16], "1 node": first[1]}
    return [
        compare(times, "submit", "by hand on one", case="8 nodes", unit="s", extra=extra),
        compare(grown, "16 nodes", "1 node", case="submit to the first line", unit="s"),
    ]


def measure_sync(folder: Path, rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {"unchanged": [], "the first time": []}
    with standing(folder, 2) as (cluster, _):
        for number in range(rounds):
            for name in range(FILES // rounds):
                place = cluster.folder / f"part{number}" / f"{name // 100}"
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{name}.txt").write_text(f"{number} {name}\n")
            times["the first time"].append(cluster.sync())
            times["unchanged"].append(cluster.sync())
            print(f"  sync  {times['unchanged'][-1]:.2f} s unchanged", flush=True)
        times["unchanged"][-1:] = [cluster.sync()]
    case = f"{FILES:,} files, 2 nodes"
    last = {"all files, s": times["unchanged"][-1]}
    return [compare(times, "unchanged", "the first time", case=case, unit="s", extra=last)]


def main() -> None:
    args = arguments(__doc__, rounds=3).parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["DRUMLINE_HOME"] = f"{temporary}/home"
        folder = Path(temporary)
        rows = measure_eight(folder, args.rounds)
        rows += measure_submit(folder, args.rounds)
        rows += measure_sync(folder, args.rounds)
    note = (
        "Simulated nodes, which share this machine's cores. `up` without installs; nodes boot for "
        f"{BOOT_S:g} s. `submit` to the first line that any rank prints, the second time. Syncing "
        f"a folder that grows to {FILES:,} files; the last figure is with all of them."
    )
    report("A cluster of simulated nodes", note, rows, args.json)


if __name__ == "__main__":
    main()
