"""Engine of an existing vector environment: EnvPool's, ale-py's, any `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from envfleet.errors import Failure, InvalidArgument
from envfleet.fleet.engine import (
    Answer,
    Batch,
    Call,
    Engine,
    Pending,
    Request,
    Reset,
    Rows,
    SetAttr,
    StepResult,
    Traits,
)
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStats, EpisodeStatus
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.infos import scatter_infos, take_infos
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.lifecycle import Lifecycle, refuse_ended
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.stats import FleetStats, Plan
from envfleet.same_step import SameStepVectorEnv, batch_size_of, mode_of


class AdoptedEngine(Engine):
    """Engine that steps a vector environment of another library.

    Args:
        vector_env: Vector environment, which the engine closes.
        record_episodes: True to add `"episode"` to infos.

    Raises:
        InvalidArgument: The object is not a vector environment, or is already a fleet.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any], *, record_episodes: bool = False) -> None:
        if isinstance(vector_env, Fleet):
            raise InvalidArgument("adopt() got a Fleet, which needs no adoption: use it directly")
        for name in ("num_envs", "single_observation_space", "single_action_space", "reset", "step"):
            if not hasattr(vector_env, name):
                raise InvalidArgument(
                    f"adopt() got a {type(vector_env).__name__} without {name!r}, expected a "
                    "gymnasium.vector.VectorEnv: for a single environment call envfleet.make()"
                )
        self._env: Any = vector_env
        self.copy = True
        metadata = dict(getattr(vector_env, "metadata", None) or {})
        self._mode = mode_of(vector_env)
        num_envs = int(vector_env.num_envs)
        self._has_recv = all(hasattr(type(vector_env), name) for name in ("send", "recv"))
        self.batch_size = self._read_batch_size() if self._has_recv else num_envs
        self._is_partial = self.batch_size < num_envs
        own = vector_env.env if isinstance(vector_env, SameStepVectorEnv) else vector_env
        self._is_ale = type(getattr(own, "unwrapped", own)).__module__.partition(".")[0] == "ale_py"
        kind, spec = type(own).__name__, getattr(vector_env, "spec", None)
        single, space = vector_env.single_observation_space, getattr(vector_env, "observation_space", None)
        self._batched_space = batch_space(single, num_envs) if space is None or space == single else space
        reward_space = getattr(vector_env, "reward_space", None)  # of one sub-environment: MO-Gymnasium's convention
        self.traits = Traits(
            plan=Plan("adopted", 1, (num_envs,), f"a {kind} was adopted"),
            num_envs=num_envs,
            single_observation_space=single,
            single_action_space=vector_env.single_action_space,
            autoreset_mode=self._mode,
            observation_space=self._batched_space,
            reward_space=reward_space if isinstance(reward_space, Box) and reward_space.shape else None,
            env_spec=spec if isinstance(spec, EnvSpec) else None,
            env_name=kind,
            render_mode=getattr(vector_env, "render_mode", None),
            metadata=metadata,
            has_partial_steps=self._is_partial,
            has_objects=False,
            has_states=False,
            has_stacks=False,
        )
        self._layout, self._action_layout = SpaceLayout(single), SpaceLayout(vector_env.single_action_space)
        self._episodes = EpisodeStats(num_envs, self._mode)
        self._records_episodes = record_episodes
        self._episodes.shape_rewards(self.traits.reward_shape)
        self._observations: Any = None
        self._finals: Any = None
        self._sent: Any = None  # a Batch from `send` to `collect`, for vector environments without `recv`
        self._ready: Any = None  # a Batch that was received, but not handed out yet
        self._num_sent = 0  # sub-environments that were sent and not received
        self._is_inside = False  # in a step or reset, which an exception cuts short
        self._steps, self._step_s = 0, 0.0

    def _read_batch_size(self) -> int:
        """Return how many sub-environments `recv` of the vector environment returns."""
        env, num_envs, size = self._env, int(self._env.num_envs), batch_size_of(self._env)
        can_choose = hasattr(env, "async_reset") and "env_id" in inspect.signature(env.send).parameters
        if size < num_envs and not (can_choose and num_envs % size == 0):
            raise InvalidArgument(
                f"adopt() was given a {type(env).__name__} with batch_size={size} and num_envs={num_envs}, but "
                + ("num_envs must be a multiple" if can_choose else "its send() takes no indices of sub-environments")
                + ": make it with batch_size=num_envs"
            )
        return size

    def _check_actions(self, actions: Any, count: int) -> None:
        if self._mode is AutoresetMode.DISABLED and self._episodes.over:
            refuse_ended(self._episodes.ended)
        self._action_layout.unbatch(actions, count)  # not every vector environment checks them

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once."""
        if self._is_partial:
            self.send(actions)
            return self.collect(rows=np.arange(self.traits.num_envs))[:5]
        self._check_actions(actions, self.traits.num_envs)
        start_s, self._is_inside = time.perf_counter(), True
        result = self._env.step(actions)
        self._step_s += time.perf_counter() - start_s
        return self._finish(*result)

    def _finish(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any, rows: Rows | None = None
    ) -> StepResult:
        """Check and remember the results of a step of all sub-environments, or of `rows`."""
        count = self.traits.num_envs if rows is None else len(rows)
        self._steps += count
        infos = dict(infos)
        rewards, flags = np.asarray(rewards, np.float64), np.array((terminated, truncated), np.bool_)
        expected = count, *self.traits.reward_shape
        if rewards.shape != expected:
            raise InvalidArgument(
                f"the adopted {self.traits.env_name} returned rewards of shape {rewards.shape}, expected {expected}: "
                "for vector rewards, set the attribute reward_space to their Box"
            )
        if rows is None:
            self._observations, self._finals = deepcopy((observations, infos.get("final_obs")))
        else:
            self._observations = self._replace(rows, self._layout.apart(observations))
        self._is_inside = False
        episodes = self._episodes
        if episodes.on_step(rewards, flags, rows) and self._records_episodes:
            infos.update(episodes.ended_episodes().entries(count))
        return observations, rewards, flags[0], flags[1], infos

    def _replace(self, rows: Rows, leaves: Sequence[Any]) -> Any:
        """Return the last observations, with those of `rows` replaced."""
        observations = self._layout.batch([leaf.copy() for leaf in self._layout.apart(self._observations)])
        for leaf, new in zip(self._layout.apart(observations), leaves, strict=True):
            leaf[rows] = new
        return observations

    def send(self, actions: Any, rows: Rows | None = None) -> None:
        """Start to step `rows`, or all; a vector environment without `recv` is stepped here."""
        if not self._has_recv:
            self._sent = Batch(*self.step(actions), np.arange(self.traits.num_envs))
            return
        count = self.traits.num_envs if rows is None else len(rows)
        self._check_actions(actions, count)
        self._is_inside = True
        self._num_sent += count
        actions = np.asarray(actions) if isinstance(actions, list) else actions
        self._env.send(actions, *([] if rows is None else [rows.astype(np.int32)]))
        self._is_inside = False

    def collect(self, count: int | None = None, rows: Rows | None = None, timeout_s: float | None = None) -> Batch:
        """Return the results of steps that were sent; waits without a timeout if the vector environment does."""
        if not self._has_recv:
            sent: Batch = self._sent
            self._sent = None
            return sent
        if not self._is_partial:
            received = self._receive()
            return Batch._make([*self._finish(*received[:5]), received.env_indices])
        count = count or self._num_sent + (0 if self._ready is None else len(self._ready.env_indices))
        places = self._find_ready(count, rows)
        while places is None:
            if self._num_sent < self.batch_size:
                raise InvalidArgument(
                    f"the adopted {self.traits.env_name} returns {self.batch_size} sub-environments at once, but "
                    f"{self._num_sent} are under way: send more first"
                )
            received = self._receive()
            self._ready = received if self._ready is None else _join(self._ready, received)
            places = self._find_ready(count, rows)
        batch, rest = _take(self._ready, places), np.setdiff1d(np.arange(len(self._ready.env_indices)), places)
        self._ready = _take(self._ready, rest) if len(rest) else None
        return Batch._make([*self._finish(*batch[:5], batch.env_indices), batch.env_indices])

    def _find_ready(self, count: int, rows: Rows | None) -> NDArray[np.int64] | None:
        """Return the places of what is wanted in what was received; `None` if it is not complete."""
        ready = np.zeros(0, np.int64) if self._ready is None else self._ready.env_indices
        if rows is None:
            return np.arange(count) if len(ready) >= count else None
        order = np.argsort(ready)
        return order[np.searchsorted(ready, rows, sorter=order)] if np.isin(rows, ready).all() else None

    def _receive(self) -> Batch:
        start_s, self._is_inside = time.perf_counter(), True
        *results, infos = self._env.recv()
        self._step_s += time.perf_counter() - start_s
        self._num_sent -= self.batch_size
        self._is_inside = False
        rows = infos["env_id"] if self._is_partial else np.arange(self.traits.num_envs)
        return Batch._make([*results, infos, np.asarray(rows, np.int64)])

    def _begin_all(self) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments of one that returns some at once."""
        self._env.async_reset()
        self._num_sent = self.traits.num_envs
        parts = []
        while self._num_sent:
            observations, infos = self._env.recv(reset=True)
            self._num_sent -= self.batch_size
            flags = np.zeros((3, self.batch_size))
            parts.append(Batch._make([observations, *flags, infos, np.asarray(infos["env_id"], np.int64)]))
        whole = functools.reduce(_join, parts)
        whole = _take(whole, np.argsort(whole.env_indices))
        return whole.observations, whole.infos

    def submit(self, request: Request[Answer]) -> Pending[Answer]:
        """Run a request."""
        answer: Any = None
        if isinstance(request, Reset):
            answer = self._reset(request)
        elif isinstance(request, SetAttr):
            self._method("set_attr")(request.name, request.values)
        elif isinstance(request, Call) and request.name == "render":
            answer = self._env.render() or ()
        elif isinstance(request, Call):
            answer = self._method("call")(request.name, *request.args, **request.kwargs)
        return Pending.of(answer)

    def _method(self, name: str) -> Any:
        """Return a method that accesses sub-environments, which Gymnasium's vector wrappers do not forward.

        Raises:
            AttributeError: The vector environment lacks the attribute.
        """
        for env in (self._env, getattr(self._env, "unwrapped", None)):
            if hasattr(env, name):
                return getattr(env, name)
        kind = self.traits.env_name
        raise AttributeError(
            f"the adopted {kind} has no method {name!r}, so attributes of its sub-environments can be neither read nor "
            f"set: use the methods of the {kind} directly"
        )

    def _reset(self, request: Reset) -> dict[str, Any]:
        rows = request.rows
        seeds: Any = request.seeds
        options: Any = request.options
        if rows is not None:
            mask = np.zeros(self.traits.num_envs, np.bool_)
            mask[rows] = True
            options = {**(options or {}), "reset_mask": mask}
            if isinstance(seeds, list):
                every: list[int | None] = [None] * self.traits.num_envs
                for row, seed in zip(rows.tolist(), seeds, strict=True):
                    every[row] = seed
                seeds = every
        if self._is_ale and (isinstance(seeds, list) or (seeds is not None and rows is not None)):
            seeds = self._ale_seeds(seeds, rows)
        options_argument = {} if options is None else {"options": options}
        if rows is not None and self._is_partial:
            raise InvalidArgument(
                f"reset() of some with the adopted {self.traits.env_name}, which returns {self.batch_size} at once: "
                "reset all, or make it with batch_size=num_envs"
            )
        if rows is None:
            self._drop_sent()
        self._is_inside = True
        if self._is_partial:
            observations, infos = self._begin_all()
        else:
            observations, infos = self._env.reset(**({} if seeds is None else {"seed": seeds}), **options_argument)
        self._episodes.begin(None if rows is None else rows.tolist())
        leaves = self._layout.apart(observations)
        # EnvPool returns those that were reset only, in order.
        if rows is not None and leaves and len(leaves[0]) == len(rows) < self.traits.num_envs:
            places = np.argsort(np.argsort(rows))
            observations, rows = self._replace(rows, [leaf[places] for leaf in leaves]), places
        self._observations, self._is_inside = observations, False
        return dict(infos) if rows is None else take_infos(infos, rows)

    def _ale_seeds(self, seeds: int | list[int | None], rows: Rows | None) -> NDArray[np.int64]:
        """Return the seeds of `rows`, in ascending order of rows, as ale-py expects them; -1 continues."""
        count = self.traits.num_envs
        every = [seeds + row for row in range(count)] if isinstance(seeds, int) else seeds
        array = np.array([-1 if seed is None else seed for seed in every], np.int64)
        return array if rows is None else array[np.sort(rows)]

    def _drop_sent(self) -> None:
        """Receive what an interruption left under way."""
        self._ready = None
        while self._num_sent >= self.batch_size:
            self._receive()
        if self._num_sent:
            raise InvalidArgument(
                f"the adopted {self.traits.env_name} was interrupted with {self._num_sent} sub-environments under way, "
                f"and returns {self.batch_size} at once: close it, and make it again"
            )

    def observe(self, rows: Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations."""
        if final:
            return self._observe_finals(range(self.traits.num_envs) if rows is None else rows.tolist())
        if rows is None:
            return deepcopy(self._observations)
        values, space = list(iterate(self._batched_space, self._observations)), self.traits.single_observation_space
        return concatenate(space, [values[row] for row in rows], create_empty_array(space, len(rows)))

    def _observe_finals(self, rows: Sequence[int]) -> Any:
        layout, count = self._layout, len(rows)
        arrays = [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
        for place, row in enumerate(() if self._finals is None else rows):
            value = self._finals[row]
            for array, leaf in zip(arrays, layout.apart(value) if value is not None else (), strict=False):
                array[place] = leaf
        return layout.batch(arrays, [[None] * count] * layout.num_objects)

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return the state of the fleet after a request that raised `error`."""
        is_inside, self._is_inside = self._is_inside, False
        # A call that raises, such as `render`, changes no episode; one that is interrupted may be incomplete.
        return Lifecycle.TORN if is_inside or not isinstance(error, Exception) else None

    def episodes(self) -> EpisodeStatus:
        """Return the current state of every episode."""
        return self._episodes.status()

    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step."""
        return self._episodes.ended_episodes()

    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics."""
        rate = self._steps / self._step_s if self._step_s else 0.0
        return FleetStats(self._steps, rate, self._step_s, 0.0, 0.0, self._step_s, 0, ())

    def close(self, timeout_s: float) -> list[Failure]:
        """Close the vector environment."""
        if self._env is not None:
            env, self._env = self._env, None
            env.close()
        return []


def _take(batch: Batch, places: NDArray[np.int64]) -> Batch:
    parts = (map_arrays(part, lambda array: array[places]) for part in batch[:4])
    return Batch._make([*parts, take_infos(batch.infos, places), batch.env_indices[places]])


def _join(one: Batch, other: Batch) -> Batch:
    pairs = zip(one[:4], other[:4], strict=True)
    parts = [map_arrays(part, lambda *arrays: np.concatenate(arrays), more) for part, more in pairs]
    rows = np.concatenate([one.env_indices, other.env_indices])
    places = np.arange(len(rows))
    first = len(one.env_indices)
    infos = scatter_infos([(one.infos, places[:first]), (other.infos, places[first:])], len(rows))
    return Batch._make([*parts, infos, rows])
