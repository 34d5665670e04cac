"""An environment that fails as its actions say, and a model of what its fleet must return; knows nothing of engines.

Each object shows a random number, so a replaced object or a repeated episode is noticed.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

GO, GO_ON, RAISE, MISFIT, DIE, DIE_WRITING, RAISE_IN_RESET, DIE_IN_RESET = range(8)
LENGTH = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fatal:
    """Kills the process that reads it."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        die()


class MortalEnv(gymnasium.Env[Any, Any]):
    """Count steps in episodes of three, and do to itself what an action says.

    Args:
        has_parts: True if observations have parts, of which one can be written without the others.
    """

    def __init__(self, has_parts: bool) -> None:
        self.has_parts = has_parts
        self.observation_space: Any = spaces.Box(0, 2.0**53, (4,), np.float64)
        if has_parts:
            box, text = self.observation_space, spaces.Text(60, charset="0123456789.[], ")
            self.observation_space = spaces.Dict({"first": box, "middle": text, "other": box})
        self.action_space = spaces.Discrete(8)
        self.life = int.from_bytes(os.urandom(6))
        self.episodes = self.count = self.fate = 0

    def _observe(self, action: int, last: Any = None) -> Any:
        vector = np.array([self.life, self.episodes, self.count, action], np.float64)
        last = vector.copy() if last is None else last
        return {"first": vector, "middle": str(vector.tolist()), "other": last} if self.has_parts else last

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.fate == DIE_IN_RESET:
            die()
        if self.fate == RAISE_IN_RESET:
            raise RuntimeError("broken in a reset")
        self.episodes, self.count = self.episodes + 1, 0
        return self._observe(0), {"begun": self.episodes}

    def step(self, action: Any) -> Any:
        if action == DIE:
            die()
        if action == RAISE:
            raise RuntimeError("broken in a step")
        self.count += 1
        if action in (RAISE_IN_RESET, DIE_IN_RESET):
            self.fate = int(action)
        last = {MISFIT: np.zeros(3), DIE_WRITING: Fatal()}.get(int(action))
        has_ended, is_odd = self.count == LENGTH, self.episodes % 2 == 1
        info = {"count": self.count, "text": f"{self.life} {self.count}"}
        observation, reward = self._observe(int(action), last), self.count + action / 10
        return observation, reward, has_ended and is_odd, has_ended and not is_odd, info

    def get_state(self) -> Any:
        return self.life, self.episodes, self.count, self.fate

    def set_state(self, state: Any) -> None:
        self.life, self.episodes, self.count, self.fate = state


def vector_of(observation: Any) -> tuple[int, ...]:
    """Return life, episode, step and action of an observation; its parts must agree."""
    if isinstance(observation, Mapping):
        np.testing.assert_array_equal(observation["first"], observation["other"])
        assert observation["middle"] == str(observation["first"].tolist())
        observation = observation["first"]
    return tuple(int(number) for number in observation)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Result of one row of a step: its observation as `vector_of` returns it, and its infos."""

    observation: tuple[int, ...]
    reward: float
    terminated: bool
    truncated: bool
    infos: Mapping[str, Any]

    @property
    def is_loss(self) -> bool:
        """Return whether the row was lost with its worker; if it failed by itself, its error names the exception."""
        return self.infos.get("env_error", "").startswith("worker ")


@dataclasses.dataclass
class MortalRow:
    """Model that predicts the results of one sub-environment from its earlier ones.

    Attributes:
        life: Number of its object; `None` if that is a new one that has shown nothing yet.
        shown: Its last observation that a call returned.
        loss: `True` if its next step must report a loss, `False` if it must not, `None` for either.
        flight: The action under way, if there is one, or -1 for one that must be answered as lost.
        deaths: Deaths of its worker since it was sent.
    """

    mode: AutoresetMode
    shown: tuple[int, ...] = ()
    life: int | None = None
    episodes: int = 0
    count: int = 0
    fate: int = 0
    is_ended: bool = False
    loss: bool | None = False
    flight: int | None = None
    deaths: int = 0
    length: int = 0
    total: float = 0.0
    before: MortalRow | None = None

    def will_kill(self, action: int | None) -> bool:
        """Return whether a step with this action, or a reset (`None`), will kill the worker."""
        is_reset = action is None or (self.is_ended and self.mode is AutoresetMode.NEXT_STEP)
        if self.life is None or (self.loss and not (is_reset and action is None)):
            return False
        if is_reset:
            return self.fate == DIE_IN_RESET
        is_last = self.count + 1 == LENGTH and self.mode is AutoresetMode.SAME_STEP
        fate = action if action in (RAISE_IN_RESET, DIE_IN_RESET) else self.fate
        return action in (DIE, DIE_WRITING) or (is_last and fate == DIE_IN_RESET and action not in (RAISE, MISFIT))

    def on_death(self) -> None:
        """Its worker has died."""
        self.deaths += 1
        self.loss, self.life, self.fate, self.episodes = True, None, 0, 0

    def send(self, action: int) -> None:
        """It is sent to step."""
        self.before = dataclasses.replace(self)
        self.flight, self.deaths = action, int(self.loss is True)

    def receive(self, actual: Answer, lives: set[int]) -> None:
        """Check what its step returned."""
        action, before, deaths = self.flight, self.before, self.deaths
        assert action is not None
        assert before is not None
        self.flight, self.before, self.deaths = None, None, 0
        had_to_be_lost = before.loss or before.will_kill(action)
        if had_to_be_lost:
            assert actual.is_loss, f"not said to be lost: {actual}"
        if actual.is_loss:
            assert deaths or before.loss is None, f"said to be lost, without a death: {actual}"
            self.loss = False
            self._check_cut(actual, lives)
            is_renewed = actual.observation[1:3] == (1, 0) and actual.observation != self.shown
            if deaths > 1 and not is_renewed:
                self.loss = None
        else:
            now = dataclasses.replace(self)
            vars(self).update(vars(before))
            self.loss = False
            self._check_step(action, actual, lives)
            if deaths:  # after it had stepped
                self.loss, self.life, self.fate, self.episodes = now.loss, None, 0, 0
            self.deaths = 0
        self.shown = actual.observation

    def _check_cut(self, actual: Answer, lives: set[int]) -> None:
        """Check the answer of a row that was lost or repaired: its last observation again, truncated."""
        assert "env_error" in actual.infos
        assert actual.infos["restarted"]
        assert "count" not in actual.infos
        assert actual.reward == 0
        assert not actual.terminated
        if self.is_ended and self.mode is AutoresetMode.NEXT_STEP:  # which has ended already
            assert not actual.truncated
            self.length, self.total = 0, 0.0
            self._check_new(actual.observation, lives)
            return
        assert actual.truncated
        if self.mode is AutoresetMode.SAME_STEP:
            assert vector_of(actual.infos["final_obs"]) == self.shown
            self.length, self.total = 0, 0.0
            self._check_new(actual.observation, lives)
            return
        assert actual.observation == self.shown
        self.length += 1
        self.is_ended, self.life, self.fate, self.episodes = True, None, 0, 0

    def _check_new(self, observation: tuple[int, ...], lives: set[int]) -> None:
        """Check the first observation of a new object."""
        life, *rest = observation
        assert rest == [1, 0, 0], "one reset, no more"
        assert life not in lives, "an object that was lost"
        lives.add(life)
        self.life, self.episodes, self.count, self.fate, self.is_ended = life, 1, 0, 0, False

    def check_reset(self, observation: tuple[int, ...], infos: Mapping[str, Any], lives: set[int]) -> None:
        """Check the first observation of an episode that begins, with another object if the last one is gone."""
        if self.fate == RAISE_IN_RESET or self.life is None:
            assert ("env_error" in infos) == (self.fate == RAISE_IN_RESET)
            self._check_new(observation, lives)
        else:
            self.episodes, self.count, self.is_ended = self.episodes + 1, 0, False
            assert observation == (self.life, self.episodes, 0, 0)
            assert "env_error" not in infos
        assert infos["begun"] == self.episodes
        self.shown, self.loss, self.length, self.total = observation, False, 0, 0.0

    def _check_step(self, action: int, actual: Answer, lives: set[int]) -> None:
        if self.is_ended and self.mode is AutoresetMode.NEXT_STEP:
            assert (actual.reward, actual.terminated, actual.truncated) == (0, False, False)
            self.check_reset(actual.observation, actual.infos, lives)
            return
        if action in (RAISE, MISFIT):
            self._check_cut(actual, lives)
            return
        self.fate = action if action in (RAISE_IN_RESET, DIE_IN_RESET) else self.fate
        self.count, self.length, self.total = self.count + 1, self.length + 1, self.total + self.count + 1 + action / 10
        observation = self.life, self.episodes, self.count, action
        has_ended, is_odd = self.count == LENGTH, self.episodes % 2 == 1
        assert actual.reward == self.count + action / 10
        assert (actual.terminated, actual.truncated) == (has_ended and is_odd, has_ended and not is_odd)
        infos = actual.infos
        if has_ended and self.mode is AutoresetMode.SAME_STEP:
            assert vector_of(infos["final_obs"]) == observation
            self.check_reset(actual.observation, infos, lives)
            infos = infos["final_info"]
        else:
            assert actual.observation == observation
            assert "env_error" not in infos
            self.is_ended = has_ended
        assert infos["count"] == observation[2]
        assert infos["text"] == f"{observation[0]} {observation[2]}"
