"""An environment of your own as a kernel, and PPO on thousands of copies of it.

pip install 'envfleet[train]'
python kernel_ppo.py --num-envs 1024 --transitions 2000000
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np

import envfleet
from envfleet.kernels import Kernel
from envfleet.kernels.registration import register
from envfleet.training import train


class Lander(Kernel):
    """A lander with one engine: touch the ground slowly, before the fuel is used up.

    Observation: height (100 m), speed (10 m/s, upwards), fuel (0 to 1). Action: 0 to fall, 1 to burn.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    max_episode_steps = 200
    info_fields = ("has_landed",)

    class State(Kernel.State):
        height: float
        speed: float
        fuel: float
        has_landed: bool

    class Params(Kernel.Params):
        gravity: float = 1.6  # m/s², the Moon's
        thrust: float = 4.0  # m/s²

    @staticmethod
    def reset(state, rng, params):
        state.height = rng.uniform(50.0, 100.0)
        state.speed = rng.uniform(-5.0, 0.0)
        state.fuel = 1.0
        state.has_landed = False

    @staticmethod
    def step(state, action, rng, params):
        burns = (action == 1) & (state.fuel > 0.0)
        state.speed += (params.thrust if burns else 0.0) - params.gravity
        state.fuel -= 0.02 if burns else 0.0
        state.height += state.speed
        is_down = state.height <= 0.0
        state.has_landed = is_down & (state.speed > -3.0)
        is_lost = state.height > 200.0
        reward = (1.0 if state.has_landed else 0.0) + (0.05 * state.speed if is_down & (state.speed <= -3.0) else 0.0)
        return reward - (1.0 if is_lost else 0.0), is_down | is_lost

    @staticmethod
    def observe(state, out):
        out[0] = 0.01 * state.height
        out[1] = 0.1 * state.speed
        out[2] = state.fuel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=1_024)
    parser.add_argument("--transitions", type=int, default=2_000_000)
    parser.add_argument("--out", default="results/runs", help="folder of runs")
    args = parser.parse_args()

    register("examples/Lander-v0", Lander)
    with envfleet.make("examples/Lander-v0", args.num_envs, backend="kernel", autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        returns = fleet.rollout("random", num_steps=200).episodes.returns
        print(f"random: mean return {returns.mean():.2f} of {len(returns):,} episodes")
    phase = {"name": "land", "transitions": args.transitions, "environment": {"id": "examples/Lander-v0"}}
    config = {"curriculum": {"phases": [phase]}, "agent": {"type": "PPO"}}
    result = train(config, num_envs=args.num_envs, seed=0, base_output_dir=args.out)
    print(f"trained: mean return {result.mean_reward:.2f} of the last episodes, saved in {result.run_dir}")


if __name__ == "__main__":
    main()
