"""A Hydra application: `python hydra_app.py` runs it once,
`python hydra_app.py --multirun` searches.
"""

import hydra
from omegaconf import DictConfig

import tuner


@hydra.main(version_base=None, config_path=".", config_name="hydra_app")
def train(config: DictConfig) -> float:
    trial = tuner.current_trial()
    loss = 1.0
    for epoch in range(5):
        loss = (config.lr - 0.1) ** 2 + config.units / 100 / (epoch + 1)
        trial.report(epoch, loss=loss)  # optional: for pruning
    return loss


if __name__ == "__main__":
    train()
