"""The base of agents with a replay buffer: remembering, and updates from batches."""

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
from envfleet.agents.descent import Adam, Flat, layers_of, workspace
from envfleet.agents.hyperparameters import OffPolicyConfig, Positive
from envfleet.agents.means import Means
from envfleet.agents.n_step import NStepWriter
from envfleet.agents.networks import Critics, RunningMoments, check_moments, network_of
from envfleet.agents.randomness import ColoredNoise
from envfleet.agents.replay import Batch, ReplayBuffer
from envfleet.agents.transitions import Transitions
from envfleet.native.blas import one_blas_thread

Config = TypeVar("Config", bound=OffPolicyConfig)


class Learnt(NamedTuple):
    """What gradient updates led to.

    Attributes:
        figures: Losses and others by name, means over the updates.
        num_updates: Of the agent so far.
        acting: Parameters to act by, float32 `(P,)`; `None` where those that learn act.
    """

    figures: dict[str, float]
    num_updates: int
    acting: F32 | None


UpdatePart = tuple[tuple[str, ...], Any, tuple[Any, ...]]
"""A part of a compiled update: names of the first numbers that it returns, the function and its arguments."""


class OffPolicyAgent(Agent[Config]):
    """An agent that learns from a replay buffer.

    A round of training is `act_batch`, a step of the fleet, `remember`, and `update` if `is_ready`. An update is
    `prepare`, `learn` and `publish`; where it `can_learn_beside`, updates are made during rounds.

    A kind of agent has these methods; `Agent` says what `_build` and `_act` do:

    - `_build` makes networks and optimizers, and calls `use_replay` with a replay buffer.
    - `_act` chooses actions, uniformly at random until `is_warm`.
    - `encode_actions` returns actions as the replay buffer holds them.
    - `learn_batch` makes one gradient update from a batch; `network_inputs` turns its observations into rows.

    A subclass of SAC, TD3 or DDDQN that overrides one of them or a loss learns by torch, since compiled updates would
    ignore it.

    Attributes:
        replay: The buffer.
    """

    compiled_methods: ClassVar[tuple[str, ...]] = (
        "_build", "_act", "encode_actions", "learn_batch", "network_inputs",
    )  # fmt: skip
    replay: ReplayBuffer
    _acting: nn.ParameterDict  # where updates are compiled: "actor" to act by, which stay as they are until `publish`
    _acts_by: Flat  # the same memory, or that of another agent whose weights this one shares
    _compiled: Adam | None  # of the network that acts
    _num_noises = 0  # arrays of standard normal noise, each like the actions of a batch, that a compiled update needs
    _noise: ColoredNoise | None = None
    _moments: RunningMoments | None = None  # of observations, if networks see them normalized

    def use_replay(self, replay: ReplayBuffer) -> None:
        """Learn from this replay buffer, n-step returns included; to be called once, in `_build`.

        Args:
            replay: Empty buffer, whose actions have the form that `encode_actions` returns.
        """
        self.replay = replay
        self._writer = NStepWriter(replay, self.num_envs, self.config.num_steps, self.config.gamma)
        self._memories = {"replay": replay, "n_step": self._writer}
        if self.config.normalize_observations:
            check_moments(self.observation_space, self.config)
            self._moments = RunningMoments(self.packing.num_inputs).to(self.device)
            self._networks["observation_moments"] = self._moments

    @property
    def is_warm(self) -> bool:
        """Return whether uniform actions have given way to its own."""
        return self.num_transitions >= self.config.warmup

    @property
    def is_ready(self) -> bool:
        """Return whether there is enough to learn from."""
        return self.is_warm and len(self.replay) >= self.config.batch_size

    def remember(self, transitions: Transitions) -> None:
        """Put transitions into the replay buffer, at most one per sub-environment, in the order they happened.

        Raises:
            InvalidArgument: Actions are unknown; or, with `num_steps` above 1, the agent was made for fewer
                sub-environments.
        """
        self._writer.write(transitions, self.encode_actions(transitions.actions))
        self.num_transitions += len(transitions)
        if self._moments is not None and len(transitions):
            self._moments.update(self.packing.rows(torch.from_numpy(transitions.observations).to(self.device)))
        self._start_noise(transitions.env_indices[transitions.ended])

    def start_episodes(self, env_indices: NDArray[Any]) -> None:
        """Say that these sub-environments were reset in the middle of an episode; `remember` sees all other ends.

        Steps that wait for n rewards are kept as if the episode had been truncated.
        """
        rows = np.asarray(env_indices, np.int64)
        self._writer.cut(rows)
        self._start_noise(rows)

    def _act_by(self, learned: Adam, *layers: NDArray[np.int64]) -> Adam:
        """Act by a copy of parameters, which follows them in `publish`; updates go through networks of these layers."""
        self._layers, self._work = layers, workspace(self.config.batch_size, *layers)
        self._acting = nn.ParameterDict({"actor": nn.Parameter(learned.tensor.clone(), requires_grad=False)})
        self._acts_by, self._memories["acting"] = Flat(self._acting.values()), self._acting
        return learned

    def update(self, num_updates: int = 1) -> dict[str, float]:
        """Make gradient updates, each on a batch of its own, and act by what was learned.

        Returns:
            Losses and other figures by name, means over the updates.

        Raises:
            InvalidArgument: The replay buffer is empty.
        """
        return self.publish(self.learn(self.prepare(num_updates)))

    @property
    def can_learn_beside(self) -> bool:
        """Return whether it can `learn_beside`: updates are compiled, and no batch depends on earlier ones."""
        return self.is_compiled and self.replay.priorities is None

    def prepare(self, num_updates: int) -> Iterable[Any]:
        """Return the batches of so many updates, drawn as they are iterated over, and set the learning rate."""
        for part in self._learners.values():
            if isinstance(part, Adam):
                part.learning_rate = self.config.learning_rate_after(self.num_transitions)
        batches: Iterable[Any] = self.replay.batches(num_updates, self.config.batch_size)
        return map(self._arrays, batches) if self.is_compiled else batches

    def _arrays(self, batch: Batch) -> tuple[Batch, tuple[F32, ...]]:
        """Return what compiled code learns from."""
        noises = (self.random.normal(torch.as_tensor(batch.actions)).numpy() for _ in range(self._num_noises))
        arrays = batch.arrays()
        if self._moments is not None:
            observations, following = map(self._normalized, (arrays.observations, arrays.next_observations))
            arrays = arrays._replace(observations=observations, next_observations=following)
        return arrays, tuple(noises)

    def _normalized(self, rows: Any) -> Any:
        return rows if self._moments is None else self._moments(torch.as_tensor(rows)).numpy()

    def network_inputs(self, observations: Tensor) -> Tensor:
        """Return observations of a batch, `(B, …)`, as networks see them, float32 `(B, inputs)`."""
        rows = self.packing.rows(observations)
        return rows if self._moments is None else self._moments(rows)

    def learn(self, batches: Iterable[Any]) -> Learnt:
        """Make gradient updates; if they are compiled, what acts stays as it is until `publish`.

        Args:
            batches: One for each, as `prepare` returned them.
        """
        means = Means()
        for batch in batches:
            means.add(self._update_compiled(*batch) if self.is_compiled else self.learn_batch(batch.to(self.device)))
            self.num_updates += 1
        acting = None if self._compiled is None else self._compiled.values.copy()
        return Learnt(means.result(), self.num_updates, acting)

    def _update_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> dict[str, float]:
        figures = dict[str, float]()
        with one_blas_thread():
            for names, function, arguments in self._learn_compiled(batch, noises):
                result = function(*arguments)
                figures |= zip(names, result, strict=False)
        if self.replay.priorities is not None:
            self.replay.priorities.set_errors(batch.indices, result[-1])
        return figures

    def learn_beside(self, batches: Iterable[Any], executor: Executor) -> Future[Learnt]:
        """Make gradient updates in the only thread of an executor, after those that were submitted before.

        Returns:
            The result of `learn`.
        """
        parts = list[UpdatePart]()
        for batch in batches:
            parts += self._learn_compiled(*batch)
            self.num_updates += 1
        num_updates, values = self.num_updates, self._compiled.values  # type: ignore[union-attr]

        def learn() -> Learnt:
            means = Means()
            with one_blas_thread():
                for names, function, arguments in parts:
                    means.add(dict(zip(names, function(*arguments), strict=False)))
            return Learnt(means.result(), num_updates, values.copy())

        return executor.submit(learn)

    def publish(self, learnt: Learnt) -> dict[str, float]:
        """Act by what was learned from now on; return its figures."""
        if learnt.acting is not None:
            self._acts_by.values[:] = learnt.acting
        return learnt.figures

    def set_weights(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over the weights of another agent of the same form."""
        super().set_weights(weights)
        if self._compiled is not None:
            self._acts_by.values[:] = self._compiled.values

    def _inputs(self, observations: NDArray[Any]) -> Any:
        """Return tensors, or arrays where acting is compiled and observations are floats."""
        if self._compiled is None or observations.dtype.kind != "f":
            rows = super()._inputs(observations)
            return rows if self._moments is None else self._moments(rows)
        return self._normalized(np.ascontiguousarray(observations, np.float32).reshape(len(observations), -1))

    @abc.abstractmethod
    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions, `(M, …)` of the action space, as the replay buffer holds them."""

    @abc.abstractmethod
    def learn_batch(self, batch: Batch) -> dict[str, Tensor]:
        """Make one gradient update.

        Args:
            batch: B transitions as tensors on the agent's device.

        Returns:
            Losses and other figures by name, scalars.
        """

    def _learn_compiled(self, batch: Batch, noises: tuple[F32, ...]) -> list[UpdatePart]:
        """Return the compiled calls that do what `learn_batch` does, for a batch of arrays; marks a compiled class."""
        raise NotImplementedError

    def _start_noise(self, rows: NDArray[np.int64]) -> None:
        """Begin new noise for sub-environments whose episode is new."""
        if self._noise is not None:
            self._noise.reset(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExplorationConfig(OffPolicyConfig):
    """Hyperparameters of agents whose actions are continuous.

    Attributes:
        noise_exponent: Colour of the exploration noise of each sub-environment over time: 0 white, 1 pink, 2 red.
        noise_length: Steps after which colored noise is drawn anew within an episode: the longest episode.
    """

    noise_exponent: float = 0.0
    noise_length: Positive[int] = 1_000


ContinuousConfig = TypeVar("ContinuousConfig", bound=ExplorationConfig)


class ContinuousAgent(OffPolicyAgent[ContinuousConfig]):
    """An off-policy agent for actions in a bounded box, which it sees as numbers from -1 to 1.

    It has an actor, of whose outputs for an action the tanh of the first ones is the best action, and two critics.
    """

    compiled_methods = (*OffPolicyAgent.compiled_methods, "_choose", "critic_loss")
    _num_outputs = 1  # of the actor, for each element of an action

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
        """Return the actor without noise as a module."""
        return nn.Sequential(self._moments or nn.Identity(), self._actor, self._bounds).to(self.device)

    def _compile(self) -> Adam:
        return self._act_by(self._actor_optimizer, layers_of(self._actor), layers_of(*self._critics.critics))

    def encode_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions as numbers from -1 to 1, `(M, size)`."""
        return self._bounds.units(actions)

    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        if not deterministic and not self.is_warm:
            return self._bounds.take(self.random.numpy.uniform(-1.0, 1.0, (len(inputs), self._bounds.size)))
        noise = None if deterministic else self._draw(rows)
        return self._bounds.take(self._choose(inputs, noise))

    @abc.abstractmethod
    def _choose(self, inputs: Tensor, noise: F32 | None) -> F32:
        """Choose numbers from -1 to 1, `(N, size)`, for inputs of networks; explore if there is noise, of that shape.

        Where updates are compiled, the parameters to choose by are those of `_acts_by`, and inputs may be arrays.
        """

    def critic_loss(self, values: Tensor, goals: Tensor) -> Tensor:
        """Return the loss of both critics, the mean square.

        Args:
            values: Values that the critics give to the transitions, `(2, B)`.
            goals: Values to learn, without gradient, `(B,)`.
        """
        return (values - goals).square().mean()  # half of the sum of both

    def _draw(self, rows: NDArray[np.int64]) -> F32:
        if self._noise is None:
            return self.random.numpy.standard_normal((len(rows), self._bounds.size), np.float32)
        return self._noise.draw(rows)
