"""TD3: twin delayed deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from envfleet.agents.descent import Adam, Follower, descend
from envfleet.agents.hyperparameters import check_above, check_between
from envfleet.agents.networks import critics_of, network_of, target_of
from envfleet.agents.off_policy import ContinuousAgent, ExplorationConfig
from envfleet.agents.replay import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3Config(ExplorationConfig):
    """Hyperparameters of `TD3`; noise is in units of actions from -1 to 1.

    Attributes:
        exploration_noise: Standard deviation of the noise added to actions while acting.
        target_noise: Standard deviation of the noise added to the target policy's actions.
        target_noise_clip: The most that noise may be.
        policy_delay: Updates of the critics for one of the policy and of all targets.
        saturation_penalty: Weight of the mean square of what the tanh of actions is taken of, in the loss of the
            policy (Andrychowicz et al. 2017, arXiv:1707.01495, appendix A). Without it actions can settle at their
            bounds, where the tanh has no slope to learn by.
    """

    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2
    saturation_penalty: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(self, 0, 2, "exploration_noise", "target_noise", "target_noise_clip")
        check_above(self, 0, "policy_delay", "noise_length")
        check_between(self, 0, 1000, "saturation_penalty")


class TD3(ContinuousAgent[TD3Config]):
    """Learns one best continuous action; noise added to it explores."""

    name = "TD3"
    config_class = TD3Config

    def _build(self) -> None:
        super()._build()
        config, size = self.config, self._bounds.size
        self._actor = network_of(self.packing, config, size).to(self.device)
        self._critics = critics_of(self.packing, config, size).to(self.device)
        self._target_actor, self._target_critics = target_of(self._actor), target_of(self._critics)
        self._actor_follower = Follower(self._target_actor, self._actor)
        self._critic_follower = Follower(self._target_critics, self._critics)
        self._actor_optimiser = Adam(self._actor.parameters(), config.learning_rate)
        self._critic_optimiser = Adam(self._critics.parameters(), config.learning_rate)
        self._networks = {
            "actor": self._actor,
            "critics": self._critics,
            "target_actor": self._target_actor,
            "target_critics": self._target_critics,
        }
        self._learners |= {"actor_optimiser": self._actor_optimiser, "critic_optimiser": self._critic_optimiser}

    def _units(self, inputs: Tensor, noise: Tensor | None) -> Tensor:
        actions = torch.tanh(self._actor(inputs))
        return actions if noise is None else (actions + self.config.exploration_noise * noise).clamp(-1.0, 1.0)

    def _outputs(self) -> nn.Module:
        return self._actor

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        config = self.config
        observations, following = (self.packing.rows(part) for part in (batch.observations, batch.next_observations))

        with torch.no_grad():
            next_actions = torch.tanh(self._target_actor(following))
            noise = config.target_noise * self.random.normal(next_actions)
            noise = noise.clamp(-config.target_noise_clip, config.target_noise_clip)
            next_values = self._target_critics(following, (next_actions + noise).clamp(-1.0, 1.0)).amin(dim=0)
            goals = batch.rewards + batch.discounts * next_values
        values = self._critics(observations, batch.actions)
        critic_loss = (values - goals).square().mean()  # half of the sum of both
        descend(self._critic_optimiser, critic_loss, config.max_grad_norm)
        figures = {"critic_loss": critic_loss, "value": values.mean()}
        if (self.num_updates + 1) % config.policy_delay:
            return figures

        free = self._actor(observations)
        actor_loss = -self._critics.judge(observations, torch.tanh(free), num_critics=1).mean()
        if config.saturation_penalty:
            actor_loss = actor_loss + config.saturation_penalty * free.square().mean()
        descend(self._actor_optimiser, actor_loss, config.max_grad_norm)
        self._actor_follower.step(config.target_tau)
        self._critic_follower.step(config.target_tau)
        return {**figures, "actor_loss": actor_loss}
