"""What `drumline stacks` prints: where each rank of a running script is, here or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from drumline.cli.app import print_json, print_text
from drumline.cluster.spec import find_cluster, known_clusters
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.launcher.activity import RankActivity, look_at_ranks
from drumline.launcher.hang import explain_waits, say_stacks
from drumline.launcher.runs import RUNS
from drumline.launcher.stacks import Stacks, ask_stacks, observed_ranks

Found = tuple[Sequence[RankActivity], Mapping[int, Stacks]]
"""what each rank does, and where it is"""


def stacks_command(name: str, which: str | None, *, whole: bool, as_json: bool) -> None:
    """Run `drumline stacks`: tell where each rank of a run or of a cluster's job is."""
    ranks, stacks = _find(name, which)
    if as_json:
        waits, rank = explain_waits(ranks, stacks) or (None, None)
        places = [_plain(each, stacks[each.status.rank]) for each in ranks]
        print_json({"waits": waits, "rank": rank, "ranks": places})
    else:
        print_text(Console(), say_stacks(ranks, stacks, whole=whole))


def _find(name: str, which: str | None) -> Found:
    """Ask the ranks of a run on this machine; of a cluster's job where there is no such run."""
    if which is not None:
        return _of_job(name, which)
    try:
        run = RunDir.open(name, root=RUNS)
    except UsageError:
        if not known_clusters():
            raise
        return _of_job(name, which)
    if not (ranks := observed_ranks(run)):
        raise UsageError(_NO_SIGN.format(name=run.path.name, where="this machine", start="run"))
    return look_at_ranks(run, ranks), ask_stacks(run, ranks)


def _of_job(job: str, which: str | None) -> Found:
    from drumline.cli.cluster_display import print_note
    from drumline.cluster.jobs.submit import ask_job_stacks
    from drumline.cluster.ssh.fleet import Fleet, connected, run_on

    spec, home = find_cluster(which)

    async def ask(fleet: Fleet) -> Found:
        return await ask_job_stacks(fleet.remotes, job)

    ranks, stacks = run_on(connected(spec, home, note=print_note), ask)
    if not ranks:
        raise UsageError(_NO_SIGN.format(name=job, where=spec.name, start="submit"))
    return ranks, stacks


_NO_SIGN = (
    "{name}: there is no sign of a rank that is observed on {where}; start a script with drumline "
    "{start}, and without --no-ledger"
)


def _plain(rank: RankActivity, stacks: Stacks) -> dict[str, object]:
    frames = [{"file": f.path, "line": f.line, "function": f.function} for f in stacks.main]
    doing = rank.status.doing
    return {"rank": stacks.rank, "silent": stacks.silent, "doing": doing, "main": frames}
