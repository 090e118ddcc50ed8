"""Lab 1: the training loop, which decides what a step sees. TASK.md, section 4.

python training.py        trains the same model by all three, on data made up here
"""

import torch
from optimizers import GD, SGD, Adam
from torch import nn


def train(model, loss_fn, optimizer, inputs, targets, *, steps, batch_size):
    """Take `steps` steps with the optimizer, and return the list of their losses.

    loss_fn(model(x), y) is the MEAN loss of the samples in x. What a step sees makes the method:

        GD           all samples, in every step; batch_size does not matter
        SGD, Adam    batch_size samples, drawn at random, others in each step
    """
    losses = []
    for _ in range(steps):
        if isinstance(optimizer, GD):
            batch = torch.arange(len(inputs))
        else:
            batch = torch.randperm(len(inputs))[:batch_size]
        optimizer.zero_grad()
        loss = loss_fn(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(0)
    inputs = torch.randn(512, 20)
    targets = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
    for optimizer_class, lr in ((GD, 0.5), (SGD, 0.1), (Adam, 0.01)):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = optimizer_class(model.parameters(), lr=lr)
        losses = train(
            model,
            nn.functional.cross_entropy,
            optimizer,
            inputs,
            targets,
            steps=100,
            batch_size=32,
        )
        print(f"{optimizer_class.__name__:<5} loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
