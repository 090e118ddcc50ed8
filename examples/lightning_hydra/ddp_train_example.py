"""Lightning trains, Hydra reads the parameters, Drumline launches (and averages, if asked to).

    python ddp_train_example.py max_epochs=2                                        one process
    drumline run -j 1x2 ddp_train_example.py strategy=ddp devices=2 max_epochs=1    two workers
    drumline run -j 1x2 ddp_train_example.py devices=2 comm_hook=chunked_ring       by a ring

`devices` is the number of workers per node and `num_nodes` the number of nodes: `-j 2x4` goes with
`num_nodes=2 devices=4`. Add `accelerator=cpu` where there are GPUs, but fewer than workers.

Needs: pip install 'drumline[lightning]'
"""

import hydra
import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import drumline
from drumline.comm import Meter
from drumline.data import Split, build_dataset
from drumline.spec.data import DataSpec


class LitNet(pl.LightningModule):
    """Three fully connected layers."""

    def __init__(self, hidden1: int, hidden2: int, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, hidden1),
            nn.ReLU(),
            nn.Linear(hidden1, hidden2),
            nn.ReLU(),
            nn.Linear(hidden2, 10),
        )

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["loss"]
        self.print(f"epoch {self.current_epoch}: loss {loss:.4f}")

    def test_step(self, batch: list[Tensor], batch_index: int) -> None:
        inputs, labels = batch
        right = (self.net(inputs).argmax(1) == labels).float().mean()
        self.log("accuracy", right, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class HookOnCPU(pl.Callback):
    """Lightning registers a DDPStrategy's hook on GPUs only; this does it on the CPU."""

    def on_train_start(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        strategy = trainer.strategy
        if strategy.root_device.type == "cpu":
            strategy.model.register_comm_hook(strategy._ddp_comm_state, strategy._ddp_comm_hook)


def build_strategy(cfg: DictConfig, meter: Meter) -> Strategy | str:
    if cfg.comm_hook is None:
        return cfg.strategy
    state, hook = drumline.comm_hook(cfg.comm_hook, meter=meter)
    return DDPStrategy(ddp_comm_state=state, ddp_comm_hook=hook)


def build_loader(split: Split, batch: int, *, shuffle: bool) -> DataLoader:
    tensors = TensorDataset(*split.batch(np.arange(len(split))))
    return DataLoader(tensors, batch_size=batch, shuffle=shuffle)


@hydra.main(version_base="1.3", config_path=".", config_name="ddp_train_example")
def main(cfg: DictConfig) -> None:
    pl.seed_everything(cfg.seed, verbose=False)
    digits = build_dataset(DataSpec(name="mnist-mini"), seed=cfg.seed, dtype=torch.float32)
    model = LitNet(cfg.hidden1, cfg.hidden2, cfg.lr)
    meter = Meter()
    trainer = pl.Trainer(
        max_epochs=cfg.max_epochs,
        accelerator=cfg.accelerator,
        devices=cfg.devices,
        num_nodes=cfg.num_nodes,
        strategy=build_strategy(cfg, meter),
        callbacks=[HookOnCPU()] if cfg.comm_hook else [],
        # Leave nothing behind, print only what we print.
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, build_loader(digits.train, cfg.batch, shuffle=True))
    results = trainer.test(model, build_loader(digits.test, 250, shuffle=False), verbose=False)
    if trainer.is_global_zero:
        print(f"test accuracy {results[0]['accuracy']:.1%}, world size {trainer.world_size}")
        if meter.spans:
            print(f"{cfg.comm_hook} averaged {len(meter.spans)} buckets of gradients")


if __name__ == "__main__":
    main()
