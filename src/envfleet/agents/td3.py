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
from envfleet.agents.networks import make_target
from envfleet.agents.off_policy import CompiledCall, ContinuousAgent, ExplorationConfig
from envfleet.agents.replay import Batch

_Noise = Annotated[float, Interval(0, 2)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TD3Config(ExplorationConfig):
    """Hyperparameters of `TD3`; noise is in units of actions from -1 to 1.

    Attributes:
        exploration_noise: Standard deviation of the noise added to actions while acting.
        target_noise: Standard deviation of the noise added to the target policy's actions.
        target_noise_clip: Bound of that noise.
        policy_delay: Updates of the critics per update of the policy and of all targets.
        saturation_penalty: Weight of the mean square of actions before tanh, in the loss of the policy (Andrychowicz
            et al. 2017, arXiv:1707.01495, appendix A). Without it actions can settle at their bounds, where tanh has
            no gradient.
    """

    exploration_noise: _Noise = 0.1
    target_noise: _Noise = 0.2
    target_noise_clip: _Noise = 0.5
    policy_delay: Positive[int] = 2
    saturation_penalty: Annotated[float, Interval(0, 1000)] = 0.0


class TD3(ContinuousAgent[TD3Config]):
    """Learns a deterministic policy for continuous actions, and explores by adding noise to it."""

    config_class = TD3Config
    _num_noises = 1

    def _build(self) -> None:
        super()._build()  # actor and critics
        self._target_actor, self._target_actor_buffer = make_target(self._actor)
        self._target_critics, self._target_critic_buffer = make_target(self._critics)
        self._networks |= {"target_actor": self._target_actor, "target_critics": self._target_critics}

    def _choose(self, inputs: Tensor, noise: F32 | None) -> F32:
        if self._compiled is None:
            units: F32 = torch.tanh(self._actor(inputs)).cpu().numpy()
        else:
            units = np.tanh(compiled.act(self._acting_buffer.values, self._layers[0][0], np.asarray(inputs)))
        return units if noise is None else (units + self.config.exploration_noise * noise).clip(-1.0, 1.0)

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update."""
        config = self.config
        observations, next_observations = map(self.network_inputs, (batch.observations, batch.next_observations))

        with torch.no_grad():
            next_actions = torch.tanh(self._target_actor(next_observations))
            noise = config.target_noise * self.random.normal(next_actions)
            noise = noise.clamp(-config.target_noise_clip, config.target_noise_clip)
            next_values = self._target_critics(next_observations, (next_actions + noise).clamp(-1.0, 1.0)).amin(dim=0)
            targets = batch.rewards + batch.discounts * next_values
        values = self._critics(observations, batch.actions)
        critic_loss = self.critic_loss(values, targets)
        self._critic_optimizer.minimize(critic_loss)
        metrics = {"critic_loss": critic_loss, "value": values.mean()}
        if (self.num_updates + 1) % config.policy_delay:
            return metrics

        unsquashed = self._actor(observations)
        actor_loss = -self._critics.action_values(observations, torch.tanh(unsquashed), num_critics=1).mean()
        if config.saturation_penalty:
            actor_loss = actor_loss + config.saturation_penalty * unsquashed.square().mean()
        self._actor_optimizer.minimize(actor_loss)
        self._target_actor_buffer.soft_update(self._actor_optimizer, config.target_tau)
        self._target_critic_buffer.soft_update(self._critic_optimizer, config.target_tau)
        return {**metrics, "actor_loss": actor_loss}

    # ------------------------------------------------------------------ the same, compiled

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[CompiledCall]:
        (actor, critics), values, config = self._layers, self._critic_optimizer.values, self.config
        noise = (config.target_noise, config.target_noise_clip)
        settings = _Settings(config.target_tau, *noise, config.saturation_penalty)
        shared = (self._target_actor_buffer.values, self._target_critic_buffer.values, settings, self._work)
        critic_arguments = (batch, noises[0], self._critic_optimizer.next_step(critics), actor[0], *shared)
        calls: list[CompiledCall] = [(("critic_loss", "value"), _fit_critics, critic_arguments)]
        if (self.num_updates + 1) % config.policy_delay == 0:
            arguments = (batch.observations, self._actor_optimizer.next_step(actor), values, critics[0], *shared)
            calls.append((("actor_loss",), _fit_actor, arguments))
        return calls


class _Settings(NamedTuple):
    tau: float
    noise: float
    noise_clip: float
    penalty: float


@compiled.compiled_without_gil
def _fit_critics(
    batch: Batch, noise: F32, critics: AdamStep, layers: NDArray[np.int64], target_actor: F32, target_critics: F32,
    settings: _Settings, work: Workspace,
) -> tuple[float, float]:  # fmt: skip
    unsquashed = compiled.forward(target_actor, layers, batch.next_observations, work.passes[0])
    next_actions = np.empty_like(noise)
    for row in range(len(noise)):
        for column in range(noise.shape[1]):
            shift = min(max(settings.noise * noise[row, column], -settings.noise_clip), settings.noise_clip)
            next_actions[row, column] = min(max(math.tanh(unsquashed[row, column]) + shift, -1.0), 1.0)
    inputs = compiled.join(batch.next_observations, next_actions)
    targets = compiled.min_values(target_critics, critics.layers, inputs, work)
    for row in range(len(targets)):
        targets[row] = batch.rewards[row] + batch.discounts[row] * targets[row]
    inputs = compiled.join(batch.observations, batch.actions)
    return compiled.fit_critics(critics, inputs, targets, work)


@compiled.compiled_without_gil
def _fit_actor(
    observations: F32, actor: AdamStep, critics: F32, critic: NDArray[np.int64], target_actor: F32, target_critics: F32,
    settings: _Settings, work: Workspace,
) -> tuple[float]:  # fmt: skip
    unsquashed = compiled.forward(actor.values, actor.layers[0], observations, work.passes[0])
    (count, size), loss = unsquashed.shape, 0.0
    actions, of_values = np.empty((count, size), np.float32), np.empty((count, 1), np.float32)
    for row in range(count):
        of_values[row, 0] = -1.0 / count
        for column in range(size):
            actions[row, column] = math.tanh(unsquashed[row, column])
    inputs, of_actions = compiled.join(observations, actions), np.empty((count, size), np.float32)
    values = compiled.forward(critics, critic, inputs, work.passes[1])
    compiled.backward(critics, critic, inputs, work, 1, of_values, actor.gradients[:0], of_actions)
    weight = settings.penalty / (count * size)
    for row in range(count):
        loss -= values[row, 0] / count
        for column in range(size):
            output, action = unsquashed[row, column], actions[row, column]
            loss += weight * output * output
            of_actions[row, column] = of_actions[row, column] * (1 - action * action) + 2 * weight * output
    compiled.backward(actor.values, actor.layers[0], observations, work, 0, of_actions, actor.gradients, actions[:0])
    compiled.take_step(actor)
    compiled.soft_update(target_actor, actor.values, settings.tau)
    compiled.soft_update(target_critics, critics, settings.tau)
    return (loss,)
