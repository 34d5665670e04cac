"""SAC: soft actor-critic with a temperature that finds itself (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from envfleet.agents.descent import Adam, Follower, descend
from envfleet.agents.hyperparameters import check_above
from envfleet.agents.networks import GaussianActor, critics_of, target_of
from envfleet.agents.off_policy import ContinuousAgent, ExplorationConfig
from envfleet.agents.replay import Batch
from envfleet.agents.squashing import propose


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACConfig(ExplorationConfig):
    """Hyperparameters of `SAC`.

    Attributes:
        target_entropy: Of the policy, in nats, over actions from -1 to 1; `None` for minus the number of action
            elements.
        initial_temperature: Weight of the entropy at first.
    """

    target_entropy: float | None = None
    initial_temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above(self, 0, "initial_temperature", "noise_length")


class Temperature(nn.Module):
    """The logarithm of the weight of the entropy."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


class SAC(ContinuousAgent[SACConfig]):
    """Learns a distribution over continuous actions that earns much and stays as random as it can."""

    name = "SAC"
    config_class = SACConfig

    def _build(self) -> None:
        super()._build()
        config, size = self.config, self._bounds.size
        self._actor = GaussianActor(self.packing, config, size).to(self.device)
        self._critics = critics_of(self.packing, config, size).to(self.device)
        self._targets = target_of(self._critics)
        self._follower = Follower(self._targets, self._critics)
        self._temperature = Temperature(config.initial_temperature).to(self.device)
        self._target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        self._actor_optimiser = Adam(self._actor.parameters(), config.learning_rate)
        self._critic_optimiser = Adam(self._critics.parameters(), config.learning_rate)
        self._temperature_optimiser = Adam(self._temperature.parameters(), config.learning_rate)
        self._networks = {
            "actor": self._actor,
            "critics": self._critics,
            "targets": self._targets,
            "temperature": self._temperature,
        }
        self._learners |= {
            "actor_optimiser": self._actor_optimiser,
            "critic_optimiser": self._critic_optimiser,
            "temperature_optimiser": self._temperature_optimiser,
        }

    def _units(self, inputs: Tensor, noise: Tensor | None) -> Tensor:
        means, log_stds = self._actor(inputs)
        return torch.tanh(means if noise is None else means + log_stds.exp() * noise)

    def _outputs(self) -> nn.Module:
        return self._actor.body  # means come first

    def _propose(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions that gradients flow through, `(B, size)`, and the logarithms of their densities, `(B,)`."""
        outputs = self._actor.body(inputs)
        return propose(outputs, self.random.normal(outputs[:, : self._bounds.size]))

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        config = self.config
        observations, following = (self.packing.rows(part) for part in (batch.observations, batch.next_observations))
        alpha = self._temperature.log_alpha.detach().exp()

        with torch.no_grad():
            next_actions, next_log_probs = self._propose(following)
            next_values = self._targets(following, next_actions).amin(dim=0) - alpha * next_log_probs
            goals = batch.rewards + batch.discounts * next_values
        values = self._critics(observations, batch.actions)
        critic_loss = (values - goals).square().mean()  # half of the sum of both
        descend(self._critic_optimiser, critic_loss, config.max_grad_norm)

        actions, log_probs = self._propose(observations)
        actor_loss = (alpha * log_probs - self._critics.judge(observations, actions).min(dim=0).values).mean()
        descend(self._actor_optimiser, actor_loss, config.max_grad_norm)

        entropy = -log_probs.detach().mean()
        self._temperature_optimiser.step([entropy - self._target_entropy])  # the loss is log_alpha times that
        self._follower.step(config.target_tau)
        return {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "temperature": alpha,
            "entropy": entropy,
            "value": values.mean(),
        }
