"""EnvRunner of packed vectorization: whole batches through connectors and module, no object per sub-environment.

Problem. RLlib's own EnvRunner keeps a `SingleAgentEpisode` per sub-environment and calls each connector piece with a
loop over them. With 1,000 sub-environments a step takes most of its time there, not in environments or networks.

What does not work. Leaving out RLlib's runner altogether loses evaluation, metrics, checkpoints and fault tolerance,
which all go through it. Giving connector pieces an empty list of episodes makes them return empty batches.

Solution. A subclass that overrides sampling. Pieces get `batch["obs"]` of all sub-environments and one placeholder
episode, which raises an error that says what to do. Steps are recorded in arrays `(T, N, …)`. Returns, lengths, resets
and hidden last observations are read from the fleet's engine.

What remains. It depends on names inside of RLlib, so each release of Ray has to be tested. See ADR 14.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from functools import partial
from typing import Any, NoReturn

import numpy as np
import tree
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from envfleet.errors import InvalidArgument
from envfleet.fleet.episodes import EndedEpisodes
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.outcomes import final_observations, find_resets
from envfleet.fleet.rollout_recorder import RolloutRecorder
from envfleet.rllib.connectors import actions_for_env
from envfleet.rllib.dense import fuse_dense_layers
from envfleet.rllib.fleets import independent_seed, make_packed_fleet
from envfleet.rllib.internals import (
    ENV_RESET_TIMER,
    ENV_STEP_TIMER,
    ENV_TO_MODULE_CONNECTOR,
    MODULE_TO_ENV_CONNECTOR,
    RLMODULE_INFERENCE_TIMER,
    SingleAgentEnvRunner,
    TorchRLModule,
    make_callback,
)
from envfleet.rllib.passes import in_parts
from envfleet.rllib.pieces import PieceTimes
from envfleet.rllib.rollout import PackedRollout


class _NoEpisode(SingleAgentEpisode):
    """Placeholder for the episodes that connector pieces expect; every use raises an error."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidArgument(
            "a connector piece accessed an episode, but packed sub-environments have none: write it for the batch "
            "(batch['obs'] has all sub-environments), use envfleet.rllib.FlattenObservations instead of RLlib's, or "
            "train with vec (envfleet.rllib.register_fleet and RLlib's own PPOConfig)"
        )

    get_observations = get_infos = get_actions = get_rewards = get_extra_model_outputs = _refuse
    set_observations = set_actions = set_rewards = set_extra_model_outputs = _refuse


class PackedEnvRunner(SingleAgentEnvRunner):
    """EnvRunner that samples rollouts of a fleet.

    Every sub-environment of every EnvRunner starts from a different seed. `sample(num_episodes=k)`, which evaluation
    uses, plays `k` whole episodes: the same number in each sub-environment, or one more in the first ones. Short
    episodes are therefore not preferred.
    """

    env: Any

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        self._times = PieceTimes()
        window = math.ceil(config.metrics_num_episodes_for_smoothing / (config.num_env_runners or 1))
        self._finished: deque[tuple[int, float, float]] = deque(maxlen=max(window, 1))  # length, return, seconds

    def make_env(self) -> None:
        """Make the fleet; an earlier one is closed."""
        if self.env is not None:
            self.env.close()
        context = EnvContext(self.config.env_config, self.worker_index, num_workers=self.num_workers)
        self.num_envs = self.config.num_envs_per_env_runner
        self.env = make_packed_fleet(self.config.env, self.num_envs, context, self.config.fleet_options)
        self._needs_initial_reset = True
        make_callback(
            "on_environment_created",
            callbacks_objects=self._callbacks,
            callbacks_functions=self.config.callbacks_on_environment_created,
            kwargs={
                "env_runner": self,
                "metrics_logger": self.metrics,
                "env": self.env.unwrapped,
                "env_context": context,
            },
        )

    def make_module(self) -> None:
        """Make the module.

        Raises:
            InvalidArgument: The module is stateful.
        """
        super().make_module()
        if self.module is not None and self.module.is_stateful():
            raise InvalidArgument(
                f"{type(self.module).__name__} is stateful, but packed rollouts are trained on as single rows, not "
                "as sequences: use a module without state, or train with vec (envfleet.rllib.register_fleet and "
                "RLlib's own PPOConfig)"
            )
        if self.module is not None:
            fuse_dense_layers(self.module.unwrapped())
            self.module.eval()  # never set back: this copy only acts

    def get_metrics(self) -> Any:
        """Return RLlib's metrics, with returns and lengths of single sub-environments.

        Only the last episodes since the previous call are logged: as many as RLlib's smoothing window holds.
        """
        for length, episode_return, duration_s in self._finished:
            self._log_episode_metrics(length, episode_return, duration_s)
        self._finished.clear()
        return self.metrics.reduce()

    # ------------------------------------------------------------------ sampling

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[PackedRollout]:
        if force_reset or num_episodes is not None or self._needs_initial_reset:
            self._reset(explore)
        expected = 256 if num_timesteps is None else -(-num_timesteps // self.num_envs)
        recorder, num_samples, num_ended = RolloutRecorder(expected, self.num_envs), 0, 0
        most_samples = math.inf if num_timesteps is None else num_timesteps
        quotas = np.full(self.num_envs, sys.maxsize)  # episodes still to play in each sub-environment
        if num_episodes is not None:
            quotas[:] = num_episodes // self.num_envs
            quotas[: num_episodes % self.num_envs] += 1
        self._needs_initial_reset = True  # stays so if a step fails
        while num_samples < most_samples and quotas.any():
            outputs, actions = self._choose(num_samples, explore, random_actions)
            is_sample, ended = self._step(recorder, quotas > 0, outputs, actions, explore)
            num_samples += int(np.count_nonzero(is_sample))
            num_ended += 0 if ended is None else self._count(ended, is_sample, quotas)
        self._needs_initial_reset = num_episodes is not None
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=num_samples)
        self._increase_sampled_metrics(num_samples, num_ended)
        self._times.log(self.metrics)
        if not recorder.num_steps:
            return []
        return [PackedRollout(recorder.take(self._seen), self.env.autoreset_mode is AutoresetMode.SAME_STEP)]

    def _reset(self, explore: bool) -> None:
        # Passed to connector pieces next to a batch.
        self._context = {
            "rl_module": self.module,
            "episodes": [_NoEpisode()],
            "shared_data": {},
            "metrics": self.metrics,
        }
        seed = None
        if self._needs_initial_reset and self._seed is not None:
            seed = independent_seed(self._seed)
        with self._times.measuring((ENV_RESET_TIMER,)):
            observations, _ = self.env.reset(seed=seed)
        self._needs_initial_reset = False
        self._see(observations, explore)

    def _see(self, observations: Any, explore: bool) -> None:
        """Store observations for the next action, as the module sees them."""
        self._cached_to_module = self._to_module(observations, explore)
        self._seen = _to_numpy(self._cached_to_module[Columns.OBS])

    def _to_module(self, observations: Any, explore: bool) -> dict[str, Any]:
        batch, pipeline = {Columns.OBS: observations}, self._env_to_module
        return self._times.run(pipeline, ENV_TO_MODULE_CONNECTOR, batch, explore=explore, **self._context)

    def _act(self, num_samples: int, explore: bool) -> dict[str, Any]:
        forward = _forward(self.module, "forward_exploration" if explore else "forward_inference")
        if explore:
            num_runners = self.config.num_env_runners or 1
            steps = (self.num_env_steps_sampled_lifetime // num_runners + num_samples) * num_runners
            forward = partial(forward, t=steps)
        with self._times.measuring((RLMODULE_INFERENCE_TIMER,)):
            outputs = in_parts(forward, self._cached_to_module, self.config.rows_per_pass)
        pipeline = self._module_to_env
        return self._times.run(pipeline, MODULE_TO_ENV_CONNECTOR, outputs, explore=explore, **self._context)

    def _choose(self, num_samples: int, explore: bool, random_actions: bool) -> tuple[dict[str, Any], Any]:
        """Return the columns to record of the next actions, and the actions for the environments."""
        if random_actions:
            actions = self.env.action_space.sample()
            return {Columns.ACTIONS: actions}, actions
        outputs = self._act(num_samples, explore)
        actions = outputs.pop(Columns.ACTIONS_FOR_ENV, outputs[Columns.ACTIONS])  # a custom piece may set others
        if self.config.normalize_actions or self.config.clip_actions:  # as in RLlib, which overwrites them then
            actions = actions_for_env(outputs[Columns.ACTIONS], self.env.single_action_space, self.config)
        return outputs, actions

    def _step(
        self,
        recorder: RolloutRecorder,
        is_wanted: NDArray[np.bool_],
        outputs: dict[str, Any],
        actions: Any,
        explore: bool,
    ) -> tuple[NDArray[np.bool_], EndedEpisodes | None]:
        """Step once and record it; return the rows that are samples, and the episodes that ended, if any did."""
        recorder.begin(self._seen, **outputs)
        before, engine = recorder.observations, self.env.engine
        with self._times.measuring((ENV_STEP_TIMER,)):
            observations, rewards, terminated, truncated, _ = self.env.step(actions)
        is_sample = ~find_resets(engine) & is_wanted
        recorder.end({"rewards": rewards, "terminated": terminated, "truncated": truncated, "is_reset": ~is_sample})
        if not (terminated | truncated).any():
            self._see(observations, explore)
            return is_sample, None
        ended, hides_ends = engine.ended_episodes(), self.env.autoreset_mode is AutoresetMode.SAME_STEP
        last_observations = map_arrays(before, lambda array: array[ended.rows])
        is_cut = ~terminated[ended.rows]
        if hides_ends and is_cut.any():
            finals = self._to_module(final_observations(engine, observations, ended.rows[is_cut]), explore)

            def replace(array: NDArray[Any], final: NDArray[Any]) -> None:
                array[is_cut] = final

            map_arrays(last_observations, replace, _to_numpy(finals[Columns.OBS]))
        self._see(observations, explore)
        if not hides_ends:
            last_observations = map_arrays(self._seen, lambda array: array[ended.rows])
        recorder.end_episodes(ended, last_observations)
        return is_sample, ended

    def _count(self, ended: EndedEpisodes, is_sample: NDArray[np.bool_], quotas: NDArray[np.int64]) -> int:
        """Store return and length of the wanted episodes that ended in the last step; return their number."""
        is_counted = is_sample[ended.rows]
        quotas[ended.rows] -= is_counted
        columns = (column[is_counted].tolist() for column in (ended.lengths, ended.returns, ended.seconds))
        self._finished.extend(zip(*columns, strict=True))
        return int(np.count_nonzero(is_counted))


def _forward(module: Any, name: str) -> Any:
    """Return the forward method of that name, without RLlib's call of `eval()` or `train()` on every submodule."""
    is_rllibs = getattr(type(module), name, None) is getattr(TorchRLModule, name)
    return getattr(module, f"_{name}" if is_rllibs else name)


def _to_numpy(tensors: Any) -> Any:
    return tree.map_structure(lambda tensor: tensor.numpy(force=True), tensors)
