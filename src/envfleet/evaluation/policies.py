"""Policies in every form that users have them: functions, agents, saved agents, models of other libraries."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.evaluation.episodes import Policy
from envfleet.extras import missing

AnyPolicy: TypeAlias = "str | Path | Policy | Callable[[Any], Any]"
"""`"random"`; the path of a saved agent or of a run; an object with `act_batch(observations, deterministic)`; a model
with `predict(observations, deterministic=)`, as those of Stable-Baselines3; or a function of a batch of
observations."""


def read_policy(policy: AnyPolicy, action_space: spaces.Space[Any]) -> Policy:
    """Return an object with `act_batch`.

    Args:
        policy: Policy in any form.
        action_space: Action space of one sub-environment.

    Raises:
        InvalidArgument: Its form is unknown, or the file is not a saved agent.
        MissingDependency: A saved agent needs torch, which is not installed.
    """
    if isinstance(policy, str) and policy == "random":
        return RandomPolicy(action_space)
    if isinstance(policy, (str, Path)):
        if not Path(policy).exists():
            raise InvalidArgument(
                f"policy={str(policy)!r} does not exist: pass 'random', the path of a saved agent or of a run, or a "
                "function of a batch of observations"
            )
        agent: Policy = _loading().load_agent(policy, num_envs=1)
        return agent
    if callable(getattr(policy, "act_batch", None)):
        return policy  # type: ignore[return-value]  # it has the method
    if callable(getattr(policy, "predict", None)):
        return _Model(policy)
    if callable(policy):
        return _Function(policy)
    raise InvalidArgument(
        f"policy is of type {type(policy).__name__}: pass 'random', the path of a saved agent or of a run, a function "
        "of a batch of observations, or an object with act_batch() or predict()"
    )


def name_policy(policy: AnyPolicy) -> str:
    """Return the name of a policy, for tables: of a file without its suffix, of a function, or of a class."""
    if isinstance(policy, (str, Path)):
        path = Path(policy)
        return path.resolve().name if path.is_dir() else path.stem
    own = getattr(policy, "name", None) or getattr(policy, "__name__", None)
    return str(own) if isinstance(own, str) and own != "<lambda>" else type(policy).__name__


def digest_agent(policy: AnyPolicy) -> str | None:
    """Return a digest of the file of a saved agent; `None` for other policies."""
    if not isinstance(policy, (str, Path)) or policy == "random" or not Path(policy).exists():
        return None
    with _loading().find_checkpoint(Path(policy)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _loading() -> Any:
    try:
        from envfleet.agents import loading
    except ImportError as error:
        raise missing("a saved agent", error) from error
    return loading


class _Function:
    """Function of a batch of observations."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        """Choose actions."""
        return self._function(observations)


class _Model:
    """Model with `predict`, which returns actions and states."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        """Choose actions."""
        prediction = self._model.predict(observations, deterministic=deterministic)
        return prediction[0] if isinstance(prediction, tuple) else prediction


class RandomPolicy:
    """Policy that samples the action space; the actions of an episode depend on its number only.

    Args:
        action_space: Action space of one sub-environment.
    """

    name = "random"

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self._space = action_space
        self._idle = copy.deepcopy(action_space).sample()
        self._spaces: dict[int, spaces.Space[Any]] = {}

    def begin_numbered(self, env_indices: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Seed the draws of the rows `env_indices` with the numbers of their episodes."""
        for row, number in zip(env_indices.tolist(), numbers.tolist(), strict=True):
            self._spaces.setdefault(row, copy.deepcopy(self._space)).seed(number)

    def act_batch(
        self, observations: Any, deterministic: bool = False, *, env_indices: NDArray[np.int64] | None = None
    ) -> Any:
        """Draw actions, one for each row of `env_indices`."""
        rows = [] if env_indices is None else env_indices.tolist()
        drawn = [self._spaces[row].sample() if row in self._spaces else self._idle for row in rows]
        return concatenate(self._space, drawn, create_empty_array(self._space, len(drawn)))
