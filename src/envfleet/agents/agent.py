"""Base classes of all agents: actions for batches, and saved states."""

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
    from envfleet.kernels.policies import MLP

Contents = Literal["weights", "learner", "all"]
Config = TypeVar("Config")


class Agent(abc.ABC, Generic[Config]):
    """Base class of agents: a policy that learns.

    A subclass sets `config_class` to the dataclass of its hyperparameters. Its `_build` puts networks and optimizers
    into `_networks` and `_learners`, which are saved and restored.

    Args:
        observation_space: Observation space of one sub-environment: Box, Discrete, MultiBinary, MultiDiscrete, or a
            Dict or Tuple of them.
        action_space: Action space of one sub-environment.
        config: Hyperparameters.
        num_envs: Number of sub-environments that the agent acts for.
        seed: Seed of all random numbers; `None` for a random one.
        device: Device of the networks: `"cpu"`, `"cuda"`, …

    Attributes:
        compiled_methods: Names of the methods that compiled updates replace or rely on; a subclass that overrides one
            of them learns by torch.
        packing: Converts observations to arrays and to inputs of networks.
        num_transitions: Number of transitions that the agent has received.
        num_updates: Number of gradient updates that it has made.
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
            raise InvalidArgument(
                f"num_envs={num_envs}, expected at least 1: pass the number of sub-environments that the agent acts for"
            )
        self.observation_space, self.action_space = observation_space, action_space
        self.config: Config = self.config_class() if config is None else config
        self.num_envs, self.device = num_envs, torch.device(device)
        self.num_transitions = self.num_updates = 0
        for_weights, draws = np.random.SeedSequence(seed).spawn(2)
        self.random = Random(draws, self.device)
        # `state_dict("weights")` saves networks, "learner" also learners, "all" also memories; each of these objects
        # has `state_dict` and `load_state_dict`.
        self._networks: dict[str, nn.Module] = {}
        self._learners: dict[str, Any] = {"random": self.random}
        self._memories: dict[str, Any] = {}
        with torch.random.fork_rng(devices=[]):  # restores torch's global generator
            torch.manual_seed(torch_seed(for_weights))
            self._build()
        if self.may_compile(self.config) and is_vector(self.packing) and self.device.type == "cpu":
            self._compiled = self._compile()

    @abc.abstractmethod
    def _build(self) -> None:
        """Create networks and optimizers; called once, with torch's global generator seeded by the agent's seed."""

    def _compile(self) -> Any:
        """Prepare compiled updates and return their state; called only if updates can be compiled."""

    @classmethod
    def may_compile(cls, config: Any) -> bool:
        """Return whether updates with these hyperparameters can be compiled, on the CPU and for vector observations."""
        original = next((parent for parent in cls.__mro__ if "_learn_compiled" in vars(parent)), None)
        if original is None or any(getattr(cls, name) is not getattr(original, name) for name in cls.compiled_methods):
            return False  # compiled code would ignore methods that a subclass overrides
        if not config.compiled or config.network is not None or config.layer_norm:
            return False
        return compiling.is_available() and blas.is_available()

    @property
    def is_compiled(self) -> bool:
        """Return whether updates are compiled instead of made by torch."""
        return self._compiled is not None

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return type(self).__name__

    # ------------------------------------------------------------------ acting

    def act(self, observation: Any, deterministic: bool = False) -> Any:
        """Choose an action for one observation of sub-environment 0."""
        return self.act_batch(self.pack(observation)[None], deterministic)[0]

    def act_batch(
        self, observations: Any, deterministic: bool = False, *, env_indices: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Choose an action for every observation.

        Args:
            observations: Observations in the form of the space or as `pack` returns them, `(N, …)`.
            deterministic: True to choose the best actions, without exploration.
            env_indices: Sub-environments of the observations, `(N,)`, for noise that is correlated over time; `None`
                for sub-environments 0 to N - 1.

        Returns:
            Actions in the form of the space, `(N, …)`.

        Raises:
            InvalidArgument: Observations have a wrong shape.
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
        """Return observations, with any leading dimensions, as the one array that replay buffers and rollouts store.

        Arrays are returned unchanged; observations of a Dict or Tuple space become rows of bytes.
        """
        return self.packing.pack(observations)

    @abc.abstractmethod
    def _act(self, inputs: Tensor, deterministic: bool, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Choose actions, `(N, …)`, for inputs of networks, `(N, size)`."""

    def best_actions(self) -> nn.Module:
        """Return the deterministic policy as a module, from rows of observations to actions.

        Raises:
            InvalidArgument: The class does not define it.
        """
        raise InvalidArgument(
            f"{self.name} cannot be exported, since it does not define best_actions(): return a torch.nn.Module from "
            "rows of observations, (N, inputs), to actions"
        )

    def _inputs(self, observations: NDArray[Any]) -> Tensor:
        array = np.require(observations, None, ["C", "W"])  # torch warns about read-only arrays
        return self.packing.rows(torch.from_numpy(array).to(self.device))

    # ------------------------------------------------------------------ state

    def weights(self) -> dict[str, dict[str, Tensor]]:
        """Return copies of the weights of all networks."""
        copies: dict[str, dict[str, Tensor]] = self.state_dict("weights")["networks"]
        return copies

    def set_weights(self, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load the weights of another agent with the same spaces and hyperparameters."""
        for name, network in self._networks.items():
            try:
                network.load_state_dict(weights[name])
            except (KeyError, RuntimeError) as error:
                raise InvalidArgument(
                    f"saved weights do not fit the network {name!r} of {self!r} ({error}): create the agent with the "
                    "spaces and hyperparameters of the saved one, as load_agent does"
                ) from error

    def state_dict(self, contents: Contents = "all") -> dict[str, Any]:
        """Return a copy of the agent's state as nested dicts of tensors, numbers and text.

        Args:
            contents: `"weights"`: networks and counters. `"learner"`: also optimizers, generators and exploration
                noise. `"all"`: also the replay buffer; with it, training continues as if it had not been interrupted,
                on a CPU with one thread bit for bit.
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
        """Load the state of an agent with the same spaces and hyperparameters; missing parts are left unchanged."""
        state = saving.portable(state)  # a copy: optimizers would share its tensors
        self.set_weights(state["networks"])
        self.num_transitions, self.num_updates = state["counters"]["transitions"], state["counters"]["updates"]
        for kind, parts in (("learners", self._learners), ("memories", self._memories)):
            for name in parts.keys() & state.get(kind, {}).keys():
                parts[name].load_state_dict(state[kind][name])

    def save(self, path: str | Path, contents: Contents = "learner") -> None:
        """Write the agent to a file that `load` and `load_agent` read without executing code.

        Args:
            path: Path of the file, which is replaced atomically.
            contents: Contents as in `state_dict`.
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
        """Load the state of a saved agent; if its `num_envs` differs, only weights and counters.

        Raises:
            InvalidArgument: The file is not a saved agent, or the agent's class, spaces or hyperparameters differ.
        """
        payload = saving.read(path)
        if payload["agent"] != self._kind():
            raise InvalidArgument(
                f"{path} holds a {payload['agent']}, this is a {self._kind()}: use load_agent({path!r})"
            )
        self.restore(payload)

    def restore(self, payload: Mapping[str, Any]) -> None:
        """Load the contents of a file from `save`; if its `num_envs` differs, only weights and counters."""
        state = payload["state"]
        if payload["num_envs"] != self.num_envs:
            state = {name: state[name] for name in ("networks", "counters")}
        self.load_state_dict(state)

    @classmethod
    def _kind(cls) -> str:
        """Return the name of this class in files, by which `load_agent` finds it."""
        name = cls.__name__
        is_registered = name in AGENTS and resolve(AGENTS[name]) is cls
        return name if is_registered else f"{cls.__module__}:{cls.__qualname__}"

    def __repr__(self) -> str:
        return (
            f"<{self.name} for {self.num_envs} sub-environments: {self.num_transitions:,} transitions, "
            f"{self.num_updates:,} updates>"
        )


class RolloutAgent(Agent[Config]):
    """On-policy agent: learns from rollouts that it has just played."""

    @abc.abstractmethod
    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout that this policy just played.

        Args:
            rollout: T steps of N sub-environments.

        Returns:
            Losses and other metrics by name; empty if all steps were resets.
        """

    def export_policy(self, deterministic: bool = False) -> MLP | None:
        """Return the policy as a network for compiled rollouts of kernels; `None` if it is not such a network."""
        return None


def _states(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}
