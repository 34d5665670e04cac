"""SAC: soft actor-critic with automatic temperature tuning (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from envfleet.agents import compiled
from envfleet.agents.compiled import F32, AdamStep, Workspace
from envfleet.agents.hyperparameters import Positive
from envfleet.agents.networks import make_target
from envfleet.agents.off_policy import CompiledCall, ContinuousAgent, ExplorationConfig
from envfleet.agents.optimizer import Adam
from envfleet.agents.replay import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACConfig(ExplorationConfig):
    """Hyperparameters of `SAC`.

    Attributes:
        target_entropy: Target entropy of the policy in nats, over actions from -1 to 1; `None` for minus the number of
            action elements.
        initial_temperature: Initial weight of the entropy.
    """

    target_entropy: float | None = None
    initial_temperature: Positive[float] = 1.0


LOG_STD_RANGE = (-5.0, 2.0)
_LOG_STD_CENTER, _LOG_STD_SCALE = sum(LOG_STD_RANGE) / 2, (LOG_STD_RANGE[1] - LOG_STD_RANGE[0]) / 2
_METRIC_NAMES = ("critic_loss", "actor_loss", "temperature", "entropy", "value")


def split_outputs(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations, `(N, size)` each, of outputs of the actor, `(N, 2 * size)`."""
    means, raw = outputs.chunk(2, dim=1)
    return means, _LOG_STD_CENTER + _LOG_STD_SCALE * torch.tanh(raw)


def sample_actions(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions of a squashed normal distribution; gradients flow through both results.

    Args:
        outputs: Outputs of the actor, `(N, 2 * size)`.
        noise: Standard normal noise, `(N, size)`.

    Returns:
        Actions, `(N, size)`, and their log-densities, `(N,)` (Haarnoja et al. 2018, appendix C).
    """
    means, log_stds = split_outputs(outputs)
    unsquashed = means + log_stds.exp() * noise
    log_density = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    # Logarithm of the derivative of tanh, 1 - tanh(x)^2, in a form that stays exact for large x.
    log_derivative = 2 * (math.log(2) - unsquashed - functional.softplus(-2 * unsquashed))
    return torch.tanh(unsquashed), (log_density - log_derivative).sum(dim=1)


class SAC(ContinuousAgent[SACConfig]):
    """Soft actor-critic: learns a distribution of continuous actions with high return and high entropy."""

    config_class = SACConfig
    compiled_methods = (*ContinuousAgent.compiled_methods, "_sample_actions")
    _num_outputs = 2  # see `split_outputs`
    _num_noises = 2

    def _build(self) -> None:
        super()._build()  # actor and critics
        config, size = self.config, self._bounds.size
        self._target_critics, self._target_buffer = make_target(self._critics)
        self._temperature = nn.ParameterDict({"log_alpha": torch.tensor(math.log(config.initial_temperature))})
        self._temperature.to(self.device)
        self._target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        self._temperature_optimizer = Adam(self._temperature.parameters(), config.learning_rate, max_norm=None)
        self._networks |= {"targets": self._target_critics, "temperature": self._temperature}
        self._learners["temperature_optimizer"] = self._temperature_optimizer

    def _choose(self, inputs: Tensor, noise: F32 | None) -> F32:
        if self._compiled is not None:
            noise = np.zeros((len(inputs), self._bounds.size), np.float32) if noise is None else noise
            return _act(self._acting_buffer.values, self._layers[0][0], np.asarray(inputs), noise)
        unsquashed, log_stds = split_outputs(self._actor(inputs))
        if noise is not None:
            unsquashed = unsquashed + log_stds.exp() * torch.from_numpy(noise).to(self.device)
        units: F32 = torch.tanh(unsquashed).cpu().numpy()
        return units

    def _sample_actions(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions, `(B, size)`, and return them with their log-densities, `(B,)`."""
        outputs = self._actor(inputs)
        return sample_actions(outputs, self.random.normal(outputs[:, : self._bounds.size]))

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update."""
        config = self.config
        observations, next_observations = map(self.network_inputs, (batch.observations, batch.next_observations))
        alpha = self._temperature["log_alpha"].detach().exp()

        with torch.no_grad():
            next_actions, next_log_probs = self._sample_actions(next_observations)
            next_values = self._target_critics(next_observations, next_actions).amin(dim=0) - alpha * next_log_probs
            targets = batch.rewards + batch.discounts * next_values
        values = self._critics(observations, batch.actions)
        critic_loss = self.critic_loss(values, targets)
        self._critic_optimizer.minimize(critic_loss)

        actions, log_probs = self._sample_actions(observations)
        action_values = self._critics.action_values(observations, actions).min(dim=0).values
        actor_loss = (alpha * log_probs - action_values).mean()
        self._actor_optimizer.minimize(actor_loss)

        entropy = -log_probs.detach().mean()
        self._temperature_optimizer.step((entropy - self._target_entropy)[None])  # the loss is log_alpha times that
        self._target_buffer.soft_update(self._critic_optimizer, config.target_tau)
        return dict(zip(_METRIC_NAMES, (critic_loss, actor_loss, alpha, entropy, values.mean()), strict=True))

    # ------------------------------------------------------------------ the same, compiled

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[CompiledCall]:
        actor, critics = self._layers
        steps = self._actor_optimizer.next_step(actor), self._critic_optimizer.next_step(critics)
        temperature = self._temperature_optimizer.next_step(actor)  # without layers, any table has the right type
        target_critics = self._target_buffer.values
        settings = _Settings(self.config.target_tau, self._target_entropy)
        arguments = (batch, (noises[0], noises[1]), *steps, target_critics, temperature, settings, self._work)
        return [(_METRIC_NAMES, _learn, arguments)]


class _Settings(NamedTuple):
    tau: float
    target_entropy: float


class _Sample(NamedTuple):
    """Sampled actions of B rows, and intermediate results for their gradients, `(B, size)` each but `log_probs`."""

    actions: F32
    log_probs: F32
    raw_log_stds: F32  # after tanh, before scaling
    deviations: F32  # standard deviation times noise


@compiled.compiled_without_gil
def _learn(
    batch: Batch, noises: tuple[F32, F32], actor: AdamStep, critics: AdamStep, target_critics: F32,
    temperature: AdamStep, settings: _Settings, work: Workspace,
) -> tuple[float, float, float, float, float]:  # fmt: skip
    alpha = math.exp(temperature.values[0])
    outputs = compiled.forward(actor.values, actor.layers[0], batch.next_observations, work.passes[0])
    sample = _sample(outputs, noises[0])
    inputs = compiled.join(batch.next_observations, sample.actions)
    targets = compiled.min_values(target_critics, critics.layers, inputs, work)
    for row in range(len(targets)):
        next_value = targets[row] - alpha * sample.log_probs[row]
        targets[row] = batch.rewards[row] + batch.discounts[row] * next_value
    inputs = compiled.join(batch.observations, batch.actions)
    critic_loss, value = compiled.fit_critics(critics, inputs, targets, work)

    actor_loss, entropy = _differentiate_actor(batch.observations, noises[1], actor, critics, alpha, work)
    compiled.take_step(actor)
    temperature.gradients[0] = entropy - settings.target_entropy
    compiled.take_step(temperature)
    compiled.soft_update(target_critics, critics.values, settings.tau)
    return critic_loss, actor_loss, alpha, entropy, value


@compiled.part
def _differentiate_actor(
    observations: F32, noise: F32, actor: AdamStep, critics: AdamStep, alpha: float, work: Workspace
) -> tuple[float, float]:
    """Write the gradients of the actor; return its loss and its entropy."""
    count, size = noise.shape
    outputs = compiled.forward(actor.values, actor.layers[0], observations, work.passes[2])
    sample = _sample(outputs, noise)
    inputs = compiled.join(observations, sample.actions)
    first = compiled.forward(critics.values, critics.layers[0], inputs, work.passes[0])
    second = compiled.forward(critics.values, critics.layers[1], inputs, work.passes[1])
    loss, entropy = 0.0, 0.0
    of_first, of_second = np.zeros((count, 1), np.float32), np.zeros((count, 1), np.float32)
    for row in range(count):
        of_smaller = of_first if first[row, 0] <= second[row, 0] else of_second
        of_smaller[row, 0] = -1.0 / count
        loss += alpha * sample.log_probs[row] - min(first[row, 0], second[row, 0])
        entropy -= sample.log_probs[row]
    of_actions, not_needed = np.empty((2, count, size), np.float32), critics.gradients[:0]
    for number in range(2):
        layers, of_values = critics.layers[number], of_second if number else of_first
        compiled.backward(critics.values, layers, inputs, work, number, of_values, not_needed, of_actions[number])
    weight = np.float32(alpha / count)
    of_outputs = np.empty((count, 2 * size), np.float32)
    for row in range(count):
        for column in range(size):
            action, raw_log_std = sample.actions[row, column], sample.raw_log_stds[row, column]
            of_action = of_actions[0, row, column] + of_actions[1, row, column]
            of_mean = of_action * (1 - action * action) + 2 * weight * action
            of_log_std = of_mean * sample.deviations[row, column] - weight
            of_outputs[row, column] = of_mean
            of_outputs[row, size + column] = of_log_std * (1 - raw_log_std * raw_log_std) * np.float32(_LOG_STD_SCALE)
    compiled.backward(actor.values, actor.layers[0], observations, work, 2, of_outputs, actor.gradients, noise[:0])
    return loss / count, entropy / count


@compiled.compiled
def _act(values: F32, layers: NDArray[np.int64], rows: F32, noise: F32) -> F32:
    return _sample(compiled.act(values, layers, rows), noise).actions


@compiled.part
def _sample(outputs: F32, noise: F32) -> _Sample:
    """Do what `sample_actions` does."""
    count, size = noise.shape
    actions, raw_log_stds, deviations = np.empty_like(noise), np.empty_like(noise), np.empty_like(noise)
    log_probs = np.empty(count, np.float32)
    constant = np.float32(size * (0.5 * math.log(2 * math.pi) + 2 * math.log(2.0)))
    for row in range(count):
        log_prob = -constant
        for column in range(size):
            raw_log_std = compiled.tanh(outputs[row, size + column])
            log_std, draw = raw_log_std * np.float32(_LOG_STD_SCALE) + np.float32(_LOG_STD_CENTER), noise[row, column]
            deviation = math.exp(log_std) * draw
            unsquashed = outputs[row, column] + deviation
            actions[row, column], raw_log_stds[row, column] = compiled.tanh(unsquashed), raw_log_std
            deviations[row, column] = deviation
            # Minus the normal log-density, and the logarithm of the derivative of tanh.
            softplus = max(2 * unsquashed, np.float32(0)) + math.log1p(math.exp(-abs(2 * unsquashed)))
            log_prob -= log_std + np.float32(0.5) * draw * draw + 2 * unsquashed - 2 * softplus
        log_probs[row] = log_prob
    return _Sample(actions, log_probs, raw_log_stds, deviations)
