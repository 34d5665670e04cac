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
from envfleet.agents.descent import Adam, layers_of
from envfleet.agents.hyperparameters import OffPolicyConfig, Positive, Share, between
from envfleet.agents.networks import DuelingNetwork, target_of
from envfleet.agents.off_policy import OffPolicyAgent, UpdatePart
from envfleet.agents.replay import Batch, Priorities, ReplayBuffer


@dataclasses.dataclass(frozen=True, kw_only=True)
class DDDQNConfig(OffPolicyConfig):
    """Hyperparameters of `DDDQN`.

    Attributes:
        epsilon_start: Chance of a random action after the warm-up.
        epsilon_end: The same after `epsilon_transitions` more.
        epsilon_transitions: Transitions over which it goes from one to the other, in a straight line.
        target_period: Updates after which the target network moves, by `target_tau`. For a hard copy now and then, pass
            a period of 1000 or so, and a tau of 1.
        prioritized: Whether transitions with large errors are drawn more often.
        priority_alpha: Exponent of priorities.
        priority_beta: Exponent of importance weights at first; it goes to 1 over `beta_updates`.
        beta_updates: Updates over which it does.
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
    """Learns the values of a finite number of actions; takes the best, or with a chance of epsilon any.

    Its action space is `Discrete`, or an `ActionTable` of continuous actions. Those that the part `"action_mask"` of an
    observation excludes are never taken, nor counted on.
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
        self._target, self._target_parts = target_of(self._network)
        self._optimizer = Adam(self._network.parameters(), config.learning_rate, max_norm=config.max_grad_norm)
        self._networks |= {"network": self._network, "target": self._target}
        self._learners["optimizer"] = self._optimizer

    @property
    def epsilon(self) -> float:
        """Chance of a random action now."""
        config = self.config
        progress = (self.num_transitions - config.warmup) / config.epsilon_transitions
        return between(config.epsilon_start, config.epsilon_end, progress)

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._compiled is None:
            indices: NDArray[np.int64] = self._network(inputs).argmax(dim=1).cpu().numpy()
        else:
            outputs = compiled.act(self._acts_by.values, self._layers[0][0], np.asarray(inputs))
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
        """Return the action with the highest value as a module."""
        return nn.Sequential(self._moments or nn.Identity(), self._network, BestChoice(self._choices))

    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of actions, `(M,)`."""
        return self._choices.indices(actions)

    def _beta(self) -> float:
        return between(self.config.priority_beta, 1.0, self.num_updates / self.config.beta_updates)

    def value_losses(self, values: Tensor, goals: Tensor) -> Tensor:
        """Return the loss of each transition, Huber's; values and goals, which have no gradient, are `(B,)`."""
        return functional.huber_loss(values, goals, reduction="none")

    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update."""
        config = self.config
        values = self._network(self.network_inputs(batch.observations)).gather(1, batch.actions[:, None]).squeeze(1)
        with torch.no_grad():
            following = self.network_inputs(batch.next_observations)
            best = self._network(following).argmax(dim=1, keepdim=True)  # chosen by one network, valued by the other
            goals = batch.rewards + batch.discounts * self._target(following).gather(1, best).squeeze(1)
        loss = (batch.weights * self.value_losses(values, goals)).mean()
        self._optimizer.descend(loss)
        if self.replay.priorities is not None:
            self.replay.priorities.set_errors(batch.indices, (goals - values).detach().cpu().numpy())
        if (self.num_updates + 1) % config.target_period == 0:
            self._target_parts.follow(self._optimizer, config.target_tau)
        return {"loss": loss, "value": values.mean()}

    # ------------------------------------------------------------------ the same, compiled

    def _compile(self) -> Adam:
        return self._act_by(self._optimizer, layers_of(self._network))

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[UpdatePart]:
        config, learned = self.config, self._optimizer.next_step(self._layers[0])
        tau = 0.0 if (self.num_updates + 1) % config.target_period else config.target_tau
        return [(("loss", "value"), _learn, (batch, learned, self._target_parts.values, tau, self._work))]


@compiled.compiled_without_gil
def _learn(sample: Batch, network: AdamStep, target: F32, tau: float, work: Workspace) -> tuple[float, float, F32]:
    """Make one update, and go a share `tau` of the way with the target; return loss, mean value and errors."""
    layers = network.layers[0]
    results = work.passes[0]  # of one pass after another, so that they stay in the cache
    theirs = compiled.forward(target, layers, sample.next_observations, results).copy()
    ours = compiled.forward(network.values, layers, sample.next_observations, results).copy()
    found = compiled.forward(network.values, layers, sample.observations, results)
    count, number = len(found), found.shape[1] - 1  # of actions: column 0 is the value of the state
    slopes, errors = np.empty_like(found), np.empty(count, np.float32)
    loss, total = 0.0, 0.0
    for row in range(count):
        best, mean, next_mean = 1, 0.0, 0.0
        for column in range(1, number + 1):
            best = column if ours[row, column] > ours[row, best] else best  # chosen by one network, valued by the other
            next_mean += theirs[row, column] / number
            mean += found[row, column] / number
        next_value = theirs[row, 0] + theirs[row, best] - next_mean
        taken, weight = 1 + sample.actions[row], sample.weights[row]
        value = found[row, 0] + found[row, taken] - mean
        error = sample.rewards[row] + sample.discounts[row] * next_value - value
        errors[row], total = error, total + value
        loss += weight * (0.5 * error * error if abs(error) < 1 else abs(error) - 0.5)  # Huber's
        slope = -weight * min(max(error, -1.0), 1.0) / count
        slopes[row, 0] = slope
        for column in range(1, number + 1):
            slopes[row, column] = -slope / number
        slopes[row, taken] += slope
    compiled.backward(network.values, layers, sample.observations, work, 0, slopes, network.gradients, slopes[:0])
    compiled.take_step(network)
    if tau:
        compiled.follow(target, network.values, tau)
    return loss / count, total / count, errors
