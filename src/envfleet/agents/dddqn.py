"""DDDQN: double (van Hasselt et al. 2016), dueling (Wang et al. 2016) deep Q-learning."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from envfleet.agents import compiled
from envfleet.agents.actions import BestChoice, choices_of
from envfleet.agents.compiled import F32, AdamStep, Workspace
from envfleet.agents.hyperparameters import OffPolicyConfig, Positive, Share, between
from envfleet.agents.networks import DuelingNetwork, make_target
from envfleet.agents.off_policy import CompiledCall, OffPolicyAgent
from envfleet.agents.optimizer import Adam, layer_table
from envfleet.agents.replay import Batch, Priorities, ReplayBuffer


@dataclasses.dataclass(frozen=True, kw_only=True)
class DDDQNConfig(OffPolicyConfig):
    """Hyperparameters of `DDDQN`.

    Attributes:
        epsilon_start: Probability of a random action after the warm-up.
        epsilon_end: Probability of a random action `epsilon_transitions` later.
        epsilon_transitions: Transitions over which epsilon changes linearly.
        target_period: Updates between two soft updates of the target network, by `target_tau`. For hard updates, pass
            a period of about 1000 and a tau of 1.
        prioritized: True to sample transitions with large errors more often.
        priority_alpha: Exponent of priorities.
        priority_beta: Initial exponent of importance weights; it increases linearly to 1.
        beta_updates: Updates over which that exponent increases.
    """

    max_grad_norm: Positive[float | None] = 10.0
    epsilon_start: Share = 1.0
    epsilon_end: Share = 0.05
    epsilon_transitions: Positive[int] = 50_000
    target_period: Positive[int] = 1
    prioritized: bool = False
    priority_alpha: Share = 0.6
    priority_beta: Share = 0.4
    beta_updates: Positive[int] = 100_000


class DDDQN(OffPolicyAgent[DDDQNConfig]):
    """Double dueling deep Q-learning with epsilon-greedy exploration.

    The action space is `Discrete`, or an `ActionTable` of continuous actions. Actions that the part `"action_mask"` of
    an observation excludes are never taken and never used as targets.
    """

    config_class = DDDQNConfig
    compiled_methods = (*OffPolicyAgent.compiled_methods, "value_losses")

    def _build(self) -> None:
        config, self._choices = self.config, choices_of(self.action_space)
        self.packing.check_mask(len(self._choices))
        priorities = Priorities(config.capacity, config.priority_alpha, self._beta) if config.prioritized else None
        form, place = (config.capacity, self.packing.space, (), torch.int64), config.replay_device or self.device
        self.use_replay(ReplayBuffer(*form, rng=self.random.replay, device=place, priorities=priorities))
        self._network = DuelingNetwork(self.packing, config, len(self._choices)).to(self.device)
        self._target, self._target_buffer = make_target(self._network)
        self._optimizer = Adam(self._network.parameters(), config.learning_rate, max_norm=config.max_grad_norm)
        self._networks |= {"network": self._network, "target": self._target}
        self._learners["optimizer"] = self._optimizer

    @property
    def epsilon(self) -> float:
        """Current probability of a random action."""
        config = self.config
        progress = (self.num_transitions - config.warmup) / config.epsilon_transitions
        return between(config.epsilon_start, config.epsilon_end, progress)

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._compiled is None:
            indices: NDArray[np.int64] = self._network(inputs).argmax(dim=1).cpu().numpy()
        else:
            outputs = compiled.act(self._acting_buffer.values, self._layers[0][0], np.asarray(inputs))
            indices = outputs[:, 1:].argmax(axis=1)  # column 0 is the value of the state
        if not deterministic:
            rng = self.random.numpy
            epsilon = self.epsilon if self.is_warm else 1.0
            is_random = rng.random(len(indices)) < epsilon
            if self.packing.mask is None:
                drawn = rng.integers(len(self._choices), size=len(indices))
            else:
                ranks = torch.from_numpy(rng.random((len(indices), len(self._choices)), np.float32))
                drawn = self.packing.masked(inputs, ranks.to(self.device)).argmax(dim=1).cpu().numpy()
            indices = np.where(is_random, drawn, indices)
        return self._choices.take(indices)

    def best_actions(self) -> nn.Module:
        """Return a module from rows of observations to the actions with the highest values."""
        return nn.Sequential(self._moments or nn.Identity(), self._network, BestChoice(self._choices))

    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the indices of actions, `(M,)`."""
        return self._choices.indices(actions)

    def _beta(self) -> float:
        return between(self.config.priority_beta, 1.0, self.num_updates / self.config.beta_updates)

    def value_losses(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each transition, `(B,)`: the Huber loss.

        Args:
            values: Values of the actions that were taken, `(B,)`.
            targets: Target values without gradient, `(B,)`.
        """
        return functional.huber_loss(values, targets, reduction="none")

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update."""
        config = self.config
        values = self._network(self.network_inputs(batch.observations)).gather(1, batch.actions[:, None]).squeeze(1)
        with torch.no_grad():
            next_observations = self.network_inputs(batch.next_observations)
            best = self._network(next_observations).argmax(dim=1, keepdim=True)  # evaluated by the target network
            next_values = self._target(next_observations).gather(1, best).squeeze(1)
            targets = batch.rewards + batch.discounts * next_values
        loss = (batch.weights * self.value_losses(values, targets)).mean()
        self._optimizer.minimize(loss)
        if self.replay.priorities is not None:
            self.replay.priorities.set_errors(batch.indices, (targets - values).detach().cpu().numpy())
        if (self.num_updates + 1) % config.target_period == 0:
            self._target_buffer.soft_update(self._optimizer, config.target_tau)
        return {"loss": loss, "value": values.mean()}

    # ------------------------------------------------------------------ the same, compiled

    def _compile(self) -> Adam:
        return self._copy_for_acting(self._optimizer, layer_table(self._network))

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[CompiledCall]:
        config, step = self.config, self._optimizer.next_step(self._layers[0])
        tau = 0.0 if (self.num_updates + 1) % config.target_period else config.target_tau
        return [(("loss", "value"), _learn, (batch, step, self._target_buffer.values, tau, self._work))]


@compiled.compiled_without_gil
def _learn(batch: Batch, network: AdamStep, target: F32, tau: float, work: Workspace) -> tuple[float, float, F32]:
    """Make one update; return loss, mean value and errors, `(B,)`."""
    layers = network.layers[0]
    results = work.passes[0]  # reused by all passes, so that it stays in the cache
    next_targets = compiled.forward(target, layers, batch.next_observations, results).copy()
    next_outputs = compiled.forward(network.values, layers, batch.next_observations, results).copy()
    outputs = compiled.forward(network.values, layers, batch.observations, results)
    count, num_actions = len(outputs), outputs.shape[1] - 1  # column 0 is the value of the state
    of_outputs, errors = np.empty_like(outputs), np.empty(count, np.float32)
    loss, total = 0.0, 0.0
    for row in range(count):
        best, mean, next_mean = 1, 0.0, 0.0
        for column in range(1, num_actions + 1):
            best = column if next_outputs[row, column] > next_outputs[row, best] else best
            next_mean += next_targets[row, column] / num_actions
            mean += outputs[row, column] / num_actions
        next_value = next_targets[row, 0] + next_targets[row, best] - next_mean
        action, weight = 1 + batch.actions[row], batch.weights[row]
        value = outputs[row, 0] + outputs[row, action] - mean
        error = batch.rewards[row] + batch.discounts[row] * next_value - value
        errors[row], total = error, total + value
        loss += weight * (0.5 * error * error if abs(error) < 1 else abs(error) - 0.5)  # Huber loss
        of_value = -weight * min(max(error, -1.0), 1.0) / count
        of_outputs[row, 0] = of_value
        for column in range(1, num_actions + 1):
            of_outputs[row, column] = -of_value / num_actions
        of_outputs[row, action] += of_value
    compiled.backward(network.values, layers, batch.observations, work, 0, of_outputs, network.gradients, outputs[:0])
    compiled.take_step(network)
    if tau:
        compiled.soft_update(target, network.values, tau)
    return loss / count, total / count, errors
