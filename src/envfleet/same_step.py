"""Same-step autoreset around a vector environment that resets in the next step, such as EnvPool's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.infos import is_mask, scatter_infos, take_infos
from envfleet.fleet.layout import SpaceLayout


def mode_of(vector_env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode of a vector environment; those that name none reset in the next step."""
    metadata = getattr(vector_env, "metadata", None) or {}
    return AutoresetMode(metadata.get("autoreset_mode") or AutoresetMode.NEXT_STEP)


def batch_size_of(vector_env: VectorEnv[Any, Any, Any]) -> int:
    """Return how many sub-environments `recv` of a vector environment returns; all if it does not say."""
    config = getattr(vector_env, "config", None)  # EnvPool's
    size = config.get("batch_size") if isinstance(config, dict) else getattr(vector_env, "batch_size", 0)
    return int(size or vector_env.num_envs)


def in_mode(vector_env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    """Return the vector environment, or one around it, that autoresets in a mode.

    Raises:
        InvalidArgument: Its mode cannot be converted.
    """
    if (own := mode_of(vector_env)) is mode:
        return vector_env
    if own is AutoresetMode.NEXT_STEP and mode is AutoresetMode.SAME_STEP and isinstance(vector_env, VectorEnv):
        own_env = vector_env.unwrapped
        if isinstance(own_env, AsyncVectorEnv) and not own_env.shared_memory:
            raise InvalidArgument(
                "autoreset_mode='SAME_STEP' for an AsyncVectorEnv with shared_memory=False: after a partial reset it "
                "resets the same rows again in the next step. Make it with autoreset_mode=AutoresetMode.SAME_STEP"
            )
        if (size := batch_size_of(vector_env)) < vector_env.num_envs:
            raise InvalidArgument(
                f"autoreset_mode='SAME_STEP' for a {type(vector_env).__name__} with batch_size={size} and "
                f"num_envs={vector_env.num_envs}, which steps parts at a time: make it with batch_size=num_envs"
            )
        return SameStepVectorEnv(vector_env)
    raise InvalidArgument(
        f"autoreset_mode={mode.name!r} for a {type(vector_env).__name__} in {own.name}: adopt() converts only a "
        "gymnasium.vector.VectorEnv in NEXT_STEP, to SAME_STEP. Make the vector environment in the mode you want"
    )


class SameStepVectorEnv(VectorWrapper):
    """Vector environment that resets ended rows within the step that ended them.

    After a step in which episodes ended, their rows are reset by `reset(options={"reset_mask": …})`. Infos then have
    Gymnasium's `final_obs` and `final_info`.

    Args:
        env: Vector environment with next-step autoreset and a `reset` that takes a `reset_mask`.

    Raises:
        InvalidArgument: Observations vary in shape.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._layout = SpaceLayout(env.single_observation_space)
        if self._layout.num_objects:
            raise InvalidArgument(
                "autoreset_mode='SAME_STEP' needs observations of fixed shapes, which "
                f"{env.single_observation_space} does not have: leave autoreset_mode out"
            )
        super().__init__(env)
        self.metadata = {**(env.metadata or {}), "autoreset_mode": AutoresetMode.SAME_STEP}
        self.reward_space = getattr(env, "reward_space", None)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every row; ended rows return the first observation of their next episode."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        infos = _with_masks(infos, self.num_envs)
        ended = np.flatnonzero(np.logical_or(terminated, truncated))
        if len(ended):
            observations, infos = self._reset_rows(ended, observations, infos)
        return observations, rewards, terminated, truncated, infos

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all rows, or those of `options["reset_mask"]`."""
        arguments: dict[str, Any] = {"seed": seed, "options": options}
        observations, infos = self.env.reset(**{name: value for name, value in arguments.items() if value is not None})
        return observations, _with_masks(infos, len(self._layout.apart(observations)[0]))

    def _reset_rows(
        self, rows: NDArray[np.int64], observations: Any, infos: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Reset ended rows; return observations and infos with those of the reset in these rows."""
        count, layout = self.num_envs, self._layout
        finals, is_ended = np.full(count, None, object), np.zeros(count, np.bool_)
        leaves = [np.array(leaf) for leaf in layout.apart(observations)]
        for row in rows.tolist():
            finals[row] = layout.row(leaves, (), row)
        is_ended[rows] = True
        others = np.flatnonzero(~is_ended)
        firsts, first_infos = self.env.reset(options={"reset_mask": is_ended.copy()})
        after = [np.asarray(leaf) for leaf in layout.apart(firsts)]
        if len(after[0]) == count:
            if any(old[others].tobytes() != new[others].tobytes() for old, new in zip(leaves, after, strict=True)):
                raise InvalidArgument(
                    f"the {type(self.env).__name__} changed other rows when rows {rows.tolist()} were reset by "
                    "options={'reset_mask': …}: it has no partial reset, so adopt it without autoreset_mode"
                )
            after, first_infos = [leaf[rows] for leaf in after], take_infos(_with_masks(first_infos, count), rows)
        else:  # EnvPool returns only the rows that were reset, in ascending order
            first_infos = _with_masks(first_infos, len(rows))
        for old, new in zip(leaves, after, strict=True):
            old[rows] = new
        return layout.batch(leaves), {
            **scatter_infos([(take_infos(infos, others), others), (first_infos, rows)], count),
            "final_obs": finals,
            "_final_obs": is_ended,
            "final_info": scatter_infos([(take_infos(infos, rows), rows)], count),
            "_final_info": is_ended.copy(),
        }


def _with_masks(infos: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return infos with a mask under `_key` for every key; EnvPool leaves them out."""
    masked: dict[str, Any] = {}
    for name, column in infos.items():
        if is_mask(name, infos):
            continue
        masked[name] = _with_masks(column, count) if isinstance(column, Mapping) else np.asarray(column)
        masked[f"_{name}"] = infos.get(f"_{name}", np.ones(count, np.bool_))
    return masked
