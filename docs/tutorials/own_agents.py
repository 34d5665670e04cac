"""Your own agent, network and observer; see own-agents.md."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents import NetworkConfig, Rollout, RolloutAgent, network_of
from envfleet.training.events import Evaluated, Event, Observer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReinforceConfig(NetworkConfig):
    """Hyperparameters of `Reinforce`; `hidden`, `activation`, `layer_norm` and `network` come with NetworkConfig."""

    gamma: float = 0.99
    hidden: tuple[int, ...] = (32,)
    learning_rate: float = 1e-2


class Reinforce(RolloutAgent[ReinforceConfig]):
    """Makes actions likelier that were followed by more reward than usual (Williams 1992)."""

    config_class = ReinforceConfig

    def _build(self) -> None:
        actions: Any = self.action_space
        self._network = network_of(self.packing, self.config, int(actions.n)).to(self.device)
        self._optimizer = torch.optim.Adam(self._network.parameters(), self.config.learning_rate)
        self._networks = {"network": self._network}  # what checkpoints hold
        self._learners["optimizer"] = self._optimizer  # also needed for resuming

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        chances = self._network(inputs).softmax(dim=1)
        if deterministic:
            return chances.argmax(dim=1).cpu().numpy()
        return torch.multinomial(chances, 1, generator=self.random.torch).squeeze(1).cpu().numpy()

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Take one step up the policy gradient."""
        returns, total = np.zeros_like(rollout.rewards), np.zeros(rollout.rewards.shape[1])
        for step in reversed(range(len(returns))):  # rewards after the end of the rollout are left out
            total *= self.config.gamma * ~(rollout.terminated[step] | rollout.truncated[step])
            returns[step] = total = rollout.rewards[step] + total
        valid = np.flatnonzero(~rollout.is_reset)
        observations = self.pack(rollout.observations)
        inputs = self._inputs(observations.reshape(-1, *observations.shape[2:])[valid])
        actions = torch.from_numpy(rollout.actions.reshape(-1)[valid]).to(self.device)
        gains = torch.from_numpy(returns.reshape(-1)[valid]).float().to(self.device)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        loss = (nn.functional.cross_entropy(self._network(inputs), actions, reduction="none") * gains).mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.num_transitions += len(valid)
        self.num_updates += 1
        return {"loss": loss.item()}


def wide(space: spaces.Box) -> nn.Module:
    """Return a network from observations, `(N, size)`, to features, `(N, 64)`."""
    return nn.Sequential(nn.Linear(space.shape[0], 64), nn.SiLU())


class Printer(Observer):
    """Prints every evaluation."""

    def on_event(self, event: Event) -> None:
        """Print one line."""
        if isinstance(event, Evaluated):
            print(f"{event.transitions:,} transitions: balanced for {event.score:.0f} steps")
