"""Katib's controller of `enas`, written for the comparison in `architectures.py`: an LSTM that
samples a network layer by layer, trained by REINFORCE between requests.

Pham et al. 2018 (ENAS), macro search, with the settings and the reward of Katib's service: every
sample gets the mean of all succeeded trials. Needs torch, which only this benchmark imports.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

HIDDEN, TEMPERATURE, TANH = 64, 5.0, 2.25
TRAIN_STEPS, RATE, DECAY, ENTROPY = 50, 5e-5, 0.999, 1e-5
SKIP_TARGET, SKIP_WEIGHT = 0.4, 0.8
Architecture = list[list[int]]


class Controller:
    """operations: how many there are for each layer."""

    def __init__(self, layers: int, operations: int, seed: int) -> None:
        self._layers = layers
        self._random = torch.Generator().manual_seed(seed)
        shapes = {
            "first": (1, HIDDEN),
            "operation": (operations, HIDDEN),
            "lstm": (4 * HIDDEN, 2 * HIDDEN),
            "logits": (operations, HIDDEN),
            "one": (HIDDEN, HIDDEN),
            "other": (HIDDEN, HIDDEN),
            "attention": (2, HIDDEN),
        }
        self._w = {
            name: (torch.rand(shape, generator=self._random) * 0.2 - 0.1).requires_grad_()
            for name, shape in shapes.items()
        }
        self._optimizer = torch.optim.Adam(self._w.values(), lr=RATE)
        self._baseline = 0.0

    def sample(self) -> Architecture:
        with torch.no_grad():
            return self._sampled()[0]

    def train(self, reward: float) -> None:
        """Take the training steps of one request, with the mean of all trials as the reward."""
        for _ in range(TRAIN_STEPS):
            _, surprise, entropy, penalty = self._sampled()
            gain = reward + ENTROPY * float(entropy)
            self._baseline -= (1 - DECAY) * (self._baseline - gain)
            loss = surprise * (gain - self._baseline) + SKIP_WEIGHT * penalty
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()

    def _sampled(self) -> tuple[Architecture, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a network, its negative log probability, the entropy of the choices, and how far
        the probabilities of connections are from the target.
        """
        w, network = self._w, Architecture()
        surprises, entropies, penalties = [], [], []
        state = cell = torch.zeros(1, HIDDEN)
        anchors: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []
        target = torch.tensor([1 - SKIP_TARGET, SKIP_TARGET])

        def choose(logits: torch.Tensor) -> torch.Tensor:
            logits = TANH * torch.tanh(logits / TEMPERATURE)
            drawn = torch.multinomial(logits.softmax(1), 1, generator=self._random)[:, 0]
            surprises.append(F.cross_entropy(logits, drawn, reduction="sum"))
            entropies.append(-(logits.softmax(1) * logits.log_softmax(1)).sum())
            return drawn

        inputs = w["first"]
        for layer in range(self._layers):
            state, cell = self._step(inputs, state, cell)
            drawn = choose(state @ w["logits"].T)
            inputs = w["operation"][drawn]
            state, cell = self._step(inputs, state, cell)
            joined: list[int] = []
            if layer:
                query = torch.tanh(torch.cat(keys) + state @ w["other"].T) @ w["attention"].T
                chosen = choose(query)
                shares = (TANH * torch.tanh(query / TEMPERATURE)).softmax(1)
                penalties.append((shares * (shares / target).log()).sum())
                joined = chosen.tolist()
                inputs = (chosen.float() @ torch.cat(anchors) / (1 + sum(joined)))[None]
            else:
                inputs = w["first"]
            anchors.append(state)
            keys.append(state @ w["one"].T)
            network.append([int(drawn), *joined])
        penalty = torch.stack(penalties).mean() if penalties else torch.zeros(())
        return network, torch.stack(surprises).sum(), torch.stack(entropies).sum(), penalty

    def _step(
        self, x: torch.Tensor, state: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates = (torch.cat([x, state], dim=1) @ self._w["lstm"].T).chunk(4, dim=1)
        take, forget, out = (gate.sigmoid() for gate in gates[:3])
        cell = take * gates[3].tanh() + forget * cell
        return out * cell.tanh(), cell
