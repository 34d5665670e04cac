"""An arm that learns to reach: a model in XML, a task in scalar Python, and a search over linear policies."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

import envfleet
from envfleet.physics import Task


class Reach(Task):
    """Bring the tip of an arm with two joints to a target."""

    model = str(Path(__file__).with_name("reach.xml"))
    frame_skip = 2
    max_episode_steps = 100
    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    info_fields = ("distance",)

    class State(Task.State):
        distance: float  # from the tip to the target, in meters

    class Params(Task.Params):
        effort_cost: float = 0.001

    @staticmethod
    def reset(data: Any, rng: np.random.Generator) -> None:
        data.qpos[0] = rng.uniform(-1.0, 1.0)
        data.qpos[1] = rng.uniform(0.5, 1.5)
        angle, radius = rng.uniform(-1.0, 1.0), rng.uniform(0.3, 0.5)
        data.mocap_pos[0, 0] = radius * np.cos(angle)
        data.mocap_pos[0, 1] = radius * np.sin(angle)

    @staticmethod
    def after_step(data: Any, state: State, action: NDArray[np.float32], params: Params) -> tuple[float, bool]:
        way = data.mocap_pos[0] - data.site_xpos[0]
        state.distance = np.sqrt(np.sum(np.square(way)))
        return -state.distance - params.effort_cost * np.sum(np.square(action)), False

    @staticmethod
    def observe(data: Any, out: NDArray[np.float64]) -> None:
        for joint in range(2):
            out[joint] = 10.0 * turn_to_target(data, joint)
            out[2 + joint] = data.qvel[joint]


def turn_to_target(data: Any, joint: int) -> float:
    """Return which way a joint turns the tip to the target, and how strongly."""
    arm = data.site_xpos[0] - data.xanchor[joint]
    way = data.mocap_pos[0] - data.site_xpos[0]
    return arm[0] * way[1] - arm[1] * way[0]


def draw_masses(model: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Draw the masses of one sub-environment."""
    return {"body_mass": model.body_mass * rng.uniform(0.5, 2.0, model.nbody)}


def run(fleet: envfleet.Fleet, weights: NDArray[np.float64], seeds: list[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Play an episode in each sub-environment, with a separate policy; return returns and final distances."""
    observations, _ = fleet.reset(seed=seeds)
    returns = np.zeros(fleet.num_envs)
    for _ in range(100):
        actions = np.tanh(np.einsum("nij,nj->ni", weights, observations)).astype(np.float32)
        observations, rewards, _, _, infos = fleet.step(actions)
        returns += rewards
    return returns, infos["distance"]


def train(num_envs: int = 64, generations: int = 12) -> float:
    """Search for the best linear policy; return its mean distance to new targets after two seconds."""
    rng = np.random.default_rng(0)
    mean, spread = np.zeros((2, 4)), np.full((2, 4), 3.0)
    with envfleet.make(Reach, num_envs, model_fields=draw_masses, seed=0) as fleet:
        for generation in range(generations):
            weights = mean + spread * rng.standard_normal((num_envs, 2, 4))
            # All candidates get the same four targets, so that the best one wins and not the luckiest.
            returns = sum(run(fleet, weights, [4 * generation + k] * num_envs)[0] for k in range(4))
            elite = weights[np.argsort(returns)[-num_envs // 8 :]]
            mean, spread = elite.mean(axis=0), elite.std(axis=0) + 0.1
        _, distances = run(fleet, np.broadcast_to(mean, weights.shape), list(range(1_000, 1_000 + num_envs)))
    return float(distances.mean())


if __name__ == "__main__":
    print(f"{train():.3f} m")
