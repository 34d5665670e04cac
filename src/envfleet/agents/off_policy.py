"""Base classes of agents that learn from a replay buffer."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents.actions import Bounds
from envfleet.agents.agent import Agent
from envfleet.agents.compiled import F32
from envfleet.agents.hyperparameters import OffPolicyConfig, Positive
from envfleet.agents.means import Means
from envfleet.agents.n_step import NStepWriter
from envfleet.agents.networks import Critics, RunningMoments, check_normalizable, network_of
from envfleet.agents.optimizer import Adam, ParameterBuffer, layer_table, make_workspace
from envfleet.agents.randomness import ColoredNoise
from envfleet.agents.replay import Batch, ReplayBuffer
from envfleet.agents.transitions import Transitions
from envfleet.native.blas import one_blas_thread

Config = TypeVar("Config", bound=OffPolicyConfig)


class LearningResult(NamedTuple):
    """Result of some gradient updates.

    Attributes:
        metrics: Losses and other metrics by name, means over the updates.
        num_updates: Number of updates that the agent has made in total.
        acting: New parameters for acting, float32 `(P,)`; `None` if the agent acts with the parameters that it learns.
    """

    metrics: dict[str, float]
    num_updates: int
    acting: F32 | None


CompiledCall = tuple[tuple[str, ...], Any, tuple[Any, ...]]
"""Part of a compiled update: names of the metrics that it returns first, the function and its arguments."""


class OffPolicyAgent(Agent[Config]):
    """An agent that learns from a replay buffer.

    A round of training is `act_batch`, a step of the fleet, `remember`, and `update` if `is_ready`. An update consists
    of `prepare`, `learn` and `publish`; if `can_overlap`, updates can run in another thread during rounds.

    A subclass defines these methods; see `Agent` for `_build` and `_act`:

    - `_build` creates networks and optimizers, and calls `use_replay` with a replay buffer.
    - `_act` chooses actions, uniformly at random until `is_warm`.
    - `encode_actions` returns actions in the form that the replay buffer stores.
    - `learn_batch` makes one gradient update from a batch; `network_inputs` turns its observations into rows.

    A subclass of SAC, TD3 or DDDQN that overrides one of them or a loss learns by torch, since compiled updates would
    ignore it.

    Attributes:
        replay: Replay buffer.
    """

    compiled_methods: ClassVar[tuple[str, ...]] = (
        "_build", "_act", "encode_actions", "learn_batch", "network_inputs",
    )  # fmt: skip
    replay: ReplayBuffer
    _acting: nn.ParameterDict  # with compiled updates: "actor", the parameters for acting, changed only by `publish`
    _acting_buffer: ParameterBuffer  # the same memory, or that of another agent that shares its weights
    _compiled: Adam | None  # optimizer of the network that acts
    _num_noises = 0  # arrays of standard normal noise that a compiled update needs, each shaped like a batch's actions
    _noise: ColoredNoise | None = None
    _moments: RunningMoments | None = None  # of observations, if networks see normalized observations

    def use_replay(self, replay: ReplayBuffer) -> None:
        """Set the replay buffer and its n-step writer; call it once, in `_build`.

        Args:
            replay: Empty buffer for actions in the form that `encode_actions` returns.
        """
        self.replay = replay
        self._writer = NStepWriter(replay, self.num_envs, self.config.num_steps, self.config.gamma)
        self._memories = {"replay": replay, "n_step": self._writer}
        if self.config.normalize_observations:
            check_normalizable(self.observation_space, self.config)
            self._moments = RunningMoments(self.packing.num_inputs).to(self.device)
            self._networks["observation_moments"] = self._moments

    @property
    def is_warm(self) -> bool:
        """Return whether the warm-up with uniform actions is over."""
        return self.num_transitions >= self.config.warmup

    @property
    def is_ready(self) -> bool:
        """Return whether there are enough transitions to learn from."""
        return self.is_warm and len(self.replay) >= self.config.batch_size

    def remember(self, transitions: Transitions) -> None:
        """Add transitions to the replay buffer, at most one per sub-environment, in chronological order.

        Raises:
            InvalidArgument: An action is not in the action space, or `num_steps` is above 1 and the agent was made for
                fewer sub-environments.
        """
        self._writer.write(transitions, self.encode_actions(transitions.actions))
        self.num_transitions += len(transitions)
        if self._moments is not None and len(transitions):
            self._moments.update(self.packing.rows(torch.from_numpy(transitions.observations).to(self.device)))
        self._start_noise(transitions.env_indices[transitions.ended])

    def start_episodes(self, env_indices: NDArray[Any]) -> None:
        """Report that these sub-environments were reset during an episode; `remember` sees all other ends.

        Steps that wait for n rewards are stored as if the episode had been truncated.
        """
        rows = np.asarray(env_indices, np.int64)
        self._writer.cut(rows)
        self._start_noise(rows)

    def _copy_for_acting(self, learned: Adam, *layers: NDArray[np.int64]) -> Adam:
        """Act with a copy of the learned parameters that `publish` updates.

        Args:
            learned: Parameters of the network that acts.
            *layers: Layers of the networks that compiled updates need, see `layer_table`.

        Returns:
            `learned`.
        """
        self._layers, self._work = layers, make_workspace(self.config.batch_size, *layers)
        self._acting = nn.ParameterDict({"actor": nn.Parameter(learned.tensor.clone(), requires_grad=False)})
        self._acting_buffer, self._memories["acting"] = ParameterBuffer(self._acting.values()), self._acting
        return learned

    def update(self, num_updates: int = 1) -> dict[str, float]:
        """Make gradient updates on one batch each, then act with the new parameters.

        Returns:
            Losses and other metrics by name, means over the updates.

        Raises:
            InvalidArgument: The replay buffer is empty.
        """
        return self.publish(self.learn(self.prepare(num_updates)))

    @property
    def can_overlap(self) -> bool:
        """Return whether `submit_learning` works: updates are compiled, and no batch depends on earlier updates."""
        return self.is_compiled and self.replay.priorities is None

    def prepare(self, num_updates: int) -> Iterable[Any]:
        """Set the learning rate and return the batches of `num_updates` updates, which are sampled lazily."""
        for learner in self._learners.values():
            if isinstance(learner, Adam):
                learner.learning_rate = self.config.learning_rate_after(self.num_transitions)
        batches: Iterable[Any] = self.replay.batches(num_updates, self.config.batch_size)
        return map(self._to_arrays, batches) if self.is_compiled else batches

    def _to_arrays(self, batch: Batch) -> tuple[Batch, tuple[F32, ...]]:
        """Return a batch and noise as arrays for compiled code."""
        noises = (self.random.normal(torch.as_tensor(batch.actions)).numpy() for _ in range(self._num_noises))
        arrays = batch.arrays()
        if self._moments is not None:
            observations, next_observations = map(self._normalize, (arrays.observations, arrays.next_observations))
            arrays = arrays._replace(observations=observations, next_observations=next_observations)
        return arrays, tuple(noises)

    def _normalize(self, rows: Any) -> Any:
        return rows if self._moments is None else self._moments(torch.as_tensor(rows)).numpy()

    def network_inputs(self, observations: Tensor) -> Tensor:
        """Return observations of a batch, `(B, …)`, as inputs of networks, float32 `(B, inputs)`."""
        rows = self.packing.rows(observations)
        return rows if self._moments is None else self._moments(rows)

    def learn(self, batches: Iterable[Any]) -> LearningResult:
        """Make gradient updates; compiled updates leave the parameters for acting unchanged until `publish`.

        Args:
            batches: One batch per update, from `prepare`.
        """
        means = Means()
        for batch in batches:
            means.add(self._update_compiled(*batch) if self.is_compiled else self.learn_batch(batch.to(self.device)))
            self.num_updates += 1
        acting = None if self._compiled is None else self._compiled.values.copy()
        return LearningResult(means.result(), self.num_updates, acting)

    def _update_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> dict[str, float]:
        metrics = dict[str, float]()
        with one_blas_thread():
            for names, function, arguments in self._learn_compiled(batch, noises):
                result = function(*arguments)
                metrics |= zip(names, result, strict=False)
        if self.replay.priorities is not None:
            self.replay.priorities.set_errors(batch.indices, result[-1])
        return metrics

    def submit_learning(self, batches: Iterable[Any], executor: Executor) -> Future[LearningResult]:
        """Make gradient updates in the only thread of an executor, after those that were submitted before.

        Returns:
            The result of `learn`.
        """
        calls = list[CompiledCall]()
        for batch in batches:
            calls += self._learn_compiled(*batch)
            self.num_updates += 1
        num_updates, values = self.num_updates, self._compiled.values  # type: ignore[union-attr]

        def learn() -> LearningResult:
            means = Means()
            with one_blas_thread():
                for names, function, arguments in calls:
                    means.add(dict(zip(names, function(*arguments), strict=False)))
            return LearningResult(means.result(), num_updates, values.copy())

        return executor.submit(learn)

    def publish(self, result: LearningResult) -> dict[str, float]:
        """Act with the learned parameters from now on; return the metrics."""
        if result.acting is not None:
            self._acting_buffer.values[:] = result.acting
        return result.metrics

    def set_weights(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load the weights of another agent with the same spaces and hyperparameters."""
        super().set_weights(weights)
        if self._compiled is not None:
            self._acting_buffer.values[:] = self._compiled.values

    def _inputs(self, observations: NDArray[Any]) -> Any:
        """Return tensors, or arrays if acting is compiled and observations are floats."""
        if self._compiled is None or observations.dtype.kind != "f":
            rows = super()._inputs(observations)
            return rows if self._moments is None else self._moments(rows)
        return self._normalize(np.ascontiguousarray(observations, np.float32).reshape(len(observations), -1))

    @abc.abstractmethod
    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions of the action space, `(M, …)`, in the form that the replay buffer stores."""

    @abc.abstractmethod
    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update.

        Args:
            batch: B transitions as tensors on the agent's device.

        Returns:
            Losses and other metrics by name, scalars.
        """

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[CompiledCall]:
        """Return the compiled calls that make the same update as `learn_batch`, for a batch of arrays."""
        raise NotImplementedError

    def _start_noise(self, rows: NDArray[np.int64]) -> None:
        """Start new noise sequences for sub-environments that start an episode."""
        if self._noise is not None:
            self._noise.reset(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplorationConfig(OffPolicyConfig):
    """Hyperparameters of agents for continuous actions.

    Attributes:
        noise_exponent: Color of each sub-environment's exploration noise over time: 0 white, 1 pink, 2 red.
        noise_length: Length of a sequence of colored noise in steps; pass the length of the longest episode.
    """

    noise_exponent: float = 0.0
    noise_length: Positive[int] = 1_000


ContinuousConfig = TypeVar("ContinuousConfig", bound=ExplorationConfig)


class ContinuousAgent(OffPolicyAgent[ContinuousConfig]):
    """Off-policy agent for actions in a bounded box, which it scales to -1 to 1.

    It has two critics and an actor; the tanh of the actor's first outputs is the best action.
    """

    compiled_methods = (*OffPolicyAgent.compiled_methods, "_choose", "critic_loss")
    _num_outputs = 1  # outputs of the actor per element of an action

    def _build(self) -> None:
        config, self._bounds = self.config, Bounds(self.action_space)
        form, place = (config.capacity, self.packing.space, (self._bounds.size,)), config.replay_device or self.device
        self.use_replay(ReplayBuffer(*form, rng=self.random.replay, device=place))
        if config.noise_exponent:
            self._noise = ColoredNoise(
                self.num_envs, self._bounds.size, config.noise_exponent, config.noise_length, self.random.numpy
            )
            self._learners["noise"] = self._noise
        self._actor = network_of(self.packing, config, self._num_outputs * self._bounds.size).to(self.device)
        self._critics = Critics(self.packing, config, self._bounds.size).to(self.device)
        self._actor_optimizer, self._critic_optimizer = (
            Adam(network.parameters(), config.learning_rate, max_norm=config.max_grad_norm)
            for network in (self._actor, self._critics)
        )
        self._networks |= {"actor": self._actor, "critics": self._critics}
        self._learners |= {"actor_optimizer": self._actor_optimizer, "critic_optimizer": self._critic_optimizer}

    def best_actions(self) -> nn.Module:
        """Return the deterministic policy as a module, from rows of observations to actions."""
        return nn.Sequential(self._moments or nn.Identity(), self._actor, self._bounds).to(self.device)

    def _compile(self) -> Adam:
        return self._copy_for_acting(
            self._actor_optimizer, layer_table(self._actor), layer_table(*self._critics.critics)
        )

    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions scaled to -1 to 1, `(M, size)`."""
        return self._bounds.units(actions)

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        if not deterministic and not self.is_warm:
            return self._bounds.take(self.random.numpy.uniform(-1.0, 1.0, (len(inputs), self._bounds.size)))
        noise = None if deterministic else self._draw_noise(rows)
        return self._bounds.take(self._choose(inputs, noise))

    @abc.abstractmethod
    def _choose(self, inputs: Tensor, noise: F32 | None) -> F32:
        """Return actions from -1 to 1, `(N, size)`; with noise of that shape, explore.

        With compiled updates, the parameters are in `_acting_buffer`, and inputs can be arrays.
        """

    def critic_loss(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of both critics, the mean squared error.

        Args:
            values: Values of the transitions by both critics, `(2, B)`.
            targets: Target values without gradient, `(B,)`.
        """
        return (values - targets).square().mean()  # half of the sum of both

    def _draw_noise(self, rows: NDArray[np.int64]) -> F32:
        if self._noise is None:
            return self.random.numpy.standard_normal((len(rows), self._bounds.size), np.float32)
        return self._noise.draw(rows)
