"""Tune a Lightning module: LightningReport reports what the module logs in each validation."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tuner
from tuner.integrations.lightning import LightningReport


class Regression(lightning.LightningModule):
    def __init__(self, units, lr):
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(2, units), nn.ReLU(), nn.Linear(units, 1))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)


def objective(trial):
    lightning.seed_everything(0)
    x = torch.rand(512, 2)
    data = DataLoader(TensorDataset(x, x.prod(dim=1, keepdim=True)), batch_size=64)
    trainer = lightning.Trainer(
        max_epochs=5,
        callbacks=[LightningReport("val_loss")],
        default_root_dir=trial.output_dir,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(trial["units"], trial["lr"]), data, data)


parameters = {"lr": tuner.Float(1e-4, 1e-1, log=True), "units": tuner.Int(8, 64)}
study = tuner.minimize(objective, parameters, trials=20, pruning="median", name="lightning")
print(study.best.parameters, study.best.value)
