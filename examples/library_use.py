"""Drumline's aggregators in a torch.distributed program of your own, in two forms.

    form hook       DDP stays, its gradients go through `drumline.comm_hook(kind)`
    form wrapper    `drumline.DataParallel(module, kind)` in the place of DDP, and `finish()`

Both are trained beside plain DDP on the same batches, and the weights at the end are compared:

    drumline run -j 1x2 library_use.py
    drumline run -j 1x4 library_use.py --form wrapper --kind ring
    torchrun --nproc-per-node 2 library_use.py --form hook --kind all_gather
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

import drumline

TOLERANCE = 1e-5  # float32: the sums are taken in another order


def build_model(device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).to(device)


def train(parallel: nn.Module, device: torch.device, steps: int) -> torch.Tensor:
    """Train on batches of this rank's own; return all weights as one vector."""
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    random = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        inputs = torch.randn(32, 64, generator=random).to(device)
        labels = torch.randint(10, (32,), generator=random).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(inputs), labels).backward()
        if isinstance(parallel, drumline.DataParallel):
            parallel.finish()  # from here on every rank has the mean gradient
        optimizer.step()
    return nn.utils.parameters_to_vector(parallel.parameters()).detach()


def plain(device: torch.device) -> nn.Module:
    return DDP(build_model(device))


def with_hook(device: torch.device, kind: str) -> nn.Module:
    ddp = plain(device)
    ddp.register_comm_hook(*drumline.comm_hook(kind))
    return ddp


def with_wrapper(device: torch.device, kind: str) -> nn.Module:
    return drumline.DataParallel(build_model(device), kind)


FORMS = {"hook": with_hook, "wrapper": with_wrapper}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", choices=[*FORMS, "both"], default="both")
    parser.add_argument("--kind", default="chunked_ring", help="ring, chunked_ring, all_gather, …")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()

    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend)

    expected = train(plain(device), device, options.steps)
    worst = 0.0
    for name, build in FORMS.items():
        if options.form in (name, "both"):
            weights = train(build(device, options.kind), device, options.steps)
            difference = (weights - expected).abs().max().item()
            worst = max(worst, difference)
            print(f"{name}, {options.kind}: max difference to plain DDP {difference:.1e}")
    dist.destroy_process_group()
    if worst > TOLERANCE:
        raise SystemExit(f"the weights differ by {worst:.1e}, more than {TOLERANCE:.0e}")
    print(f"same weights after {options.steps} steps")


if __name__ == "__main__":
    main()
