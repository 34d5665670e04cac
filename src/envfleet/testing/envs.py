"""Small deterministic environments that make mistakes of a vector environment visible.

Their results contain the state of the random generator, the step count and the last action, so a row of the wrong
sub-environment, a lost seed and an additional reset all change a number.

Examples:
    >>> from envfleet.testing.envs import CountingEnv
    >>> env = CountingEnv(length=2)
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(3)
    >>> int(observation[0]), reward, terminated
    (1, 1.3, False)
    >>> env.step(0)[2]
    True
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Ends = Literal["terminated", "truncated", "alternate"]


class CountingEnv(gymnasium.Env[Any, Any]):
    """Environment that counts the steps of an episode, which ends after `length` steps.

    The observation is `[step of the episode, episodes begun, last draw, last action, start]` as float64, the reward
    `step + action / 10`. The draw comes from the environment's generator, once per step and reset.

    Args:
        length: Number of steps of an episode; with `vary` the maximum.
        ends: Kind of end; `"alternate"` uses both in turn.
        vary: True if each reset draws the length of the episode from `1 … length`.
        dict_obs: True if observations are `{"count": int64, "vector": the observation above}`.
        render_mode: `"rgb_array"` renders frames of shape (4, 6, 3) in which every pixel is the step count.

    `reset(options={"start": x})` starts the count at `x`, which is part of the observation.
    """

    def __init__(
        self,
        length: int = 5,
        *,
        ends: Ends = "terminated",
        vary: bool = False,
        dict_obs: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        vector = spaces.Box(-np.inf, np.inf, (5,), np.float64)
        self.observation_space = vector
        if dict_obs:
            self.observation_space = spaces.Dict({"count": spaces.Discrete(1_000_000), "vector": vector})
        self.action_space = spaces.Discrete(4)
        self.render_mode = render_mode
        self.length, self.ends, self.vary, self.dict_obs = length, ends, vary, dict_obs
        self.count = 0
        self.episodes = 0
        self.start = 0
        self.draw = 0.0
        self.action = 0
        self.episode_length = length

    def observe(self) -> Any:
        """Return the current observation in a new array."""
        vector = np.array([self.count, self.episodes, self.draw, self.action, self.start], dtype=np.float64)
        return {"count": self.count, "vector": vector} if self.dict_obs else vector

    def inform(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of a reset or step; `info` is that of this class."""
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed restarts the generator, which otherwise continues."""
        super().reset(seed=seed)
        self.start = int((options or {}).get("start", 0))
        self.count = self.start
        self.episodes += 1
        self.action = 0
        self.draw = float(self.np_random.random())
        self.episode_length = int(self.np_random.integers(1, self.length + 1)) if self.vary else self.length
        return self.observe(), self.inform({"episodes": self.episodes})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Add one to the count."""
        self.count += 1
        self.action = int(action)
        self.draw = float(self.np_random.random())
        has_ended = self.count - self.start >= self.episode_length
        is_truncation = self.ends == "truncated" or (self.ends == "alternate" and self.episodes % 2 == 0)
        observation, reward, info = self.observe(), self.count + self.action / 10, self.inform({"draw": self.draw})
        return observation, reward, has_ended and not is_truncation, has_ended and is_truncation, info

    def render(self) -> Any:
        """Return a frame, shape (4, 6, 3), dtype uint8; `None` without a render mode."""
        return None if self.render_mode is None else np.full((4, 6, 3), self.count % 256, dtype=np.uint8)


class AttributeEnv(CountingEnv):
    """`CountingEnv` with an attribute and methods for `call`, `get_attr` and `set_attr`.

    Args:
        difficulty: Value of the attribute.
        length: See `CountingEnv`.
    """

    def __init__(self, difficulty: float = 1.0, length: int = 5) -> None:
        super().__init__(length)
        self.difficulty = difficulty

    def scaled(self, value: float, *, plus: float = 0.0) -> float:
        """Return `value * difficulty + plus`."""
        return value * self.difficulty + plus

    def describe(self) -> dict[str, Any]:
        """Return a nested result with an array."""
        return {"difficulty": self.difficulty, "trace": np.arange(self.count)}

    def refuse(self, reason: str) -> None:
        """Raise `LookupError(reason)`."""
        raise LookupError(reason)


class Words(spaces.Space[str]):
    """Space of three words, of a class that libraries do not know."""

    words = ("north", "south", "up")

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Return a random word; masks are ignored."""
        return self.words[int(self.np_random.integers(len(self.words)))]

    def contains(self, x: Any) -> bool:
        """Return whether `x` is one of the words."""
        return x in self.words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    __hash__ = None  # type: ignore[assignment]  # as every Gymnasium space that defines __eq__


# The default of Text is a set; its order, and with it every sample, changes from process to process.
_LETTERS = "abcdefghij"


def _nested() -> spaces.Space[Any]:
    inner = spaces.Tuple((spaces.Discrete(5, start=-2), spaces.Box(0, 1, (2, 2), np.float32)))
    return spaces.Dict({"inner": inner, "mask": spaces.MultiBinary(3), "deep": spaces.Dict({"x": spaces.Discrete(3)})})


def _part_odd() -> spaces.Space[Any]:
    text = spaces.Text(5, charset=_LETTERS)
    return spaces.Dict({"vector": spaces.Box(-1, 1, (3,), np.float32), "text": text, "word": Words()})


def _graph() -> spaces.Space[Any]:
    return spaces.Graph(node_space=spaces.Box(-1, 1, (2,)), edge_space=spaces.Discrete(3))


_SPACES: dict[str, Callable[[], spaces.Space[Any]]] = {
    "box": lambda: spaces.Box(-1, 1, (3,), np.float32),
    "scalar": lambda: spaces.Box(-1, 1, (), np.float64),
    "float16": lambda: spaces.Box(-1, 1, (3,), np.float16),
    "image": lambda: spaces.Box(0, 255, (8, 6, 3), np.uint8),
    "discrete": lambda: spaces.Discrete(7, start=-3),
    "multidiscrete": lambda: spaces.MultiDiscrete([3, 4, 2]),
    "grid": lambda: spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
    "multibinary": lambda: spaces.MultiBinary([2, 3]),
    "nested": _nested,
    "tuple": lambda: spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))),
    "text": lambda: spaces.Text(8, charset=_LETTERS),
    "sequence": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
    "stacked_sequence": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32), stack=True),
    "graph": _graph,
    "oneof": lambda: spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))),
    "custom": Words,
    "part_odd": _part_odd,
}

SPACE_KINDS: tuple[str, ...] = tuple(_SPACES)
"""Kinds of spaces of `SpaceEnv`: every kind of Gymnasium space, nested spaces, and a custom one."""


def _spell(value: Any) -> str:
    """Return text that depends on all values and types; faster than NumPy's `repr`."""
    if isinstance(value, np.ndarray):
        value = (value.dtype.str, value.shape, value.tolist())
    elif isinstance(value, dict):
        value = {key: _spell(part) for key, part in value.items()}
    elif isinstance(value, tuple):
        return f"{type(value).__name__}{[_spell(part) for part in value]}"
    return repr(value)


class SpaceEnv(CountingEnv):
    """`CountingEnv` that samples observations from a space; its info contains the action and its types as text.

    Args:
        observation: Kind of observation space, one of `SPACE_KINDS`.
        action: Kind of action space.
        length: Number of steps of an episode.
    """

    def __init__(self, observation: str = "box", action: str = "discrete", length: int = 4) -> None:
        super().__init__(length)
        self.observation_space, self.action_space = _SPACES[observation](), _SPACES[action]()

    def observe(self) -> Any:
        """Return a sample of the space, seeded by the draw."""
        self.observation_space.seed(int(self.draw * 2**31))
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; the info contains the action."""
        observation, reward, terminated, truncated, _ = super().step(0)
        return observation, reward, terminated, truncated, {"action": _spell(action)}


class SavableEnv(CountingEnv):
    """`CountingEnv` with `get_state` and `set_state` that cannot be copied or pickled."""

    def get_state(self) -> dict[str, Any]:
        """Return the whole state as plain values."""
        names = ("count", "episodes", "start", "draw", "action", "episode_length")
        return {"rng": self.np_random.bit_generator.state, **{name: getattr(self, name) for name in names}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        values = dict(state)
        self.np_random.bit_generator.state = values.pop("rng")
        vars(self).update(values)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("SavableEnv is saved by get_state() only")


class LockedEnv(CountingEnv):
    """`CountingEnv` with a lock and a generator, which can be neither copied nor pickled."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.lock, self.ticks = threading.Lock(), (tick for tick in itertools.count())


class ActionKeeperEnv(CountingEnv):
    """Environment that keeps a reference to each action, and observes the previous one.

    It detects vector environments that pass views of memory that they overwrite: the observation is then the action of
    another step. With `mutates` it overwrites actions, which detects vector environments that pass the caller's array.
    """

    def __init__(self, length: int = 4, *, mutates: bool = False) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.mutates = mutates
        self.kept: NDArray[np.float32] = np.zeros(2, np.float32)

    def observe(self) -> Any:
        """Return the action of the last step, or the draw after a reset."""
        return np.full(2, self.draw, np.float32) if self.count == self.start else self.kept.copy()

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; observe the previous action."""
        previous, reward = self.observe(), float(action @ (1, 2))
        _, _, terminated, truncated, info = super().step(0)
        self.kept = action
        if self.mutates:
            action[:] = 99.0
        return previous, reward, terminated, truncated, info


class InPlaceEnv(CountingEnv):
    """Environment that returns the same observation array and info dict each time, changed in place.

    Args:
        length: See `CountingEnv`.
        in_sequence: True if the observation is a `Sequence` with the array as its only element.
    """

    def __init__(self, length: int = 3, *, in_sequence: bool = False) -> None:
        super().__init__(length)
        self.in_sequence = in_sequence
        if in_sequence:
            self.observation_space = spaces.Sequence(self.observation_space)
        self.buffer = np.zeros(5, np.float64)
        self.info: dict[str, Any] = {"trace": np.zeros(2), "nested": {"count": 0}}

    def observe(self) -> Any:
        """Overwrite the observation array."""
        self.buffer[:] = super().observe()
        return (self.buffer,) if self.in_sequence else self.buffer

    def inform(self, info: dict[str, Any]) -> dict[str, Any]:
        """Overwrite the info."""
        self.info["trace"][:] = self.info["nested"]["count"] = self.count
        return self.info


class LooseEnv(CountingEnv):
    """Environment that returns values of other types than those of its spaces, as many published ones do.

    It returns lists for arrays, float64 for float32, Python's numbers for NumPy's, `numpy.bool` flags, and rewards of
    changing types.
    """

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        vector = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.observation_space = spaces.Dict({"vector": vector, "list": vector, "index": spaces.Discrete(100)})

    def observe(self) -> Any:
        """Return an int, a list and an array of float64."""
        vector = super().observe()
        return {"index": self.count, "list": vector.tolist(), "vector": vector}

    def step(self, action: Any) -> Any:
        """Return a list with the reward as an int, a float32, an array without dimensions and a bool in turn."""
        observation, _, terminated, truncated, info = super().step(action)
        rewards: tuple[Any, ...] = (self.count, np.float32(0.1), np.array(2.5), True)
        return [observation, rewards[self.count % 4], np.bool_(terminated), np.bool_(truncated), info]
