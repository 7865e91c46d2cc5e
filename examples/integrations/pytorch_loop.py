"""Tune a PyTorch training loop: report each epoch, and continue
from a checkpoint after an interruption.
"""

import torch
from torch import nn

import tuner


def objective(trial):
    torch.manual_seed(0)
    x = torch.rand(512, 2)
    y = (x[:, :1] * x[:, 1:]).sin()
    model = nn.Sequential(nn.Linear(2, trial["units"]), nn.ReLU(), nn.Linear(trial["units"], 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=trial["lr"])
    first = 0
    checkpoint = trial.checkpoint_dir / "last.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, 20):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            checkpoint,
        )
        trial.report(epoch, loss=loss)  # raises tuner.Pruned when the trial is to stop


parameters = {"lr": tuner.Float(1e-4, 1e-1, log=True), "units": tuner.Int(8, 64)}
study = tuner.minimize(
    objective, parameters, trials=20, parallelism=2, pruning="median", name="pytorch-loop"
)
print(study.best.parameters, study.best.value)
