"""The EnvRunner of packed vectorization: N sub-environments, one bookkeeping."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np
import tree
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import (
    ENV_TO_MODULE_CONNECTOR,
    MODULE_TO_ENV_CONNECTOR,
    RLMODULE_INFERENCE_TIMER,
)

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.rllib.dense import fuse_dense_layers
from envfleet.rllib.episode_tally import EpisodeTally
from envfleet.rllib.fleets import make_packed_fleet
from envfleet.rllib.passes import in_parts
from envfleet.rllib.pieces import Pieces, PieceTimes
from envfleet.rllib.rollout import PackedRollout
from envfleet.rllib.rollout_recorder import RolloutRecorder

_LOGGER = logging.getLogger(__name__)
_MOST_FAILURES = 10  # of the fleet, each after the one before was made again, in one rollout


class _NoEpisode(SingleAgentEpisode):
    """Stands where connector pieces expect episodes, and says why there are none."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidArgument(
            "a connector piece asked for an episode, but packed sub-environments have none: write it for the batch "
            "(batch['obs'] has all sub-environments), use envfleet.rllib.FlattenObservations in place of RLlib's, or "
            "train with vec (envfleet.rllib.register_fleet and RLlib's own PPOConfig)"
        )

    get_observations = get_infos = get_actions = get_rewards = get_extra_model_outputs = _refuse
    set_observations = set_actions = set_rewards = set_extra_model_outputs = _refuse


class PackedEnvRunner(SingleAgentEnvRunner):
    """Samples whole rollouts of a fleet; no object per sub-environment, no connector per episode.

    Sub-environment *i* of EnvRunner *w* starts from a seed of its own. `sample(num_episodes=k)`, which evaluation uses,
    plays `k` whole episodes, the same number in each sub-environment or one more in the first, and so prefers no short
    ones.
    """

    env: Any

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        self._tally = EpisodeTally()  # outlives a fleet that is made again
        super().__init__(config=config, **kwargs)
        self._times = PieceTimes()
        self._before_module = Pieces(self._env_to_module, ENV_TO_MODULE_CONNECTOR, self._times)
        self._after_module = Pieces(self._module_to_env, MODULE_TO_ENV_CONNECTOR, self._times)

    def make_env(self) -> None:
        """Make the fleet, and close an earlier one."""
        if self.env is not None:
            try:
                self.env.close()
            except Exception:  # what has failed may fail here, too, and is to be replaced all the same
                _LOGGER.warning("the environment to be replaced could not be closed", exc_info=True)
        context = EnvContext(self.config.env_config, self.worker_index, num_workers=self.num_workers)
        self.num_envs = self.config.num_envs_per_env_runner
        self.env = make_packed_fleet(self.config.env, self.num_envs, context, self.config.fleet_options)
        self._needs_initial_reset = True
        self._stand_in = [_NoEpisode()]
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
            InvalidArgument: It is stateful.
        """
        super().make_module()
        if self.module is not None and self.module.is_stateful():
            raise InvalidArgument(
                f"{type(self.module).__name__} is stateful, and packed rollouts are learned from as single rows, not "
                "as sequences: use a module without state, or train with vec (envfleet.rllib.register_fleet and "
                "RLlib's own PPOConfig)"
            )
        if self.module is not None:
            fuse_dense_layers(self.module.unwrapped())
            self.module.eval()  # for good: it only acts

    def get_metrics(self) -> Any:
        """Return RLlib's metrics; returns and lengths are those of single sub-environments.

        Of the episodes that ended since the last call, those are logged that RLlib's window has room for.
        """
        window = math.ceil(self.config.metrics_num_episodes_for_smoothing / (self.config.num_env_runners or 1))
        for length, episode_return, duration_s in self._tally.take(max(window, 1)):
            self._log_episode_metrics(length, episode_return, duration_s)
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
        quotas = None
        if num_episodes is not None:
            self._needs_initial_reset = True
            quotas = np.full(self.num_envs, num_episodes // self.num_envs)
            quotas[: num_episodes % self.num_envs] += 1
        expected = 256 if num_timesteps is None else -(-num_timesteps // self.num_envs)
        recorder, num_ended, num_failures = RolloutRecorder(self.num_envs, expected), 0, 0
        while quotas.any() if quotas is not None else recorder.num_samples < (num_timesteps or 0):
            ended = self._step(recorder, quotas, explore, random_actions)
            if ended is None:  # the fleet failed and was made again; episodes that had ended keep their place
                num_failures += 1
                self._require_hope(num_failures)
                self._reset(explore)
                recorder = RolloutRecorder(self.num_envs, expected)
            else:
                num_ended += ended
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=recorder.num_samples)
        self._increase_sampled_metrics(recorder.num_samples, num_ended)
        self._times.log(self.metrics)
        return [recorder.finish(self._seen)] if recorder.num_steps else []

    def _require_hope(self, num_failures: int) -> None:
        if num_failures == _MOST_FAILURES:
            raise EnvfleetError(
                f"the environment of EnvRunner {self.worker_index} failed {num_failures} times within one rollout, and "
                "was made again each time, as restart_failed_sub_environments=True says: the errors are in the log, "
                "mend their cause"
            )

    def _reset(self, explore: bool) -> None:
        self._shared_data: dict[str, Any] = {}
        seed = None
        if self._needs_initial_reset and self._seed is not None:  # RLlib's seeds of EnvRunners are neighbours
            seed = self._seed + (self.worker_index or 0) * (self.num_envs - 1)
        observations, _ = self._try_env_reset(seed=seed)
        self._needs_initial_reset = False
        self._tally.reset(self.num_envs)
        self._is_awaiting = np.zeros(self.num_envs, np.bool_)
        self._see(observations, explore)

    def _see(self, observations: Any, explore: bool) -> None:
        """Keep observations for the next action, as the module sees them."""
        self._cached_to_module = self._to_module(observations, explore)
        self._seen = _to_numpy(self._cached_to_module[Columns.OBS])

    def _to_module(self, observations: Any, explore: bool) -> dict[str, Any]:
        return self._before_module({Columns.OBS: observations}, **self._context(explore))

    def _context(self, explore: bool) -> dict[str, Any]:
        """Return the arguments of connector pieces besides a batch."""
        return {
            "rl_module": self.module,
            "episodes": self._stand_in,
            "explore": explore,
            "shared_data": self._shared_data,
            "metrics": self.metrics,
        }

    def _act(self, num_samples: int, explore: bool) -> dict[str, Any]:
        start_s = time.perf_counter()
        forward = _forward(self.module, "forward_exploration" if explore else "forward_inference")
        if explore:
            num_runners = self.config.num_env_runners or 1
            steps = (self.num_env_steps_sampled_lifetime // num_runners + num_samples) * num_runners
            forward = partial(forward, t=steps)
        outputs = in_parts(forward, self._cached_to_module, self.config.rows_per_pass)
        self._times.add((RLMODULE_INFERENCE_TIMER,), time.perf_counter() - start_s)
        return self._after_module(outputs, **self._context(explore))

    def _step(
        self, recorder: RolloutRecorder, quotas: NDArray[np.int64] | None, explore: bool, random_actions: bool
    ) -> int | None:
        """Step once and record it; returns how many episodes ended that count, `None` if the fleet failed."""
        if random_actions:
            outputs = {Columns.ACTIONS: self.env.action_space.sample()}
        else:
            outputs = self._act(recorder.num_samples, explore)
        actions = outputs.pop(Columns.ACTIONS)
        actions_for_env = outputs.pop(Columns.ACTIONS_FOR_ENV, actions)
        recorder.begin(observations=self._seen, actions=actions, **outputs)
        results = self._try_env_step(actions_for_env)
        if results == ENV_STEP_FAILURE:
            return None
        observations, rewards, terminated, truncated, _ = results
        valid = ~self._is_awaiting if quotas is None else ~self._is_awaiting & (quotas > 0)
        recorder.end(valid, rewards=rewards.astype(np.float32), terminated=terminated, truncated=truncated)
        ended = terminated | truncated
        if self.env.autoreset_mode is AutoresetMode.SAME_STEP:
            cut = np.flatnonzero(truncated & ~terminated)
            if len(cut):
                finals = tree.map_structure(lambda column: column[cut], self.env.final_observations)
                recorder.add_finals(cut, _to_numpy(self._to_module(finals, explore)[Columns.OBS]))
        else:
            self._is_awaiting = ended
        counted = ended & valid
        self._tally.add(rewards, valid, ended, counted)
        if quotas is not None:
            quotas -= counted
        self._see(observations, explore)
        return int(np.count_nonzero(counted))


def _forward(module: Any, name: str) -> Callable[..., Any]:
    """Return the pass of that name, without setting the mode of every part first, which is set already."""
    is_rllibs = getattr(type(module), name, None) is getattr(TorchRLModule, name)
    forward: Callable[..., Any] = getattr(module, f"_{name}" if is_rllibs else name)
    return forward


def _to_numpy(tensors: Any) -> Any:
    return tree.map_structure(lambda tensor: tensor.numpy(force=True), tensors)
