"""The base of all agents: actions for a batch, and a state that is saved and restored."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from envfleet.agents import saving
from envfleet.agents.actions import ActionTable
from envfleet.agents.networks import is_vector
from envfleet.agents.packing import Packing
from envfleet.agents.randomness import Random, torch_seed
from envfleet.errors import InvalidArgument
from envfleet.native import blas, compiling
from envfleet.registry import AGENTS, resolve

if TYPE_CHECKING:
    from envfleet.fleet.rollout import Rollout
    from envfleet.kernels.rollouts.policies import MLP

Contents = Literal["weights", "learner", "all"]
Config = TypeVar("Config")


class Agent(abc.ABC, Generic[Config]):
    """A policy that learns.

    A kind of agent has a `config_class`, the dataclass of its hyperparameters. Its `_build` puts networks and
    optimizers into `_networks` and `_learners`: those are saved and restored.

    Args:
        observation_space: Of one sub-environment: Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of
            them.
        action_space: Of one sub-environment.
        config: Hyperparameters.
        num_envs: Sub-environments it acts for.
        seed: All its randomness derives from it; `None` draws one.
        device: Where its networks live: `"cpu"`, `"cuda"`, …

    Attributes:
        compiled_methods: Names of the methods that compiled updates replace or rely on; a subclass that overrides one
            of them learns by torch.
        packing: How observations are held and given to networks.
        num_transitions: Transitions it was given.
        num_updates: Gradient updates it made.
    """

    config_class: ClassVar[type[Any]]
    compiled_methods: ClassVar[tuple[str, ...]] = ()
    _compiled: Any = None

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any] | ActionTable,
        config: Config | None = None,
        *,
        num_envs: int = 1,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.packing = Packing(observation_space)
        if num_envs < 1:
            raise InvalidArgument(f"num_envs={num_envs}: pass the number of sub-environments the agent acts for")
        self.observation_space, self.action_space = observation_space, action_space
        self.config: Config = self.config_class() if config is None else config
        self.num_envs, self.device = num_envs, torch.device(device)
        self.num_transitions = self.num_updates = 0
        for_weights, draws = np.random.SeedSequence(seed).spawn(2)
        self.random = Random(draws, self.device)
        # What state_dict saves: networks with "weights", also learners with "learner", also memories with "all"; all of
        # them have state_dict and load_state_dict.
        self._networks: dict[str, nn.Module] = {}
        self._learners: dict[str, Any] = {"random": self.random}
        self._memories: dict[str, Any] = {}
        with torch.random.fork_rng(devices=[]):  # leaves torch's global generator as it was
            torch.manual_seed(torch_seed(for_weights))
            self._build()
        if self.may_compile(self.config) and is_vector(self.packing) and self.device.type == "cpu":
            self._compiled = self._compile()

    @abc.abstractmethod
    def _build(self) -> None:
        """Make networks and optimizers; called once, while torch's global generator draws from the agent's seed."""

    def _compile(self) -> Any:
        """Prepare compiled updates, and return what they need; called if they can be made."""

    @classmethod
    def may_compile(cls, config: Any) -> bool:
        """Return whether updates with these hyperparameters are compiled on the CPU, if observations are vectors."""
        original = next((parent for parent in cls.__mro__ if "_learn_compiled" in vars(parent)), None)
        if original is None or any(getattr(cls, name) is not getattr(original, name) for name in cls.compiled_methods):
            return False  # compiled code would ignore methods that a subclass overrides
        if not config.compiled or config.network is not None or config.layer_norm:
            return False
        return compiling.is_available() and blas.is_available()

    @property
    def is_compiled(self) -> bool:
        """Return whether updates are compiled, not made by torch."""
        return self._compiled is not None

    @property
    def name(self) -> str:
        """Return the name of this kind of agent."""
        return type(self).__name__

    # ------------------------------------------------------------------ acting

    def act(self, observation: Any, deterministic: bool = False) -> Any:
        """Choose an action for one observation; it is taken to be sub-environment 0's."""
        return self.act_batch(self.pack(observation)[None], deterministic)[0]

    def act_batch(
        self, observations: Any, deterministic: bool = False, *, env_indices: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Choose an action for every observation.

        Args:
            observations: `(N, …)`, in the form of the observation space or as `pack` returns them.
            deterministic: Whether to choose the best, without exploration.
            env_indices: Whose observations these are, `(N,)`, for exploration that is correlated over time; `None`
                for sub-environments 0 to N - 1.

        Returns:
            `(N, …)`, in the form of the action space.

        Raises:
            InvalidArgument: Observations of a wrong shape.
        """
        array, shape = self.pack(observations), self.packing.space.shape or ()
        if not array.ndim or array.shape[1:] != shape:
            if self.packing.is_nested and not isinstance(observations, (Mapping, tuple)):
                raise InvalidArgument(
                    f"observations are an array of shape {array.shape}, expected the form of "
                    f"{self.observation_space}: pass what the environment returns, or several of them batched"
                )
            raise InvalidArgument(
                f"observations have shape {array.shape}, expected (N, …) = (N, {', '.join(map(str, shape))}): pass one "
                f"row per sub-environment, of {self.observation_space}"
            )
        rows = np.arange(len(array)) if env_indices is None else np.asarray(env_indices, np.int64)
        with torch.no_grad():
            return self._act(self._inputs(array), deterministic, rows)

    def pack(self, observations: Any) -> NDArray[Any]:
        """Return observations, with any leading dimensions, as one array: what replay buffers and rollouts hold.

        Arrays stay as they are; observations of a Dict or Tuple space become rows of bytes.
        """
        return self.packing.pack(observations)

    @abc.abstractmethod
    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Choose actions, `(N, …)`, for inputs of networks, `(N, size)`."""

    def best_actions(self) -> nn.Module:
        """Return what `act_batch` does without exploration as a module, from rows of observations to actions.

        Raises:
            InvalidArgument: The agent has no such module.
        """
        raise InvalidArgument(
            f"{self.name} cannot be exported, as it has no best_actions(): define it to return a torch.nn.Module from "
            "rows of observations, (N, inputs), to actions"
        )

    def _inputs(self, observations: NDArray[Any]) -> Tensor:
        array = np.require(observations, None, ["C", "W"])  # torch warns of arrays that it could not write to
        return self.packing.rows(torch.from_numpy(array).to(self.device))

    # ------------------------------------------------------------------ state

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """Copies of the weights of all networks: what a snapshot of the policy needs."""
        copies: dict[str, dict[str, Tensor]] = self.state_dict("weights")["networks"]
        return copies

    def set_weights(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over the weights of another agent of the same form."""
        for name, network in self._networks.items():
            try:
                network.load_state_dict(weights[name])
            except (KeyError, RuntimeError) as error:
                raise InvalidArgument(
                    f"saved weights do not fit the network {name!r} of {self!r} ({error}): make the agent with the "
                    "spaces and the hyperparameters of the saved one (load_agent does)"
                ) from error

    def state_dict(self, contents: Contents = "all") -> dict[str, Any]:
        """Save the agent as it is now, as nested dicts of tensors, numbers and text; all of it copies.

        Args:
            contents: `"weights"`: networks and counters. `"learner"`: also optimizers, generators and exploration.
                `"all"`: also what it remembers, the replay buffer above all; with it, training goes on as if it had
                not been interrupted, on a CPU with one thread to the last bit.
        """
        if contents not in get_args(Contents):
            raise InvalidArgument(f"contents={contents!r}: pass one of {', '.join(map(repr, get_args(Contents)))}")
        counters = {"transitions": self.num_transitions, "updates": self.num_updates}
        state: dict[str, Any] = {"networks": _states(self._networks), "counters": counters}
        if contents != "weights":
            state["learners"] = _states(self._learners)
        if contents == "all":
            state["memories"] = _states(self._memories)
        copies: dict[str, Any] = saving.portable(state)
        return copies

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another agent of the same form; what it does not hold stays as it is."""
        state = saving.portable(state)  # optimizers would share tensors with it
        self.set_weights(state["networks"])
        self.num_transitions, self.num_updates = state["counters"]["transitions"], state["counters"]["updates"]
        for kind, parts in (("learners", self._learners), ("memories", self._memories)):
            for name in parts.keys() & state.get(kind, {}).keys():
                parts[name].load_state_dict(state[kind][name])

    def save(self, path: str | Path, contents: Contents = "learner") -> None:
        """Write the agent to a file, which `load` and `load_agent` read without executing anything.

        Args:
            path: The file. It is replaced as a whole once the new one is complete.
            contents: As in `state_dict`.
        """
        payload = {
            "agent": self._kind(),
            "config": dataclasses.asdict(self.config),  # type: ignore[call-overload]  # all are dataclasses
            "observation_space": saving.encode_space(self.observation_space),
            "action_space": saving.encode_space(self.action_space),
            "num_envs": self.num_envs,
            "state": self.state_dict(contents),
        }
        saving.write(path, payload)

    def load(self, path: str | Path) -> None:
        """Take over the state of the agent in a file; if its `num_envs` is another, only weights and counters.

        Raises:
            InvalidArgument: It is no such file, or the agent in it is of another kind or form.
        """
        payload = saving.read(path)
        if payload["agent"] != self._kind():
            raise InvalidArgument(
                f"{path} holds a {payload['agent']}, this is a {self._kind()}: use load_agent({path!r})"
            )
        self.restore(payload)

    def restore(self, payload: Mapping[str, Any]) -> None:
        """Take over what `save` wrote: of an agent for another number of sub-environments, weights and counters."""
        state = payload["state"]
        if payload["num_envs"] != self.num_envs:
            state = {name: state[name] for name in ("networks", "counters")}
        self.load_state_dict(state)

    @classmethod
    def _kind(cls) -> str:
        """Return the name that files know this kind of agent by, which `load_agent` finds the class with."""
        name = cls.__name__
        is_registered = name in AGENTS and resolve(AGENTS[name]) is cls
        return name if is_registered else f"{cls.__module__}:{cls.__qualname__}"

    def __repr__(self) -> str:
        return (
            f"<{self.name} for {self.num_envs} sub-environments: {self.num_transitions:,} transitions, "
            f"{self.num_updates:,} updates>"
        )


class RolloutAgent(Agent[Config]):
    """An agent that learns from rollouts of what it just did, and forgets them."""

    @abc.abstractmethod
    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout that this policy just played.

        Args:
            rollout: T steps of N sub-environments.

        Returns:
            Losses and other figures by name; nothing if all steps were resets.
        """

    def export_policy(self, deterministic: bool = False) -> MLP | None:
        """Return the policy as a network that rollouts of kernels compile; `None` if it is none."""
        return None


def _states(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}
