"""What an agent gains that heeds which actions are allowed: PPO at 2048, which sees them as a mask, or as mere numbers.

    python benchmarks/action_masks.py

Prints, for each seed, the mean return of the games in the last fifth of training, and the share of those that ended
with a move that is not allowed. Six minutes on two cores.
"""

from __future__ import annotations

import argparse
from typing import Any

from gymnasium import spaces

import envfleet
from envfleet.agents import PPO, Collector, PPOConfig
from envfleet.envs.board import MaskedPlay2048, Play2048
from envfleet.kernels import Kernel


class Unheeded(Play2048):
    """The same observation under a name that says nothing to agents."""

    observation_space = spaces.Dict(  # type: ignore[assignment]  # another, indeed
        observation=MaskedPlay2048.observation_space["observation"], moves=spaces.MultiBinary(4)
    )

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        """Write both."""
        Play2048.observe(state, out["observation"])
        out["moves"][:] = state.action_mask


def train(env: type[Kernel], transitions: int, seed: int) -> tuple[float, float]:
    """Return the mean return, and the share of games that ended with a move that is not allowed."""
    with envfleet.make(env, 64, backend="kernel", autoreset_mode="SAME_STEP") as fleet:
        config = PPOConfig(hidden=(128, 128), entropy_weight=0.01)
        agent = PPO(fleet.single_observation_space, fleet.single_action_space, config, num_envs=64, seed=seed)
        collector = Collector(fleet, 32, seed=seed)
        games, total, wrong = 0, 0.0, 0
        while agent.num_transitions < transitions:
            slab = collector.collect(agent)
            agent.update(slab)
            if agent.num_transitions > 0.8 * transitions:
                games += int(slab.terminated.sum())
                total += float(slab.rewards.sum())
                wrong += int((slab.rewards[slab.terminated] == -1).sum())
    return total / games, wrong / games


def main() -> None:
    """Train with several seeds and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=150_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name, env in (("mask", MaskedPlay2048), ("numbers", Unheeded)):
            mean, wrong = train(env, arguments.transitions, seed)
            print(f"seed {seed}, {name:7}: return {mean:6.0f}, ended with a move that is not allowed {wrong:4.0%}")


if __name__ == "__main__":
    main()
