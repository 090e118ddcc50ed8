"""Time the backends shm and mpi against gloo on this host: all-reduce, and a training step.

    python benchmarks/backends.py [--rounds 60] [--json PATH]

mpirun starts 2 and 4 ranks that form a group by each backend, and the groups take turns in the same
processes. Each operation starts after a barrier; its time is that of the slowest rank.

- `shm, in place`: the tensor lives in the shared memory, as DataParallel's buckets do.
- `shm`, `mpi`: a tensor of the caller's own.
- a step: forward, backward and gradients averaged, of the model `mlp` with 32 samples a rank.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from measure import Row, arguments, compare, report
from torch import nn

from drumline.comm import join_group
from drumline.comm.mpi.group import register_mpi
from drumline.comm.shm.group import ShmGroup
from drumline.launcher.mpirun import mpi_environment
from drumline.models import build_model
from drumline.parallel import DataParallel
from drumline.spec.parts import ModelSpec
from ranks import Job, Times, add_rank_option, leave, start_ranks, take_turns

RANKS = (2, 4)
SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "32 MiB": 2**25}
SLOW = 2**24  # above, a third of the rounds
GLOO, SHM, IN_PLACE, MPI = "gloo", "shm", "shm, in place", "mpi"
DDP_GLOO, DDP_SHM, OURS_SHM = "DDP, gloo", "DDP, shm", "DataParallel, shm"
SAMPLES = 32


def warm_race(jobs: dict[str, Job], rounds: int, shm: ShmGroup) -> Times:
    """Do every job once, and then take turns."""
    for job in jobs.values():
        job()
    return take_turns(jobs, rounds, shm)


def race_all_reduce(nbytes: int, rounds: int, groups: dict[str, dist.ProcessGroup]) -> Times:
    """Time all-reduce by each backend, on a tensor of zeros."""
    shm = groups[SHM]
    assert isinstance(shm, ShmGroup)
    shared, own = shm.allocate(nbytes // 4, torch.float32), torch.zeros(nbytes // 4)
    for tensor, group in ((shared, shm), *((own, group) for group in groups.values())):
        dist.all_reduce(tensor.fill_(1), group=group)
        if not torch.all(tensor == dist.get_world_size()):
            raise SystemExit("a backend gives a wrong sum")
    own.zero_(), shared.zero_()
    jobs: dict[str, Job] = {
        name: partial(dist.all_reduce, own, group=group) for name, group in groups.items()
    }
    jobs[IN_PLACE] = lambda: dist.all_reduce(shared, group=shm)
    return warm_race(jobs, rounds if nbytes < SLOW else max(1, rounds // 3), shm)


def race_steps(rounds: int, groups: dict[str, dist.ProcessGroup]) -> Times:
    """Time a step of the mlp by DDP on each backend and by our DataParallel on shm."""

    def model() -> nn.Module:
        return build_model(ModelSpec(name="mlp"), classes=10, seed=1, dtype=torch.float32)

    shm = groups[SHM]
    assert isinstance(shm, ShmGroup)
    ddp = nn.parallel.DistributedDataParallel
    ours = DataParallel(model(), "allreduce", group=shm)
    gloo_ddp = ddp(model(), process_group=groups[GLOO], gradient_as_bucket_view=True)
    shm_ddp = ddp(model(), process_group=shm, gradient_as_bucket_view=True)
    inputs, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(0, 10, (SAMPLES,))

    def step(net: nn.Module) -> None:
        net.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        if isinstance(net, DataParallel):
            net.finish()

    nets = {DDP_GLOO: gloo_ddp, DDP_SHM: shm_ddp, OURS_SHM: ours}
    jobs: dict[str, Job] = {name: partial(step, net) for name, net in nets.items()}
    return warm_race(jobs, rounds, shm)


def be_rank(rounds: int, path: Path) -> None:
    """Be one of the ranks that mpirun has started; rank 0 writes the times."""
    import mpi4py.MPI

    torch.set_num_threads(1)
    world = mpi4py.MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    store = dist.FileStore(str(path.with_suffix(".store")), ranks)
    join_group(store, rank=rank, world_size=ranks, backend="gloo", timeout_s=60)
    groups = {
        GLOO: dist.group.WORLD,
        SHM: dist.new_group(backend="shm"),
        MPI: dist.new_group(backend=register_mpi()),
    }
    times = {size: race_all_reduce(nbytes, rounds, groups) for size, nbytes in SIZES.items()}
    times["step of mlp"] = race_steps(rounds, groups)
    if rank == 0:
        path.write_text(json.dumps(times))
    mpi4py.MPI.Finalize()  # mpirun calls it a failure if a rank leaves without
    leave()


def measure(ranks: int, rounds: int) -> dict[str, Times]:
    """Start the ranks and return the times in ms, by case and rival."""
    mpirun = [str(Path(sys.executable).parent / "mpirun"), "-n", str(ranks), sys.executable]
    return start_ranks(mpirun, __file__, rounds, lambda folder: mpi_environment(folder, ranks))


def main() -> None:
    parser = arguments(__doc__, rounds=60)
    add_rank_option(parser)
    args = parser.parse_args()
    if args.be_rank is not None:
        be_rank(args.rounds, args.be_rank)
        return
    rows: list[Row] = []
    for ranks in RANKS:
        for size, times in measure(ranks, args.rounds).items():
            rival = GLOO if GLOO in times else DDP_GLOO
            rows += [
                compare(times, name, rival, case=f"{size}, {ranks} ranks", unit="ms")
                for name in times
                if name != rival
            ]
    note = (
        "All-reduce of float32 over all ranks of this host, and a training step; one thread a "
        "rank, a barrier before each operation, the slowest rank's time."
    )
    report("Backends over gloo", note, rows, args.json)


if __name__ == "__main__":
    main()
