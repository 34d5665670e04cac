"""Small deterministic environments that make mistakes of a vector environment visible.

Each shows the state of its random generator, its own step count and the action it was given in what it returns, so a
row that reached the wrong sub-environment, a seed that was lost and a reset too many all change a number.

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
    """Count the steps of an episode and end after `length` of them.

    The observation is `[step of the episode, episodes begun, last draw, last action, start]` as float64, the reward
    `step + action / 10`. The draw comes from the environment's generator, once a step and once a reset.

    Args:
        length: Steps in an episode. With `vary`, the longest; each length is then drawn at the reset.
        ends: How an episode ends. `"alternate"` takes both in turn.
        vary: Draw each episode's length from `1 … length`.
        dict_obs: Return `{"count": int64, "vector": the observation above}` instead.
        render_mode: `"rgb_array"` renders a frame of shape (4, 6, 3) whose pixels hold the step count.

    `reset(options={"start": x})` shows `x` in the observation and begins the count there.
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
        """Build the current observation in a new array."""
        vector = np.array([self.count, self.episodes, self.draw, self.action, self.start], dtype=np.float64)
        return {"count": self.count, "vector": vector} if self.dict_obs else vector

    def inform(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info to return, given that of this class."""
        return info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; a seed restarts the generator, no seed lets it run on."""
        super().reset(seed=seed)
        self.start = int((options or {}).get("start", 0))
        self.count = self.start
        self.episodes += 1
        self.action = 0
        self.draw = float(self.np_random.random())
        self.episode_length = int(self.np_random.integers(1, self.length + 1)) if self.vary else self.length
        return self.observe(), self.inform({"episodes": self.episodes})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        self.count += 1
        self.action = int(action)
        self.draw = float(self.np_random.random())
        has_ended = self.count - self.start >= self.episode_length
        is_truncation = self.ends == "truncated" or (self.ends == "alternate" and self.episodes % 2 == 0)
        observation, reward, info = self.observe(), self.count + self.action / 10, self.inform({"draw": self.draw})
        return observation, reward, has_ended and not is_truncation, has_ended and is_truncation, info

    def render(self) -> Any:
        """Render a frame of shape (4, 6, 3), uint8, or nothing without a render mode."""
        return None if self.render_mode is None else np.full((4, 6, 3), self.count % 256, dtype=np.uint8)


class AttributeEnv(CountingEnv):
    """A `CountingEnv` with an attribute and methods for `call`, `get_attr` and `set_attr`.

    Args:
        difficulty: The attribute.
        length: As `CountingEnv`.
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
    """A space no library knows: one of three words."""

    words = ("north", "south", "up")

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(None, None, seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a word; masks are ignored."""
        return self.words[int(self.np_random.integers(len(self.words)))]

    def contains(self, x: Any) -> bool:
        """Say whether `x` is one of the words."""
        return x in self.words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    __hash__ = None  # type: ignore[assignment]  # as every Gymnasium space that defines __eq__


# Text's own default is a set, whose order, and so every sample, changes from process to process.
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
"""Kinds of spaces of `SpaceEnv`: every kind of Gymnasium space, nested ones, and one of our own."""


def _spell(value: Any) -> str:
    """Return text that differs if a value or a type in it does; NumPy's `repr` is slow."""
    if isinstance(value, np.ndarray):
        value = (value.dtype.str, value.shape, value.tolist())
    elif isinstance(value, dict):
        value = {key: _spell(part) for key, part in value.items()}
    elif isinstance(value, tuple):
        return f"{type(value).__name__}{[_spell(part) for part in value]}"
    return repr(value)


class SpaceEnv(CountingEnv):
    """A `CountingEnv` that samples its observations from a space, and whose info spells out the action and its types.

    Args:
        observation: Kind of observation space, one of `SPACE_KINDS`.
        action: Kind of action space.
        length: Steps in an episode.
    """

    def __init__(self, observation: str = "box", action: str = "discrete", length: int = 4) -> None:
        super().__init__(length)
        self.observation_space, self.action_space = _SPACES[observation](), _SPACES[action]()

    def observe(self) -> Any:
        """Sample, with the space's generator seeded from the environment's."""
        self.observation_space.seed(int(self.draw * 2**31))
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sample the next observation."""
        observation, reward, terminated, truncated, _ = super().step(0)
        return observation, reward, terminated, truncated, {"action": _spell(action)}


class SavableEnv(CountingEnv):
    """A `CountingEnv` that offers `get_state` and `set_state` and refuses to be copied or pickled."""

    def get_state(self) -> dict[str, Any]:
        """Return everything that decides the future, as plain values."""
        names = ("count", "episodes", "start", "draw", "action", "episode_length")
        return {"rng": self.np_random.bit_generator.state, **{name: getattr(self, name) for name in names}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state `get_state` returned."""
        values = dict(state)
        self.np_random.bit_generator.state = values.pop("rng")
        vars(self).update(values)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("SavableEnv is saved by get_state() only")


class LockedEnv(CountingEnv):
    """A `CountingEnv` whose state can neither be copied nor pickled: it holds a lock and a generator."""

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.lock, self.ticks = threading.Lock(), (tick for tick in itertools.count())


class ActionKeeperEnv(CountingEnv):
    """Keep a reference to each action, observe the one before, and optionally scribble over the current one.

    A vector environment that hands out views of memory it writes to again is found out: the observation (the previous
    action) is then another step's. With `mutates`, so is one that hands out the caller's own array.
    """

    def __init__(self, length: int = 4, *, mutates: bool = False) -> None:
        super().__init__(length)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.mutates = mutates
        self.kept: NDArray[np.float32] = np.zeros(2, np.float32)

    def observe(self) -> Any:
        """Return the action of the last step, after a reset the draw."""
        return np.full(2, self.draw, np.float32) if self.count == self.start else self.kept.copy()

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Observe the action before this one."""
        previous, reward = self.observe(), float(action @ (1, 2))
        _, _, terminated, truncated, info = super().step(0)
        self.kept = action
        if self.mutates:
            action[:] = 99.0
        return previous, reward, terminated, truncated, info


class InPlaceEnv(CountingEnv):
    """Return the same observation array and the same info dict each time, changed in place.

    Args:
        length: As of `CountingEnv`.
        in_sequence: Whether the array is the one element of a `Sequence`.
    """

    def __init__(self, length: int = 3, *, in_sequence: bool = False) -> None:
        super().__init__(length)
        self.in_sequence = in_sequence
        if in_sequence:
            self.observation_space = spaces.Sequence(self.observation_space)
        self.buffer = np.zeros(5, np.float64)
        self.info: dict[str, Any] = {"trace": np.zeros(2), "nested": {"count": 0}}

    def observe(self) -> Any:
        """Overwrite the one observation array."""
        self.buffer[:] = super().observe()
        return (self.buffer,) if self.in_sequence else self.buffer

    def inform(self, info: dict[str, Any]) -> dict[str, Any]:
        """Overwrite the one info."""
        self.info["trace"][:] = self.info["nested"]["count"] = self.count
        return self.info


class LooseEnv(CountingEnv):
    """Return values that fit the spaces only loosely, as many environments in the wild do.

    Lists for arrays, float64 for float32, Python numbers for numpy's, `numpy.bool` flags, rewards of changing types.
    """

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        vector = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.observation_space = spaces.Dict({"vector": vector, "list": vector, "index": spaces.Discrete(100)})

    def observe(self) -> Any:
        """Observe an int, a list and an array of float64."""
        vector = super().observe()
        return {"index": self.count, "list": vector.tolist(), "vector": vector}

    def step(self, action: Any) -> Any:
        """Return a list, and in it the reward as an int, a float32, an array of no dimension and a bool in turn."""
        observation, _, terminated, truncated, info = super().step(action)
        rewards: tuple[Any, ...] = (self.count, np.float32(0.1), np.array(2.5), True)
        return [observation, rewards[self.count % 4], np.bool_(terminated), np.bool_(truncated), info]
