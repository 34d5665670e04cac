"""OpenEnv's own server with an environment of ours: `python -m tests.remote.openenv_server PORT SESSIONS`."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import uvicorn
from pydantic import Field
from tests.openenv_package import load

core = load("openenv.core.env_server")


class Push(core.Action):  # type: ignore[name-defined]  # the package is imported at run time
    """Direction to push the cart."""

    direction: int = Field(ge=0, le=1)


class Seen(core.Observation):  # type: ignore[name-defined]
    """Positions and velocities of cart and pole."""

    numbers: list[float] = Field(min_length=4, max_length=4)


class Cart(core.Environment):  # type: ignore[name-defined]
    """CartPole."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._env: gym.Env[Any, Any] = gym.make("CartPole-v1")

    def reset(self, seed: int | None = None, far: bool = False) -> Seen:
        numbers, _ = self._env.reset(seed=seed)
        self._is_far = far
        return Seen(numbers=numbers.tolist())

    def step(self, action: Any) -> Seen:
        if self._is_far:
            raise ValueError("the cart is lost")
        numbers, reward, terminated, truncated, _ = self._env.step(action.direction)
        return Seen(numbers=numbers.tolist(), reward=float(reward), done=terminated or truncated)

    @property
    def state(self) -> Any:
        return core.State()


if __name__ == "__main__":
    app = core.create_fastapi_app(Cart, Push, Seen, max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), ws="websockets-sansio", log_level="critical")
