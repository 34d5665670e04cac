"""Environments of the evaluation tests: a random walk of random length, which can be slow, fail, or kill its worker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env[Any, Any]):
    """A walk with observations, rewards and length drawn from its seed.

    Args:
        once: File that does not exist; the sub-environment that can create it fails, at its third step.
        failure: `"raise"`, `"kill"` (SIGKILL of its process) or `"reset"` (raise in the next reset).
        straggles: Sub-environments with an odd first seed sleep in every step.
        marker: File to append a line to per episode that begins.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {  # noqa: RUF012 (as Gymnasium declares it)
        "render_modes": ["rgb_array"],
        "render_fps": 10,
    }

    def __init__(
        self,
        once: str | None = None,
        failure: str = "raise",
        *,
        straggles: bool = False,
        marker: str | None = None,
        render_mode: str | None = "rgb_array",
    ) -> None:
        self._once, self._failure, self._straggles, self._marker = once, failure, straggles, marker
        self._is_slow: bool | None = None
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._failure == "reset" and self._is_slow is not None:
            self._fail()
        if self._is_slow is None:
            self._is_slow = self._straggles and bool((seed or 0) % 2)
        if self._marker and seed is not None:
            with Path(self._marker).open("a", encoding="utf-8") as file:
                file.write(f"{seed}\n")
        self._left = int(self.np_random.integers(4, 30)) + int((options or {}).get("longer", 0))
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left, self._steps = self._left - 1, self._steps + 1
        if self._steps == 3 and self._failure != "reset":
            self._fail()
        if self._is_slow:
            time.sleep(0.002)
        reward = float(self.np_random.normal()) + 0.1 * int(action)
        has_ended = self._left == 0
        info = {"is_success": reward > 0} if has_ended else {}
        return self._look(), reward, has_ended and reward > -1, has_ended and reward <= -1, info

    def render(self) -> Any:
        return np.full((16, 16, 3), (self._steps * 16) % 256, np.uint8)

    def _look(self) -> Any:
        return self.np_random.normal(size=3).astype(np.float32)

    def _fail(self) -> None:
        if self._once is None:
            return
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self._failure == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("once")


def follow(observations: Any) -> Any:
    """Act by the observation."""
    return np.digitize(observations[:, 0], [-0.5, 0.5])
