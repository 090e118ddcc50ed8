"""The job with Hugging Face Accelerate, as its guide writes a loop.

torchrun --nproc-per-node 2 accelerate_job.py --data FOLDER --times PATH
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from job import CNN, LR, MOMENTUM, Digits, StepLog, arguments
from torch.utils.data import DataLoader


def main() -> None:
    args = arguments().parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(1234)
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    batch = args.batch // accelerator.num_processes
    loader = DataLoader(Digits(args.data), batch_size=batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    log = StepLog()
    while len(log.ends) < args.steps:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            log.mark()
            if len(log.ends) == args.steps:
                break
    if accelerator.is_main_process:
        log.write(args.times)
    accelerator.end_training()


if __name__ == "__main__":
    main()
