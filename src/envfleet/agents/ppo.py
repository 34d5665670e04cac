"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), for fleets of any size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents.actions import BestChoice, BestInBounds, choices_of
from envfleet.agents.actor_critic import ActorCritic, ActorPolicy, CategoricalPolicy, SquashedPolicy
from envfleet.agents.agent import SlabAgent
from envfleet.agents.descent import Adam, descend
from envfleet.agents.gae import generalised_advantages
from envfleet.agents.hyperparameters import Activation, NetworkConfig, check_above, check_between
from envfleet.agents.means import Means
from envfleet.agents.randomness import initialising
from envfleet.agents.slabs import Slab
from envfleet.errors import InvalidArgument
from envfleet.kernels.rollouts.policies import MLP

_PART = 1 << 16  # rows
_FINITE_LOG_RATIO = 20.0  # what keeps its exponential, and a mean of many, finite
_LARGEST_LOG_RATIO = math.log(3.0)  # dual-clip PPO (Ye et al. 2020, arXiv:1912.09729): else one such action is all
Precision = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(NetworkConfig):
    """Hyperparameters of `PPO`.

    Attributes:
        gamma: Discount per step.
        gae_lambda: 0 trusts the critic's values alone, 1 the rewards alone.
        clip: How far the chance of an action may move from 1 times its old chance before it stops to pay.
        num_epochs: Times a slab is gone through.
        num_minibatches: Parts it is cut into each time, an update each.
        value_weight: Of the critic's loss.
        entropy_weight: Of the entropy bonus; for continuous actions the entropy before the tanh.
        max_grad_norm: Gradients longer than this are shortened; `None` never.
        target_kl: A slab is left early once the policy has moved this far (an estimate of the mean KL divergence);
            `None` never.
        normalise_observations: Whether networks see observations with mean 0 and variance 1 of all so far.
        normalise_values: Whether the critic learns values with mean 0 and variance 1 of all so far.
        initial_log_std: Of continuous actions before the tanh.
        precision: Of products of matrices while learning: `"float32"` or `"bfloat16"`, which takes half the time where
            the processor has such products (AVX512-BF16, AMX, GPUs). Weights, losses and acting stay in float32.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    num_epochs: int = 4
    num_minibatches: int = 4
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    max_grad_norm: float | None = 0.5
    target_kl: float | None = None
    normalise_observations: bool = False
    normalise_values: bool = False
    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    initial_log_std: float = 0.0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above(self, 0, "clip", "num_epochs", "num_minibatches")
        check_between(self, 0, 1, "gamma", "gae_lambda")
        check_between(self, 0, math.inf, "value_weight", "entropy_weight")
        for name in ("max_grad_norm", "target_kl"):
            if getattr(self, name) is not None:
                check_above(self, 0, name)
        if self.precision not in ("float32", "bfloat16"):
            raise InvalidArgument(f"PPOConfig.precision={self.precision!r}: pass 'float32' or 'bfloat16'")


class PPO(SlabAgent[PPOConfig]):
    """Learns from slabs of what it just did: `update(Collector(fleet, num_steps).collect(agent))`.

    Actions are `Discrete`, or in a bounded box: then a normal distribution is squashed into it by tanh.

    Args:
        observation_space: Of one sub-environment, as `Agent` takes it.
        action_space: Of one sub-environment.
        config: Hyperparameters.
        num_envs: Sub-environments it acts for.
        seed: All its randomness derives from it; `None` draws one.
        device: Where its networks live: `"cpu"`, `"cuda"`, …
    """

    name = "PPO"
    config_class = PPOConfig

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: PPOConfig | None = None,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(observation_space, action_space, config, num_envs=num_envs, seed=seed, device=device)
        config = self.config
        if config.normalise_observations and not isinstance(observation_space, (spaces.Box, spaces.MultiBinary)):
            raise InvalidArgument(
                f"PPOConfig.normalise_observations=True for observations of {observation_space}, expected a Box or "
                "MultiBinary: choices have no mean, leave it out"
            )
        self._policy: ActorPolicy
        if isinstance(action_space, spaces.Discrete):
            self._policy, log_std = CategoricalPolicy(action_space), None
        else:
            self._policy, log_std = SquashedPolicy(action_space), config.initial_log_std
        with initialising(self._weights_seed):
            network = ActorCritic(self.packing, self._policy.num_outputs, config, log_std)
        self._network = network.to(self.device)
        self._optimiser = Adam(self._network.parameters(), config.learning_rate, epsilon=1e-5)
        self._networks = {"network": self._network}
        self._learners["optimiser"] = self._optimiser

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        outputs = self._network(inputs)
        if deterministic:
            return self._policy.best(outputs)
        return self._policy.draw(outputs, self._network.log_std, self.random)

    def best_actions(self) -> nn.Module:
        """Return the likeliest action as a module."""
        space: Any = self.action_space
        is_discrete = isinstance(space, spaces.Discrete)
        return nn.Sequential(self._network, BestChoice(choices_of(space)) if is_discrete else BestInBounds(space))

    def export_policy(self, deterministic: bool = False) -> MLP | None:
        """Return the policy as a network that rollouts of kernels compile; it normalises observations itself.

        Returns:
            The network; `None` if it has more than dense layers.
        """
        if not self._network.is_dense:
            return None
        head, log_std = self._policy.head(deterministic, self._network.log_std)
        return MLP(self._network.export(), activation=self.config.activation, head=head, log_std=log_std)

    # ------------------------------------------------------------------ learning

    def update(self, slab: Slab) -> dict[str, float]:
        """Learn from a slab that this policy just played.

        Args:
            slab: T steps of N sub-environments.

        Returns:
            Losses and other figures by name, means over the updates; nothing if all steps were resets.
        """
        config = self.config
        valid = torch.from_numpy(np.flatnonzero(~slab.is_reset)).to(self.device)
        if not len(valid):
            return {}
        observations = self.pack(slab.observations)
        inputs = self._inputs(observations.reshape(-1, *observations.shape[2:]))  # (T, N, …) -> (T * N, …)
        actions = slab.actions.reshape(-1, *slab.actions.shape[2:])
        targets = self._policy.targets(actions).to(self.device)
        with torch.no_grad():
            old_log_probs = self._by_part(lambda part: self._log_probs(inputs[part], targets[part])[0], len(inputs))
            advantages, returns = self._judge(slab, inputs)
        if config.normalise_values:
            self._network.take_returns(returns[valid])
        kept = advantages[valid]
        advantages = (advantages - kept.mean()) / (kept.std(correction=0) + 1e-8)

        self._optimiser.learning_rate = config.learning_rate_after(self.num_transitions)
        means = Means()
        for part in self._minibatches(valid):
            figures = self._descend(inputs[part], targets[part], old_log_probs[part], advantages[part], returns[part])
            means.add(figures)
            if config.target_kl is not None and float(figures["divergence"]) > config.target_kl:
                break
        if config.normalise_observations:  # only now: what played the slab is what was compared with
            self._network.observation_moments.update(inputs[valid])
        self.num_updates += means.count
        self.num_transitions += len(valid)
        return means.result()

    def _minibatches(self, rows: Tensor) -> Iterator[Tensor]:
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(rows), generator=self.random.torch, device=self.device)
            yield from rows[order].tensor_split(min(self.config.num_minibatches, len(rows)))

    def _descend(
        self, inputs: Tensor, targets: Tensor, old_log_probs: Tensor, advantages: Tensor, returns: Tensor
    ) -> dict[str, Tensor]:
        config, network = self.config, self._network
        log_probs, entropies = self._log_probs(inputs, targets)
        log_ratios = (log_probs - old_log_probs).clamp(max=_FINITE_LOG_RATIO)
        ratios = log_ratios.clamp(max=_LARGEST_LOG_RATIO).exp()
        clipped = ratios.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -torch.minimum(ratios * advantages, clipped * advantages).mean()
        value_loss = (self._raw_values(inputs) - network.value_moments.normalise(returns)).square().mean()
        entropy = entropies.mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
        descend(self._optimiser, loss, config.max_grad_norm)
        with torch.no_grad():  # the estimate that is never negative, http://joschu.net/blog/kl-approx.html
            divergence = (log_ratios.expm1() - log_ratios).mean()
            clipped_share = (ratios != clipped).float().mean()
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "divergence": divergence,
            "clipped": clipped_share,
        }

    def _judge(self, slab: Slab, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns of all steps, `(T * N,)` each."""
        shape = slab.rewards.shape
        values = self._values(inputs).view(shape)
        next_values = torch.cat([values[1:], self._values(self._inputs(self.pack(slab.last_observations)))[None]])
        if len(slab.ended_steps):
            places = (torch.from_numpy(slab.ended_steps), torch.from_numpy(slab.ended_rows))
            next_values[places] = self._values(self._inputs(self.pack(slab.final_observations)))
        rewards, terminated, truncated = (
            torch.from_numpy(array).to(self.device) for array in (slab.rewards, slab.terminated, slab.truncated)
        )
        advantages = generalised_advantages(
            rewards.float(), values, next_values, terminated, truncated,
            gamma=self.config.gamma, lambda_=self.config.gae_lambda,
        )  # fmt: skip
        return advantages.flatten(), (advantages + values).flatten()

    def _log_probs(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        with self._products():
            outputs = self._network(inputs)
        return self._policy.log_probs(outputs.float(), self._network.log_std, targets)

    def _raw_values(self, inputs: Tensor) -> Tensor:
        with self._products():
            return self._network.raw_values(inputs).float()

    def _values(self, inputs: Tensor) -> Tensor:
        moments = self._network.value_moments
        return self._by_part(lambda part: moments.restore(self._raw_values(inputs[part])), len(inputs))

    def _products(self) -> torch.autocast:
        is_short = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_short)

    @staticmethod
    def _by_part(function: Callable[[slice], Tensor], count: int) -> Tensor:
        """Apply a function to a large number of rows, a part at a time, so that layers do not fill the memory."""
        return torch.cat([function(slice(start, start + _PART)) for start in range(0, count, _PART)])
