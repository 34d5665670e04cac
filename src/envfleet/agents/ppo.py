"""PPO: proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347), for fleets of any size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents import compiled
from envfleet.agents.actions import MOST, CategoricalPolicy, SquashedPolicy
from envfleet.agents.agent import RolloutAgent
from envfleet.agents.compiled import F32, AdamStep, Workspace
from envfleet.agents.hyperparameters import Activation, NetworkConfig, NotNegative, Positive, Share
from envfleet.agents.means import Means
from envfleet.agents.networks import ActorCritic, check_normalizable
from envfleet.agents.optimizer import Adam, layer_table, make_workspace
from envfleet.fleet.rollout import Rollout, generalized_advantages
from envfleet.kernels.policies import MLP
from envfleet.native.blas import one_blas_thread

_PART = 1 << 16  # rows
_FINITE_LOG_RATIO = 20.0  # what keeps its exponential, and a mean of many, finite
_LARGEST_LOG_RATIO = math.log(3.0)  # dual-clip PPO (Ye et al. 2020, arXiv:1912.09729): else one such action is all
_METRIC_NAMES = ("policy_loss", "value_loss", "entropy", "divergence", "clipped")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(NetworkConfig):
    """Hyperparameters of `PPO`.

    Attributes:
        gamma: Discount per step.
        gae_lambda: Lambda of generalized advantage estimation: 0 uses only the critic's values, 1 only the rewards.
        clip: Clip range of the probability ratio around 1.
        num_epochs: Passes over a rollout.
        num_minibatches: Minibatches per pass, with one update each.
        value_weight: Weight of the critic's loss.
        entropy_weight: Weight of the entropy bonus; for continuous actions, of the entropy before tanh.
        max_grad_norm: Maximum norm of gradients, which are scaled down to it; `None` for no limit.
        target_kl: Mean KL divergence (estimated) at which learning from a rollout stops early; `None` for no limit.
        normalize_observations: True to normalize observations by the running mean and variance.
        normalize_values: True to normalize the critic's targets by the running mean and variance.
        initial_log_std: Initial log standard deviation of continuous actions before tanh.
    """

    gamma: Share = 0.99
    gae_lambda: Share = 0.95
    clip: Positive[float] = 0.2
    num_epochs: Positive[int] = 10
    num_minibatches: Positive[int] = 8
    value_weight: NotNegative[float] = 0.5
    entropy_weight: NotNegative[float] = 0.0
    max_grad_norm: Positive[float | None] = 0.5
    target_kl: Positive[float | None] = None
    normalize_observations: bool = False
    normalize_values: bool = False
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    initial_log_std: float = 0.0


class Samples(NamedTuple):
    """Data of M steps to learn from: tensors, or float32 arrays for compiled code.

    Attributes:
        observations: Inputs of the networks, `(M, inputs)`.
        targets: Actions as `log_probs` of the distribution takes them, `(M, size)` or `(M,)`.
        log_probs: Log-probabilities of the actions under the old policy, `(M,)`.
        advantages: Normalized advantages, `(M,)`.
        value_targets: Target values of the critic, `(M,)`.
    """

    observations: Any
    targets: Any
    log_probs: Any
    advantages: Any
    value_targets: Any


class PPO(RolloutAgent[PPOConfig]):
    """Learns from rollouts of what it just did: `update(Collector(fleet, num_steps).collect(agent))`.

    Actions are `Discrete`, or in a bounded box: then a normal distribution is squashed into it by tanh. Those that the
    part `"action_mask"` of an observation excludes have probability 0.
    """

    config_class = PPOConfig
    compiled_methods = ("_build", "_act", "update", "_learn_by_torch", "_descend_once")
    _compiled: NDArray[np.int64] | None  # layers of the actor and of the critic

    def _build(self) -> None:
        config, action_space = self.config, self.action_space
        if config.normalize_observations:
            check_normalizable(self.observation_space, config)
        self._policy: CategoricalPolicy | SquashedPolicy
        if isinstance(action_space, spaces.Discrete):
            self._policy, log_std = CategoricalPolicy(action_space), None
            self.packing.check_mask(self._policy.num_outputs)
        else:
            self._policy, log_std = SquashedPolicy(action_space), config.initial_log_std
        self._network = ActorCritic(self.packing, self._policy.num_outputs, config, log_std).to(self.device)
        network = self._network
        parts = (network.actor, network.critic, network.actor_encoder, network.critic_encoder)
        learned = [*(parameter for part in parts for parameter in part.parameters()), network.log_std]
        self._optimizer = Adam(learned, config.learning_rate, max_norm=config.max_grad_norm, epsilon=1e-5)
        self._networks = {"network": self._network}
        self._learners["optimizer"] = self._optimizer

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        generator = None if deterministic else self.random.torch
        if self._compiled is None:
            outputs = self._network(inputs)
        else:
            outputs = torch.from_numpy(compiled.act(self._optimizer.values, self._compiled[0], self._rows(inputs)))
        return self._policy.draw(outputs, self._network.log_std, generator)

    def best_actions(self) -> nn.Module:
        """Return the likeliest action as a module."""
        return nn.Sequential(self._network, self._policy.best).to(self.device)

    def export_policy(self, deterministic: bool = False) -> MLP | None:
        """Return the policy as a network that rollouts of kernels compile; it normalizes observations itself.

        It chooses from all actions, as the agent does, whatever mask the infos of a kernel have.

        Returns:
            The network; `None` if it has more than dense layers.
        """
        if not self._network.is_dense:
            return None
        head, log_std = self._policy.head(deterministic, self._network.log_std)
        scale = 255.0 if self.observation_space.dtype == np.uint8 else 1.0  # as `packing` has it
        return MLP(self._network.export(scale), self.config.activation, head, log_std, heeds_mask=False)

    # ------------------------------------------------------------------ learning

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout that this policy just played.

        Args:
            rollout: T steps of N sub-environments.

        Returns:
            Losses and other metrics by name, means over the updates; nothing if all steps were resets.
        """
        config, is_valid = self.config, torch.from_numpy(~rollout.is_reset.reshape(-1)).to(self.device)
        count = int(is_valid.sum())
        if not count:
            return {}
        observations = self.pack(rollout.observations)
        inputs = self._inputs(observations.reshape(-1, *observations.shape[2:]))  # (T, N, …) -> (T * N, …)
        with torch.no_grad():
            advantages, returns = (column[is_valid] for column in self._estimate_advantages(rollout, inputs))
            inputs, targets = inputs[is_valid], self._policy.targets(rollout.actions[~rollout.is_reset]).to(self.device)
            outputs = self._pass(self._network, 0, inputs)
            old_log_probs, _ = self._policy.log_probs(outputs, self._network.log_std, targets)
        if config.normalize_values:
            self._network.update_value_moments(returns)
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        value_targets = self._network.value_moments(returns)

        self._optimizer.learning_rate = config.learning_rate_after(self.num_transitions)
        random, samples = self.random.torch, Samples(inputs, targets, old_log_probs, advantages, value_targets)
        orders = [torch.randperm(count, generator=random, device=self.device) for _ in range(config.num_epochs)]
        learn = self._learn_compiled if self.is_compiled else self._learn_by_torch
        metrics = learn(samples, torch.stack(orders))
        if config.normalize_observations:  # only now: what played the rollout is what was compared with
            self._network.observation_moments.update(inputs)
        self.num_transitions += count
        return metrics

    def _estimate_advantages(self, rollout: Rollout, inputs: Tensor) -> tuple[Tensor, ...]:
        """Return advantages and returns of all steps, `(T * N,)` each."""
        values = self._values(inputs).reshape(rollout.rewards.shape)
        last_values, episodes = self._values(self._inputs(self.pack(rollout.last_observations))), rollout.episodes
        next_values = np.concatenate((values[1:], last_values[None]))
        if len(episodes):
            final_values = self._values(self._inputs(self.pack(episodes.observations)))
            next_values[episodes.steps, episodes.env_indices] = final_values
        columns = generalized_advantages(
            rollout.rewards.astype(np.float32), values, next_values, rollout.terminated, rollout.truncated,
            rollout.is_reset, gamma=self.config.gamma, gae_lambda=self.config.gae_lambda,
        )  # fmt: skip
        return tuple(torch.from_numpy(array).to(self.device).flatten() for array in columns)

    def _values(self, inputs: Tensor) -> NDArray[Any]:
        raw = self._pass(self._network.raw_values, 1, inputs)
        return self._network.value_moments.restore(raw.flatten()).cpu().numpy()

    def _pass(self, network: Callable[[Tensor], Tensor], number: int, inputs: Tensor) -> Tensor:
        """Pass many rows through a network, or through that of this number among the compiled layers."""
        if self._compiled is None:  # a part at a time, so that layers do not fill the memory
            return torch.cat([network(part) for part in torch.split(inputs, _PART)])
        with one_blas_thread():
            outputs = compiled.outputs_of(self._optimizer.values, self._compiled[number], self._rows(inputs))
        return torch.from_numpy(outputs)

    def _rows(self, inputs: Tensor) -> F32:
        """Return inputs as compiled code takes them."""
        moments = self._network.observation_moments
        return (moments(inputs) if moments.count else inputs).numpy()

    def _learn_by_torch(self, samples: Samples, orders: Tensor) -> dict[str, float]:
        """Make all updates of a rollout by torch; `orders` are the rows of every epoch, `(num_epochs, M)`."""
        means, most, num_parts = Means(), self.config.target_kl, min(self.config.num_minibatches, orders.shape[1])
        for part in (part for order in orders for part in order.tensor_split(num_parts)):
            metrics = self._descend_once(Samples(*(column[part] for column in samples)))
            means.add(metrics)
            if most is not None and float(metrics["divergence"]) > most:
                break
        self.num_updates += means.count
        return means.result()

    def _descend_once(self, samples: Samples) -> dict[str, Tensor]:
        config, advantages = self.config, samples.advantages
        outputs = self._network(samples.observations)
        log_probs, entropies = self._policy.log_probs(outputs, self._network.log_std, samples.targets)
        log_ratios = (log_probs - samples.log_probs).clamp(max=_FINITE_LOG_RATIO)
        ratios = log_ratios.clamp(max=_LARGEST_LOG_RATIO).exp()
        clipped = ratios.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -torch.minimum(ratios * advantages, clipped * advantages).mean()
        value_loss = (self._network.raw_values(samples.observations) - samples.value_targets).square().mean()
        entropy = entropies.mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
        self._optimizer.minimize(loss)
        with torch.no_grad():  # the estimate that is never negative, http://joschu.net/blog/kl-approx.html
            divergence = (log_ratios.expm1() - log_ratios).mean()
            clipped_share = (ratios != clipped).float().mean()
        return dict(zip(_METRIC_NAMES, (policy_loss, value_loss, entropy, divergence, clipped_share), strict=True))

    # ------------------------------------------------------------------ the same, compiled

    def _compile(self) -> NDArray[np.int64]:
        config = self.config
        self._settings = _Settings(
            isinstance(self._policy, CategoricalPolicy), config.clip, config.value_weight, config.entropy_weight,
            math.inf if config.target_kl is None else config.target_kl,
        )  # fmt: skip
        return layer_table(self._network.actor, self._network.critic)

    def _learn_compiled(self, samples: Samples, orders: Tensor) -> dict[str, float]:
        """Do what `_learn_by_torch` does."""
        layers: Any = self._compiled
        count = orders.shape[1]
        num_parts = min(self.config.num_minibatches, count)
        work = make_workspace(-(-count // num_parts), layers)
        targets = samples.targets.float().reshape(len(samples.targets), -1)
        columns = Samples(self._rows(samples.observations), *(column.numpy() for column in (targets, *samples[2:])))
        learned = self._optimizer.next_step(layers)
        arguments = (learned, columns, orders.numpy(), num_parts, self._settings, work)
        with one_blas_thread():
            num_updates, sums = _learn_rollout(*arguments)
        self._optimizer.count += num_updates - 1
        self.num_updates += num_updates
        return dict(zip(_METRIC_NAMES, (sums / num_updates).tolist(), strict=True))


class _Settings(NamedTuple):
    is_discrete: bool
    clip: float
    value_weight: float
    entropy_weight: float
    target_kl: float


@compiled.compiled_without_gil
def _learn_rollout(
    learned: AdamStep, samples: Samples, orders: NDArray[np.int64], num_parts: int, settings: _Settings, work: Workspace
) -> tuple[int, NDArray[np.float64]]:
    """Make all updates of a rollout; return how many, and the sums of their metrics."""
    values, gradients, means, squares, layers, steps, rate, epsilon, max_norm = learned
    inputs, targets, log_probs, advantages, value_targets = samples
    count, num_updates = orders.shape[1], 0
    sums, metrics = np.zeros(5), np.zeros(5)
    for order in orders:
        stop = 0
        for part in range(num_parts):
            start = stop
            stop += count // num_parts + (part < count % num_parts)
            rows = order[start:stop]
            batch = Samples(inputs[rows], targets[rows], log_probs[rows], advantages[rows], value_targets[rows])
            this_step = AdamStep(
                values, gradients, means, squares, layers, steps + num_updates, rate, epsilon, max_norm
            )
            _fit(this_step, batch, settings, work, metrics)
            num_updates += 1
            sums += metrics
            if metrics[3] > settings.target_kl:
                return num_updates, sums
    return num_updates, sums


@compiled.part
def _fit(learned: AdamStep, batch: Samples, settings: _Settings, work: Workspace, metrics: NDArray[np.float64]) -> None:
    """Make one update, and write its metrics."""
    values, gradients, layers, count = learned.values, learned.gradients, learned.layers, len(batch.observations)
    predictions = compiled.forward(values, layers[1], batch.observations, work.passes[0])
    of_values, missing = np.empty((count, 1), np.float32), 0.0
    for row in range(count):
        error = predictions[row, 0] - batch.value_targets[row]
        missing += error * error
        of_values[row, 0] = 2 * settings.value_weight * error / count
    compiled.backward(values, layers[1], batch.observations, work, 0, of_values, gradients, of_values[:0])
    metrics[1] = missing / count

    outputs = compiled.forward(values, layers[0], batch.observations, work.passes[0])
    log_stds = gradients.size - (0 if settings.is_discrete else outputs.shape[1])  # where they begin
    if settings.is_discrete:
        slopes = _fit_choices(outputs, batch, settings, metrics)
    else:
        slopes = _fit_normal(outputs, values[log_stds:], gradients[log_stds:], batch, settings, metrics)
    compiled.backward(values, layers[0], batch.observations, work, 0, slopes, gradients, slopes[:0])
    compiled.take_step(learned)


@compiled.part
def _fit_normal(
    means: F32, log_stds: F32, of_stds: F32, batch: Samples, settings: _Settings, metrics: NDArray[np.float64]
) -> F32:
    """Return the gradients of means, and write those of the logarithms of standard deviations; see `log_probs`."""
    count, size = means.shape
    scaled, log_probs = np.empty((count, size), np.float32), np.empty(count, np.float32)
    base, entropy, most = 0.0, 0.0, np.float32(MOST)
    for column in range(size):
        base -= log_stds[column] + 0.5 * math.log(2 * math.pi)
        entropy += log_stds[column] + 0.5 * math.log(2 * math.pi * math.e)
    scales = np.exp(-log_stds)
    for row in range(count):
        total = np.float32(0)
        for column in range(size):
            mean = means[row, column]
            mean = most if mean > most else -most if mean < -most else mean  # noqa: FURB136 (max drops NaN)
            scaled[row, column] = (batch.targets[row, column] - mean) * scales[column]
            total += scaled[row, column] * scaled[row, column]
        log_probs[row] = base - 0.5 * total
    pushes = _push(log_probs, batch, settings, metrics)
    of_stds.fill(-settings.entropy_weight)
    for row in range(count):
        for column in range(size):
            is_inside = abs(means[row, column]) <= most
            of_stds[column] += pushes[row] * (scaled[row, column] * scaled[row, column] - 1)
            scaled[row, column] *= pushes[row] * scales[column] if is_inside else np.float32(0)
    metrics[2] = entropy
    return scaled


@compiled.part
def _fit_choices(logits: F32, batch: Samples, settings: _Settings, metrics: NDArray[np.float64]) -> F32:
    """Return the gradients of logits."""
    count, size = logits.shape
    slopes, entropies = np.empty((count, size), np.float32), np.empty(count, np.float32)
    logs, log_probs = np.empty((count, size), np.float32), np.empty(count, np.float32)
    for row in range(count):
        most, total, entropy = logits[row].max(), np.float32(0), np.float32(0)
        for column in range(size):
            total += math.exp(logits[row, column] - most)
        shift = most + np.float32(math.log(total))
        for column in range(size):
            logs[row, column] = logits[row, column] - shift
            entropy -= math.exp(logs[row, column]) * logs[row, column]
        entropies[row], log_probs[row] = entropy, logs[row, int(batch.targets[row, 0])]
    pushes, weight = _push(log_probs, batch, settings, metrics), np.float32(settings.entropy_weight / count)
    for row in range(count):
        for column in range(size):
            log = logs[row, column]
            of_entropy = weight * (log + entropies[row])
            slopes[row, column] = np.float32(math.exp(log)) * (of_entropy - pushes[row])
        slopes[row, int(batch.targets[row, 0])] += pushes[row]
    metrics[2] = entropies.mean()
    return slopes


@compiled.part
def _push(log_probs: F32, batch: Samples, settings: _Settings, metrics: NDArray[np.float64]) -> F32:
    """Return the gradients of the logarithms of chances, `(M,)`, and write the metrics of the policy."""
    count, loss, divergence, clipped_share = len(log_probs), 0.0, 0.0, 0.0
    pushes = np.empty(count, np.float32)
    for row in range(count):
        log_ratio, advantage = float(log_probs[row] - batch.log_probs[row]), float(batch.advantages[row])
        log_ratio = log_ratio if not log_ratio > _FINITE_LOG_RATIO else _FINITE_LOG_RATIO
        is_far = log_ratio > _LARGEST_LOG_RATIO
        ratio = math.exp(_LARGEST_LOG_RATIO if is_far else log_ratio)
        clipped = min(max(ratio, 1 - settings.clip), 1 + settings.clip)
        is_free = not clipped * advantage < ratio * advantage
        loss -= (ratio if is_free else clipped) * advantage
        pushes[row] = -ratio * advantage / count if is_free and not is_far else 0.0
        divergence += math.expm1(log_ratio) - log_ratio
        clipped_share += ratio != clipped
    metrics[0], metrics[3], metrics[4] = loss / count, divergence / count, clipped_share / count
    return pushes
