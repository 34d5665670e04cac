"""TD3: twin delayed deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envfleet.agents import compiled
from envfleet.agents.compiled import F32, AdamStep, Workspace
from envfleet.agents.hyperparameters import Interval, Positive
from envfleet.agents.networks import target_of
from envfleet.agents.off_policy import ContinuousAgent, ExplorationConfig, UpdatePart
from envfleet.agents.replay import Batch

_Noise = Annotated[float, Interval(0, 2)]


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

    exploration_noise: _Noise = 0.1
    target_noise: _Noise = 0.2
    target_noise_clip: _Noise = 0.5
    policy_delay: Positive[int] = 2
    saturation_penalty: Annotated[float, Interval(0, 1000)] = 0.0


class TD3(ContinuousAgent[TD3Config]):
    """Learns one best continuous action; noise added to it explores."""

    config_class = TD3Config
    _num_noises = 1

    def _build(self) -> None:
        super()._build()  # of actor and critics
        self._target_actor, self._target_actor_parts = target_of(self._actor)
        self._target_critics, self._target_critic_parts = target_of(self._critics)
        self._networks |= {"target_actor": self._target_actor, "target_critics": self._target_critics}

    def _choose(self, inputs: Tensor, noise: F32 | None) -> F32:
        if self._compiled is None:
            units: F32 = torch.tanh(self._actor(inputs)).cpu().numpy()
        else:
            units = np.tanh(compiled.act(self._acts_by.values, self._layers[0][0], np.asarray(inputs)))
        return units if noise is None else (units + self.config.exploration_noise * noise).clip(-1.0, 1.0)

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update."""
        config = self.config
        observations, following = map(self.network_inputs, (batch.observations, batch.next_observations))

        with torch.no_grad():
            next_actions = torch.tanh(self._target_actor(following))
            noise = config.target_noise * self.random.normal(next_actions)
            noise = noise.clamp(-config.target_noise_clip, config.target_noise_clip)
            next_values = self._target_critics(following, (next_actions + noise).clamp(-1.0, 1.0)).amin(dim=0)
            goals = batch.rewards + batch.discounts * next_values
        values = self._critics(observations, batch.actions)
        critic_loss = self.critic_loss(values, goals)
        self._critic_optimizer.descend(critic_loss)
        figures = {"critic_loss": critic_loss, "value": values.mean()}
        if (self.num_updates + 1) % config.policy_delay:
            return figures

        free = self._actor(observations)
        actor_loss = -self._critics.judge(observations, torch.tanh(free), num_critics=1).mean()
        if config.saturation_penalty:
            actor_loss = actor_loss + config.saturation_penalty * free.square().mean()
        self._actor_optimizer.descend(actor_loss)
        self._target_actor_parts.follow(self._actor_optimizer, config.target_tau)
        self._target_critic_parts.follow(self._critic_optimizer, config.target_tau)
        return {**figures, "actor_loss": actor_loss}

    # ------------------------------------------------------------------ the same, compiled

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[UpdatePart]:
        (actor, critics), values, config = self._layers, self._critic_optimizer.values, self.config
        noise = (config.target_noise, config.target_noise_clip)
        settings = _Settings(config.target_tau, *noise, config.saturation_penalty)
        targets = (self._target_actor_parts.values, self._target_critic_parts.values, settings, self._work)
        learned = self._critic_optimizer.next_step(critics)
        of_critics = (batch, noises[0], learned, actor[0], *targets)
        parts: list[UpdatePart] = [(("critic_loss", "value"), _fit_critics, of_critics)]
        if (self.num_updates + 1) % config.policy_delay == 0:
            arguments = (batch.observations, self._actor_optimizer.next_step(actor), values, critics[0], *targets)
            parts.append((("actor_loss",), _fit_actor, arguments))
        return parts


class _Settings(NamedTuple):
    tau: float
    noise: float
    noise_clip: float
    penalty: float


@compiled.compiled_without_gil
def _fit_critics(
    sample: Batch, noise: F32, critics: AdamStep, layers: NDArray[np.int64], target_actor: F32, target_critics: F32,
    settings: _Settings, work: Workspace,
) -> tuple[float, float]:  # fmt: skip
    free = compiled.forward(target_actor, layers, sample.next_observations, work.passes[0])
    next_actions = np.empty_like(noise)
    for row in range(len(noise)):
        for column in range(noise.shape[1]):
            shift = min(max(settings.noise * noise[row, column], -settings.noise_clip), settings.noise_clip)
            next_actions[row, column] = min(max(math.tanh(free[row, column]) + shift, -1.0), 1.0)
    inputs = compiled.join(sample.next_observations, next_actions)
    goals = compiled.min_values(target_critics, critics.layers, inputs, work)
    for row in range(len(goals)):
        goals[row] = sample.rewards[row] + sample.discounts[row] * goals[row]
    inputs = compiled.join(sample.observations, sample.actions)
    return compiled.fit_critics(critics, inputs, goals, work)


@compiled.compiled_without_gil
def _fit_actor(
    observations: F32, actor: AdamStep, critics: F32, critic: NDArray[np.int64], target_actor: F32, target_critics: F32,
    settings: _Settings, work: Workspace,
) -> tuple[float]:  # fmt: skip
    free = compiled.forward(actor.values, actor.layers[0], observations, work.passes[0])
    (count, size), loss = free.shape, 0.0
    actions, of_values = np.empty((count, size), np.float32), np.empty((count, 1), np.float32)
    for row in range(count):
        of_values[row, 0] = -1.0 / count
        for column in range(size):
            actions[row, column] = math.tanh(free[row, column])
    inputs, slopes = compiled.join(observations, actions), np.empty((count, size), np.float32)
    values = compiled.forward(critics, critic, inputs, work.passes[1])
    compiled.backward(critics, critic, inputs, work, 1, of_values, actor.gradients[:0], slopes)
    weight = settings.penalty / (count * size)
    for row in range(count):
        loss -= values[row, 0] / count
        for column in range(size):
            saturation, action = free[row, column], actions[row, column]
            loss += weight * saturation * saturation
            slopes[row, column] = slopes[row, column] * (1 - action * action) + 2 * weight * saturation
    compiled.backward(actor.values, actor.layers[0], observations, work, 0, slopes, actor.gradients, slopes[:0])
    compiled.take_step(actor)
    compiled.follow(target_actor, actor.values, settings.tau)
    compiled.follow(target_critics, critics, settings.tau)
    return (loss,)
