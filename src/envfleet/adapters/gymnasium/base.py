"""What `AsyncFleet` and `SyncFleet` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import VectorEnv

from envfleet.adapters.originals import raising_originals
from envfleet.core.fleet import Fleet
from envfleet.core.rows import StepResult
from envfleet.errors import InvalidArgument, SpacesDiffer

MakeEnv: TypeAlias = Callable[[], gym.Env[Any, Any]]
ObservationMode: TypeAlias = str | tuple[gym.Space[Any], gym.Space[Any]]


class NotOffered(InvalidArgument, NotImplementedError):
    """An argument of Gymnasium's that has no meaning here."""


class RefusedArgument(InvalidArgument, AssertionError):
    """What Gymnasium's classes refuse by an assertion."""


class UnlikeSpaces(SpacesDiffer, RuntimeError, AssertionError):
    """Sub-environments that do not share their spaces; Gymnasium's classes raise now one of the two, now the other."""


class FleetAsVectorEnv(VectorEnv[Any, Any, Any]):
    """A fleet with the attributes of Gymnasium's own vector environments.

    Args:
        fleet: The fleet; owned, and closed by `close`.
        env_fns: What it was made of.
        copy: Whether its observations are the caller's own.
        observation_mode: As given by the caller.
    """

    def __init__(self, fleet: Fleet, env_fns: list[MakeEnv], copy: bool, observation_mode: ObservationMode) -> None:
        self.fleet = fleet
        self.env_fns, self.copy, self.observation_mode = env_fns, copy, observation_mode
        self.num_envs = fleet.num_envs
        # Gymnasium's classes have no spec: it could not tell gymnasium.make_vec how to make them again.
        self.metadata, self.render_mode = fleet.metadata, fleet.render_mode
        self.autoreset_mode = fleet.metadata["autoreset_mode"]
        self.single_action_space, self.action_space = fleet.single_action_space, fleet.action_space
        self.single_observation_space = fleet.single_observation_space
        self.observation_space = fleet.observation_space
        if isinstance(observation_mode, tuple):
            self.observation_space, self.single_observation_space = observation_mode
            if not is_space_dtype_shape_equiv(self.single_observation_space, fleet.single_observation_space):
                fleet.close()
                raise UnlikeSpaces(
                    f"{self._explain('observation_space', observation_mode)} That of sub-environment 0 is "
                    f"{fleet.single_observation_space}, the custom single space is {self.single_observation_space}."
                )

    # ------------------------------------------------------------------ arguments

    @staticmethod
    def _bounds(observation_mode: ObservationMode) -> Literal["same", "different"]:
        """Check an observation mode and say whether the bounds of the spaces may differ."""
        if isinstance(observation_mode, tuple) and len(observation_mode) == 2:
            for space in observation_mode:
                if not isinstance(space, gym.Space):
                    raise RefusedArgument(
                        f"observation_mode holds a {type(space).__name__}, expected two spaces: pass "
                        "(observation_space, single_observation_space)"
                    )
            return "different"
        if observation_mode == "same":
            return "same"
        if observation_mode == "different":
            return "different"
        raise InvalidArgument(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {observation_mode}"
        )

    @contextmanager
    def _explaining_spaces(self, observation_mode: ObservationMode) -> Iterator[None]:
        """Raise what Gymnasium's class raises where spaces differ, and its words."""
        try:
            yield
        except SpacesDiffer as error:
            raise UnlikeSpaces(f"{self._explain(error.space, observation_mode)} {error}", error.space) from error

    def _explain(self, space: str, observation_mode: ObservationMode) -> str:
        if space == "action_space":
            return (
                "Some environments have an action space different from that of the first. "
                "In order to batch actions, the action spaces from all environments must be equal."
            )
        if observation_mode == "same":
            return (
                f"{type(self).__name__}(..., observation_mode='same') however some of the sub-environments observation "
                "spaces are not equivalent. If this is intentional, use `observation_mode='different'` instead."
            )
        return (
            f"{type(self).__name__}(..., observation_mode='different' or custom space) however the sub-environment's "
            "observation spaces do not share a common shape and dtype."
        )

    def _check_reset(self, seed: Any, options: dict[str, Any] | None) -> None:
        """Check the arguments of a reset, in Gymnasium's words."""
        if hasattr(seed, "__len__") and len(seed) != self.num_envs:
            raise RefusedArgument(
                "If seeds are passed as a list the length must match "
                f"num_envs={self.num_envs} but got length={len(seed)}."
            )
        if options is None or "reset_mask" not in options:
            return
        mask, name = options["reset_mask"], "`options['reset_mask': mask]`"
        if not isinstance(mask, np.ndarray):
            raise RefusedArgument(f"{name} must be a numpy array, got {type(mask)}")
        if mask.shape != (self.num_envs,):
            raise RefusedArgument(f"{name} must have shape `({self.num_envs},)`, got {mask.shape}")
        if mask.dtype != np.bool_:
            raise RefusedArgument(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise RefusedArgument(f"{name} must contain a boolean array, got reset_mask={mask}")

    # ------------------------------------------------------------------ calls

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def _own(self, result: StepResult) -> StepResult:
        """Make rewards and flags the caller's own: Gymnasium's `copy=False` is about observations only."""
        if self.copy:
            return result
        observations, rewards, terminated, truncated, infos = result
        return observations, rewards.copy(), terminated.copy(), truncated.copy(), infos

    @property  # type: ignore[misc]  # read-only, as in Gymnasium's
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as above
        """The random generator of every sub-environment; in another process that is a copy."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # as above
        """The seed of every sub-environment's generator; -1 where it is not known."""
        return self.get_attr("np_random_seed")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, or get an attribute.

        Args:
            name: Of the method or attribute.
            *args: For the method.
            **kwargs: For the method.

        Returns:
            One result per sub-environment.
        """
        self._check_open()
        with raising_originals():
            return self.fleet.call(name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every sub-environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment.

        Args:
            name: Of the attribute.
            values: A list or tuple of one value per sub-environment, or one value for all.

        Raises:
            ValueError: Not one value per sub-environment.
        """
        self._check_open()
        with raising_originals():
            self.fleet.set_attr(name, values)

    def render(self) -> tuple[Any, ...] | None:
        """Render every sub-environment; one frame each."""
        return self.call("render")

    # ------------------------------------------------------------------ the end

    def close(self, **kwargs: Any) -> None:
        """Close the sub-environments and release everything; idempotent.

        Args:
            **kwargs: For `close_extras`.
        """
        if self.closed:
            return
        try:
            self.close_extras(**kwargs)
        finally:
            self.closed = True

    def __del__(self) -> None:
        """Do nothing: the fleet inside warns that nobody closed it, and ends its workers by itself."""
