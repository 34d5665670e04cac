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
from envfleet.agents.descent import Adam
from envfleet.agents.hyperparameters import Positive
from envfleet.agents.networks import target_of
from envfleet.agents.off_policy import ContinuousAgent, ExplorationConfig, UpdatePart
from envfleet.agents.replay import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACConfig(ExplorationConfig):
    """Hyperparameters of `SAC`.

    Attributes:
        target_entropy: Of the policy, in nats, over actions from -1 to 1; `None` for minus the number of action
            elements.
        initial_temperature: Weight of the entropy at first.
    """

    target_entropy: float | None = None
    initial_temperature: Positive[float] = 1.0


LOG_STD_RANGE = (-5.0, 2.0)
CENTRE, REACH = sum(LOG_STD_RANGE) / 2, (LOG_STD_RANGE[1] - LOG_STD_RANGE[0]) / 2


def moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and logarithms of standard deviations, `(N, size)` each, of a network's outputs, `(N, 2 * size)`."""
    means, raw = outputs.chunk(2, dim=1)
    return means, CENTRE + REACH * torch.tanh(raw)


def propose(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions of a normal distribution before the tanh, with gradients of both results.

    Args:
        outputs: What `moments` takes, `(N, 2 * size)`.
        noise: Standard normal, `(N, size)`.

    Returns:
        Actions, `(N, size)`, and the logarithms of their densities, `(N,)` (Haarnoja et al. 2018, appendix C).
    """
    means, log_stds = moments(outputs)
    free = means + log_stds.exp() * noise
    log_density = -0.5 * noise.square() - log_stds - 0.5 * math.log(2 * math.pi)
    # The logarithm of the slope of tanh, 1 - tanh(x)^2, in a form that keeps its digits for large x.
    log_slope = 2 * (math.log(2) - free - functional.softplus(-2 * free))
    return torch.tanh(free), (log_density - log_slope).sum(dim=1)


class SAC(ContinuousAgent[SACConfig]):
    """Learns a distribution over continuous actions that earns much and stays as random as it can."""

    config_class = SACConfig
    compiled_methods = (*ContinuousAgent.compiled_methods, "_propose")
    _num_outputs = 2  # see `moments`
    _num_noises = 2

    def _build(self) -> None:
        super()._build()  # of actor and critics
        config, size = self.config, self._bounds.size
        self._targets, self._target_parts = target_of(self._critics)
        self._temperature = nn.ParameterDict({"log_alpha": torch.tensor(math.log(config.initial_temperature))})
        self._temperature.to(self.device)  # the weight of the entropy, by its logarithm
        self._target_entropy = -float(size) if config.target_entropy is None else config.target_entropy
        self._temperature_optimizer = Adam(self._temperature.parameters(), config.learning_rate, max_norm=None)
        self._networks |= {"targets": self._targets, "temperature": self._temperature}
        self._learners["temperature_optimizer"] = self._temperature_optimizer

    def _choose(self, inputs: Tensor, noise: F32 | None) -> F32:
        if self._compiled is not None:
            noise = np.zeros((len(inputs), self._bounds.size), np.float32) if noise is None else noise
            return _act(self._acts_by.values, self._layers[0][0], np.asarray(inputs), noise)
        free, log_stds = moments(self._actor(inputs))
        if noise is not None:
            free = free + log_stds.exp() * torch.from_numpy(noise).to(self.device)
        units: F32 = torch.tanh(free).cpu().numpy()
        return units

    def _propose(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions that gradients flow through, `(B, size)`, and the logarithms of their densities, `(B,)`."""
        outputs = self._actor(inputs)
        return propose(outputs, self.random.normal(outputs[:, : self._bounds.size]))

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update."""
        config = self.config
        observations, following = map(self.network_inputs, (batch.observations, batch.next_observations))
        alpha = self._temperature["log_alpha"].detach().exp()

        with torch.no_grad():
            next_actions, next_log_probs = self._propose(following)
            next_values = self._targets(following, next_actions).amin(dim=0) - alpha * next_log_probs
            goals = batch.rewards + batch.discounts * next_values
        values = self._critics(observations, batch.actions)
        critic_loss = self.critic_loss(values, goals)
        self._critic_optimizer.descend(critic_loss)

        actions, log_probs = self._propose(observations)
        actor_loss = (alpha * log_probs - self._critics.judge(observations, actions).min(dim=0).values).mean()
        self._actor_optimizer.descend(actor_loss)

        entropy = -log_probs.detach().mean()
        self._temperature_optimizer.step((entropy - self._target_entropy)[None])  # the loss is log_alpha times that
        self._target_parts.follow(self._critic_optimizer, config.target_tau)
        return dict(zip(_FIGURES, (critic_loss, actor_loss, alpha, entropy, values.mean()), strict=True))

    # ------------------------------------------------------------------ the same, compiled

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[UpdatePart]:
        actor, critics = self._layers
        learned = self._actor_optimizer.next_step(actor), self._critic_optimizer.next_step(critics)
        temperature = self._temperature_optimizer.next_step(actor)  # which has no layers
        targets, settings = self._target_parts.values, _Settings(self.config.target_tau, self._target_entropy)
        arguments = (batch, (noises[0], noises[1]), *learned, targets, temperature, settings, self._work)
        return [(_FIGURES, _learn, arguments)]


_FIGURES = ("critic_loss", "actor_loss", "temperature", "entropy", "value")


class _Settings(NamedTuple):
    tau: float
    entropy: float


class _Proposals(NamedTuple):
    """Actions for B rows, and what their gradients are made of."""

    actions: F32
    log_probs: F32
    squashed: F32
    spreads: F32


@compiled.compiled_without_gil
def _learn(
    sample: Batch, noises: tuple[F32, F32], actor: AdamStep, critics: AdamStep, targets: F32, temperature: AdamStep,
    settings: _Settings, work: Workspace,
) -> tuple[float, float, float, float, float]:  # fmt: skip
    alpha = math.exp(temperature.values[0])
    outputs = compiled.forward(actor.values, actor.layers[0], sample.next_observations, work.passes[0])
    following = _propose(outputs, noises[0])
    inputs = compiled.join(sample.next_observations, following.actions)
    goals = compiled.min_values(targets, critics.layers, inputs, work)
    for row in range(len(goals)):
        next_value = goals[row] - alpha * following.log_probs[row]
        goals[row] = sample.rewards[row] + sample.discounts[row] * next_value
    inputs = compiled.join(sample.observations, sample.actions)
    critic_loss, value = compiled.fit_critics(critics, inputs, goals, work)

    actor_loss, entropy = _fit_actor(sample.observations, noises[1], actor, critics, alpha, work)
    compiled.take_step(actor)
    temperature.gradients[0] = entropy - settings.entropy
    compiled.take_step(temperature)
    compiled.follow(targets, critics.values, settings.tau)
    return critic_loss, actor_loss, alpha, entropy, value


@compiled.part
def _fit_actor(
    observations: F32, noise: F32, actor: AdamStep, critics: AdamStep, alpha: float, work: Workspace
) -> tuple[float, float]:
    """Write the gradients of the actor; return its loss, and its entropy."""
    count, size = noise.shape
    outputs = compiled.forward(actor.values, actor.layers[0], observations, work.passes[2])
    made = _propose(outputs, noise)
    inputs = compiled.join(observations, made.actions)
    first = compiled.forward(critics.values, critics.layers[0], inputs, work.passes[0])
    second = compiled.forward(critics.values, critics.layers[1], inputs, work.passes[1])
    loss, entropy = 0.0, 0.0
    of_first, of_second = np.zeros((count, 1), np.float32), np.zeros((count, 1), np.float32)
    for row in range(count):
        lesser = of_first if first[row, 0] <= second[row, 0] else of_second
        lesser[row, 0] = -1.0 / count
        loss += alpha * made.log_probs[row] - min(first[row, 0], second[row, 0])
        entropy -= made.log_probs[row]
    of_actions, still = np.empty((2, count, size), np.float32), critics.gradients[:0]
    for number in range(2):
        layers, slopes = critics.layers[number], of_second if number else of_first
        compiled.backward(critics.values, layers, inputs, work, number, slopes, still, of_actions[number])
    share = np.float32(alpha / count)
    slopes = np.empty((count, 2 * size), np.float32)
    for row in range(count):
        for column in range(size):
            action, squashed = made.actions[row, column], made.squashed[row, column]
            of_action = of_actions[0, row, column] + of_actions[1, row, column]
            of_mean = of_action * (1 - action * action) + 2 * share * action
            slopes[row, column] = of_mean
            of_log_std = of_mean * made.spreads[row, column] - share
            slopes[row, size + column] = of_log_std * (1 - squashed * squashed) * np.float32(REACH)
    compiled.backward(actor.values, actor.layers[0], observations, work, 2, slopes, actor.gradients, slopes[:0])
    return loss / count, entropy / count


@compiled.compiled
def _act(values: F32, layers: NDArray[np.int64], rows: F32, noise: F32) -> F32:
    return _propose(compiled.act(values, layers, rows), noise).actions


@compiled.part
def _propose(outputs: F32, noise: F32) -> _Proposals:
    count, size = noise.shape
    actions, squashed, spreads = np.empty_like(noise), np.empty_like(noise), np.empty_like(noise)
    log_probs = np.empty(count, np.float32)
    constant = np.float32(size * (0.5 * math.log(2 * math.pi) + 2 * math.log(2.0)))
    for row in range(count):
        total = -constant
        for column in range(size):
            flat = compiled.tanh(outputs[row, size + column])
            log_std, draw = flat * np.float32(REACH) + np.float32(CENTRE), noise[row, column]
            spread = math.exp(log_std) * draw
            free = outputs[row, column] + spread
            actions[row, column], squashed[row, column], spreads[row, column] = compiled.tanh(free), flat, spread
            # Minus the logarithm of the normal density, and the logarithm of the slope of tanh.
            softplus = max(2 * free, np.float32(0)) + math.log1p(math.exp(-abs(2 * free)))
            total -= log_std + np.float32(0.5) * draw * draw + 2 * free - 2 * softplus
        log_probs[row] = total
    return _Proposals(actions, log_probs, squashed, spreads)
