"""`drumline bench collectives`: starts the ranks for each number of workers, and collects rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.bench.machine import describe_machine
from drumline.bench.rows import Fit, Row, build_rows, fit_rows, predict_rows
from drumline.core.bench import CollectivesSpec
from drumline.launch.probe import Watch, probed

_BUDGET_S = 20.0
"""for all rounds together, where the user does not say how many"""


@dataclass
class CollectivesResult:
    """All that a bench of collectives found out."""

    spec: CollectivesSpec
    rows: list[Row] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    interface: str = ""
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def skipped(self) -> list[dict[str, str]]:
        """Backends that were asked for and cannot join these ranks, and why."""
        unusable = self.spec.unusable_backends
        return [{"backend": name, "why": why} for name, why in unusable.items()]

    def to_json(self) -> dict[str, Any]:
        """Return the one document."""
        return {
            "bench": "collectives",
            "spec": self.spec.model_dump(mode="json"),
            "rows": [row.to_json() for row in self.rows],
            "fits": [each.to_json() for each in self.fits],
            "interface": self.interface,
            "skipped": self.skipped,
            "machine": self.machine,
        }


def run_collectives(spec: CollectivesSpec, *, out: Path | None, watch: Watch) -> CollectivesResult:
    """Measure; blocks until all ranks are done.

    Args:
        spec: what to measure, and where.
        out: keep the run directory there; with several numbers of workers, one in it for each.
        watch: called with what the ranks say of their progress.

    Raises:
        DrumlineError: a rank failed, or a collective gave a wrong result.
    """
    result = CollectivesResult(spec)
    for workers in spec.workers:
        request = {
            "collective": spec.collective,
            "rivals": spec.rivals,
            "sizes": list(spec.measured_sizes),
            "workers": workers,
            "rounds": spec.rounds,
            "budget_s": _BUDGET_S / len(spec.workers),
            "timeout_s": spec.timeout_s,
        }
        folder = out if out is None or len(spec.workers) == 1 else out / f"workers-{workers}"
        with probed(
            "drumline.probe.collectives",
            request,
            ranks=spec.nodes * workers,
            out=folder,
            plans=spec.node_plans,
            by_mpi=spec.uses("mpi"),  # the others, too: rivals take turns in the same processes
            watch=watch,
        ) as answers:
            rows = predict_rows(build_rows(spec.collective, answers, spec.node_plans))
            result.interface = answers[0]["interface"]
        result.rows += rows
        result.fits += fit_rows(rows)
    result.machine = describe_machine(sys.argv)
    return result
