"""Katib's controller of `enas`, written for the comparison in `architectures.py`: an LSTM that
samples a network layer by layer, trained by REINFORCE between requests.

Pham et al. 2018 (ENAS), macro search, with the settings and the reward of Katib's service: every
sample gets the mean of all succeeded trials. Several controllers, one per seed, are computed
together: they share nothing, but a step takes as long as that of one. Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

HIDDEN, TEMPERATURE, TANH = 64, 5.0, 2.25
TRAIN_STEPS, RATE, DECAY, ENTROPY = 50, 5e-5, 0.999, 1e-5
SKIP_TARGET, SKIP_WEIGHT = 0.4, 0.8
Architecture = list[list[int]]


class Controllers:
    """One controller per seed. operations: how many there are for each layer."""

    def __init__(self, layers: int, operations: int, seeds: Sequence[int]) -> None:
        torch.set_num_threads(1)
        self._layers, self._count = layers, len(seeds)
        shapes = {
            "first": (1, HIDDEN),
            "operation": (operations, HIDDEN),
            "lstm": (2 * HIDDEN, 4 * HIDDEN),
            "logits": (HIDDEN, operations),
            "one": (HIDDEN, HIDDEN),
            "other": (HIDDEN, HIDDEN),
            "attention": (HIDDEN, 2),
        }
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._w: dict[str, torch.Tensor] = {}
        for name, shape in shapes.items():
            drawn = torch.stack([torch.rand(shape, generator=source) for source in sources])
            self._w[name] = (drawn * 0.2 - 0.1).requires_grad_()
        self._random = torch.Generator().manual_seed(sum(seeds))
        self._optimizer = torch.optim.Adam(self._w.values(), lr=RATE)
        self._baselines = torch.zeros(self._count)

    def sample(self) -> list[Architecture]:
        """Return an architecture of each controller."""
        with torch.no_grad():
            entries = self._sampled()[0]
        each = zip(*(entry.tolist() for entry in entries), strict=True)
        return [list(architecture) for architecture in each]

    def train(self, rewards: Sequence[float]) -> None:
        """Take the training steps of one request; the rewards are the means of all trials."""
        given = torch.tensor(rewards)
        for _ in range(TRAIN_STEPS):
            _, surprises, entropies, penalties = self._sampled()
            gains = given + ENTROPY * entropies.detach()
            self._baselines -= (1 - DECAY) * (self._baselines - gains)
            losses = surprises * (gains - self._baselines) + SKIP_WEIGHT * penalties
            self._optimizer.zero_grad()
            losses.sum().backward()
            self._optimizer.step()

    def _sampled(self) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the entries of a network, its negative log probability, the entropy of the
        choices, and how far the probabilities of connections are from the target.
        """
        w, count = self._w, self._count
        entries: list[torch.Tensor] = []
        surprises = torch.zeros(count)
        entropies, penalties = torch.zeros(count), torch.zeros(count)
        state = cell = torch.zeros(count, 1, HIDDEN)
        anchors: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []
        target = torch.tensor([1 - SKIP_TARGET, SKIP_TARGET]).log()
        inputs = w["first"]
        for layer in range(self._layers):
            state, cell = self._step(inputs, state, cell)
            drawn, logs = self._chosen(state @ w["logits"])
            surprises = surprises - _of(logs, drawn)
            entropies = entropies - (logs.exp() * logs).sum((1, 2))
            entry = [drawn]
            inputs = w["operation"][torch.arange(count), drawn[:, 0]][:, None]
            state, cell = self._step(inputs, state, cell)
            inputs = w["first"]
            if layer:
                query = torch.tanh(torch.cat(keys, dim=1) + state @ w["other"]) @ w["attention"]
                joined, logs = self._chosen(query)
                surprises = surprises - _of(logs, joined)
                entropies = entropies - (logs.exp() * logs).sum((1, 2))
                penalties = penalties + (logs.exp() * (logs - target)).sum((1, 2))
                entry.append(joined)
                of_joined = joined.float()[:, None] @ torch.cat(anchors, dim=1)
                inputs = of_joined / (1 + joined.sum(1))[:, None, None]
            anchors.append(state)
            keys.append(state @ w["one"])
            entries.append(torch.cat(entry, dim=1))
        pairs = max(1, self._layers - 1)
        return entries, surprises, entropies, penalties / pairs

    def _chosen(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a choice for each row, and the log probabilities."""
        logs = (TANH * torch.tanh(logits / TEMPERATURE)).log_softmax(2)
        flat = logs.detach().exp().flatten(0, 1)
        drawn = torch.multinomial(flat, 1, generator=self._random)
        return drawn.view(logits.shape[:2]), logs

    def _step(
        self, x: torch.Tensor, state: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates = (torch.cat([x, state], dim=2) @ self._w["lstm"]).chunk(4, dim=2)
        take, forget, out = (gate.sigmoid() for gate in gates[:3])
        cell = take * gates[3].tanh() + forget * cell
        return out * cell.tanh(), cell


def _of(logs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the log probability of all that each controller has chosen."""
    return logs.gather(2, chosen[:, :, None]).sum((1, 2))
