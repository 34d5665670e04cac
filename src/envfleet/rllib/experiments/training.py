"""PPO on a fleet by `vec` or `packed_vec`, with the figures of every iteration."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import warnings
from collections.abc import Iterator
from typing import Literal

import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID

from envfleet.errors import InvalidArgument
from envfleet.rllib.config import PackedPPOConfig
from envfleet.rllib.experiments.timing import IterationTimer, connector_seconds
from envfleet.rllib.fleets import register_fleet
from envfleet.rllib.refusals import COUNT_SAMPLES
from envfleet.workers.transports.ray.cluster import local_settings

Way = Literal["vec", "packed_vec"]
WAYS: tuple[Way, ...] = ("vec", "packed_vec")
FLEET = "envfleet-training"  # the name of the fleet in RLlib's registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Settings of one training; all sizes count samples.

    Attributes:
        env: A Gymnasium id.
        way: `"vec"` or `"packed_vec"`.
        backend: Backend of the fleet: `"auto"`, `"serial"`, `"thread"`, `"process"` or `"kernel"`.
        num_envs: Sub-environments per EnvRunner.
        num_env_runners: Processes that sample; 0 samples in this one.
        batch_size: Samples per iteration.
        minibatch_size: Samples per update; `None` for the whole batch.
        num_epochs: Passes over each batch.
        learning_rate: Learning rate of Adam.
        gamma: Discount per step.
        lambda_: 0 trusts the values alone, 1 the rewards alone.
        hidden: Widths of the hidden layers of actor and critic; `None` for RLlib's, two of 256.
        seed: Seed of environments, networks and draws.
    """

    env: str = "envfleet/Pendulum-v1"
    way: Way = "packed_vec"
    backend: str = "auto"
    num_envs: int = 1000
    num_env_runners: int = 0
    batch_size: int = 100_000
    minibatch_size: int | None = None
    num_epochs: int = 5
    learning_rate: float = 3e-4
    gamma: float = 0.95
    lambda_: float = 0.95
    hidden: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.minibatch_size is not None and not 1 <= self.minibatch_size <= self.batch_size:
            raise InvalidArgument(
                f"minibatch_size={self.minibatch_size}: pass a number of samples from 1 to "
                f"batch_size={self.batch_size}, or leave it out; {COUNT_SAMPLES}"
            )
        if self.batch_size < self.num_envs * max(self.num_env_runners, 1):
            raise InvalidArgument(
                f"batch_size={self.batch_size} is less than one step of {self.num_envs} sub-environments in each of "
                f"{max(self.num_env_runners, 1)} EnvRunners: raise it, or use fewer sub-environments; {COUNT_SAMPLES}"
            )

    def configure(self) -> PPOConfig:
        """Return the configuration for RLlib; registers the fleet."""
        register_fleet(FLEET, self.env, backend=self.backend)
        config: PPOConfig = PackedPPOConfig() if self.way == "packed_vec" else PPOConfig()
        config.environment(FLEET)
        config.env_runners(
            num_env_runners=self.num_env_runners,
            num_envs_per_env_runner=self.num_envs,
            gym_env_vectorize_mode="vector_entry_point",
        )
        config.training(
            train_batch_size=self.batch_size,
            minibatch_size=self.minibatch_size or self.batch_size,
            num_epochs=self.num_epochs,
            lr=self.learning_rate,
            gamma=self.gamma,
            lambda_=self.lambda_,
            clip_param=0.2,
            vf_loss_coeff=0.5,
            vf_clip_param=math.inf,  # RLlib's 10 stops the critic wherever returns are large, as Pendulum's are
            use_kl_loss=False,
            grad_clip=0.5,
            grad_clip_by="norm",  # by tensor: one norm over all would be the critic's alone, where returns are large
        )
        if self.hidden is not None:
            config.rl_module(model_config={"fcnet_hiddens": list(self.hidden)})
        config.debugging(seed=self.seed, log_level="ERROR")
        return config


@dataclasses.dataclass(frozen=True)
class Iteration:
    """Figures of one iteration.

    Attributes:
        plan: The plan of the training.
        number: Number of the iteration, from 1.
        samples: Number of samples.
        episode_return: Mean over the episodes that ended in it, the last 100 at most; `None` if none did.
        loss: Loss of the last update.
        seconds: Seconds by part: `iteration`, `sampling`, `connectors`, `learner`.
        cpu_seconds: Seconds of CPU time of this process, by the same parts.
        connectors: Seconds of every connector piece, running means.
        load: Processes that wanted the processor meanwhile (the average of a minute).
    """

    plan: TrainingPlan
    number: int
    samples: int
    episode_return: float | None
    loss: float
    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    connectors: dict[str, float]
    load: float

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds["iteration"]


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Start a local Ray that logs only errors, unless there is one already; end it afterwards."""
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init("local", **local_settings(), log_to_driver=False, logging_level=logging.ERROR)
        for name in ("ray.rllib", "ray.tune"):
            logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # RLlib registers its environment again for every EnvRunner
            warnings.filterwarnings("ignore", message=".*Overriding environment rllib-single-agent-env-v0")
            yield
    finally:
        if is_ours:
            ray.shutdown()


@contextlib.contextmanager
def build(plan: TrainingPlan) -> Iterator[Algorithm]:
    """Make the algorithm of a plan, and stop it in the end."""
    algorithm = plan.configure().build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()


def train(algorithm: Algorithm, plan: TrainingPlan, num_iterations: int) -> Iterator[Iteration]:
    """Train.

    Args:
        algorithm: Algorithm from `build`.
        plan: The plan it was built by.
        num_iterations: Number of iterations.

    Yields:
        The figures of each iteration, after it.
    """
    timer = IterationTimer(algorithm)
    for number in range(1, num_iterations + 1):
        result, seconds, cpu_seconds = timer.train()
        runners = result["env_runners"]
        samples = int(runners["num_env_steps_sampled"])
        num_steps = -(-samples // (plan.num_envs * max(plan.num_env_runners, 1)))
        episode_return = runners.get("episode_return_mean", math.nan)  # RLlib's word for none, but for the first time
        yield Iteration(
            plan=plan,
            number=number,
            samples=samples,
            episode_return=None if math.isnan(episode_return) else float(episode_return),
            loss=float(result["learners"][DEFAULT_MODULE_ID]["total_loss"]),
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            connectors=connector_seconds(result, num_steps),
            load=os.getloadavg()[0],
        )
