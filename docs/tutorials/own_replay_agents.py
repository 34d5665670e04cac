"""Your own agents that learn from a replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from envfleet.agents import DDDQN, SAC, Batch, OffPolicyAgent, OffPolicyConfig, ReplayBuffer, network_of


class RobustSAC(SAC):
    """SAC with critics fitted by Huber's loss, so that single large errors count less."""

    def critic_loss(self, values: Tensor, targets: Tensor) -> Tensor:
        return functional.huber_loss(values, targets.expand_as(values))


class SquaredDDDQN(DDDQN):
    """DDDQN with the squared error of Mnih et al. (2013) instead of Huber's loss."""

    def value_losses(self, values: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (values - targets).square()


class DQN(OffPolicyAgent[OffPolicyConfig]):
    """Plain deep Q-learning, for Discrete actions from 0: one network, no target."""

    config_class = OffPolicyConfig

    def _build(self) -> None:
        config = self.config
        self.use_replay(ReplayBuffer(config.capacity, self.packing.space, (), torch.int64, rng=self.random.replay))
        self._values = network_of(self.packing, config, int(self.action_space.n))
        self._optimizer = torch.optim.Adam(self._values.parameters(), config.learning_rate)
        self._networks["values"] = self._values
        self._learners["optimizer"] = self._optimizer

    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        return actions

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        best = self._values(inputs).argmax(dim=1).numpy()
        rng, chance = self.random.numpy, 0.1 if self.is_warm else 1.0
        drawn = rng.integers(int(self.action_space.n), size=len(best))
        return best if deterministic else np.where(rng.random(len(best)) < chance, drawn, best)

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        values = self._values(self.network_inputs(batch.observations))
        with torch.no_grad():
            following = self._values(self.network_inputs(batch.next_observations)).amax(dim=1)
            targets = batch.rewards + batch.discounts * following
        taken = values.gather(1, batch.actions[:, None]).squeeze(1)
        loss = functional.mse_loss(taken, targets)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"loss": loss, "value": taken.mean()}
