"""Lazy infos are a dict in every use, and Gymnasium's wrappers cannot tell the difference."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import pprint
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

from envfleet.core.episodes import Episodes
from envfleet.core.infos import batch_infos
from envfleet.core.lazy_infos import LazyInfos

PLAIN = {"a": 1, "b": [2]}


def lazy(entries: dict[str, Any] | None = None) -> LazyInfos:
    return LazyInfos(lambda: dict(PLAIN if entries is None else entries))


def keywords(**entries: Any) -> dict[str, Any]:
    return entries


def merge_into(target: dict[str, Any], infos: dict[str, Any]) -> dict[str, Any]:
    target |= infos
    return target


def match(infos: object) -> object:
    match infos:
        case {"a": value, **rest}:
            return value, rest
    return None


def delete(infos: dict[str, Any]) -> None:
    del infos["a"]


READS: dict[str, Callable[[Any], Any]] = {
    "in": lambda d: ("a" in d, "z" in d),
    "getitem": lambda d: d["a"],
    "get": lambda d: (d.get("a"), d.get("z"), d.get("z", 3)),
    "iter": list,
    "reversed": lambda d: list(reversed(d)),
    "keys": lambda d: list(d.keys()),
    "values": lambda d: list(d.values()),
    "items": lambda d: list(d.items()),
    "len": len,
    "bool": bool,
    "equal": lambda d: (d == PLAIN, d == {}),
    "equal-right": lambda d: (PLAIN == d, {} == d),  # noqa: SIM300  (the sides matter here)
    "unequal": lambda d: (d != PLAIN, d != {}),
    "unequal-right": lambda d: (PLAIN != d, {} != d),  # noqa: SIM300  (as above)
    "equal-lazy": lambda d: (d == lazy(), lazy() == d, d == lazy({}), lazy({}) != d),
    "or": lambda d: (d | {"c": 1}, d | lazy({"c": 1})),
    "ror": lambda d: {"c": 1} | d,
    "ior-right": lambda d: merge_into({"c": 1}, d),
    "keywords": lambda d: keywords(**d),
    "keywords-two": lambda d: keywords(**d, **lazy({"c": 1})),
    "unpack": lambda d: {"c": 1, **d},
    "dict": dict,
    "dict-keywords": lambda d: dict(d, c=1),
    "dict-update": lambda d: merge_into({}, d),
    "set": set,
    "sorted": sorted,
    "any": any,
    "copy": lambda d: d.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda d: [pickle.loads(pickle.dumps(d, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)],
    "json": json.dumps,
    "json-nested": lambda d: json.dumps([{"infos": d}]),
    "json-indent": lambda d: json.dumps(d, indent=1),
    "repr": repr,
    "str": str,
    "format": lambda d: f"{d}",
    "pprint": pprint.pformat,
    "match": match,
    "isinstance": lambda d: isinstance(d, dict),
    "fromkeys": lambda d: dict.fromkeys(d, 1),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "setitem": lambda d: d.__setitem__("c", 1),
    "del": delete,
    "pop": lambda d: (d.pop("a"), d.pop("z", 4)),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: (d.setdefault("a", 5), d.setdefault("c", 6)),
    "update": lambda d: d.update({"c": 1}, e=2),
    "update-lazy": lambda d: d.update(lazy({"c": 1})),
    "ior": lambda d: merge_into(d, {"c": 1}) is d,
    "clear": lambda d: d.clear(),
}


@pytest.mark.parametrize("use", READS.values(), ids=READS)
@pytest.mark.parametrize("entries", [PLAIN, {"a": 1}], ids=["two", "one"])
def test_reads_as_a_dict(use, entries):
    expected = use(dict(entries))
    infos = lazy(entries)
    found = use(infos)
    assert found == expected
    assert type(found) is type(expected)
    assert use(infos) == expected  # and so once it is built
    assert infos == entries


@pytest.mark.parametrize("use", WRITES.values(), ids=WRITES)
def test_writes_as_a_dict(use):
    plain, infos = dict(PLAIN), lazy()
    assert use(infos) == use(plain)
    assert infos == plain
    assert list(infos) == list(plain)


def test_an_empty_one_is_empty():
    assert not lazy({})
    assert lazy({}) == {} == dict(lazy({}))
    assert repr(lazy({})) == json.dumps(lazy({})) == "{}"


def test_errors_are_those_of_a_dict():
    for use in (lambda d: d["z"], lambda d: d.pop("z"), lambda d: d.__delitem__("z")):
        with pytest.raises(KeyError, match=r"^'z'$"):
            use(lazy())
    with pytest.raises(TypeError, match="unhashable"):
        hash(lazy())
    with pytest.raises(TypeError, match="unsupported operand"):
        lazy() | 3  # type: ignore[operator]  # that is the test


def test_copies_are_plain_and_their_own():
    infos = lazy({"array": np.zeros(2)})
    shallow, deep = copy.copy(infos), copy.deepcopy(infos)
    assert type(shallow) is type(deep) is type(infos.copy()) is type(pickle.loads(pickle.dumps(infos))) is dict
    infos["array"][:] = 1
    infos["new"] = 1
    assert shallow["array"].tolist() == [1, 1]
    assert deep["array"].tolist() == [0, 0]
    assert list(shallow) == list(deep) == ["array"]


def test_builds_once_and_not_before_somebody_looks():
    calls = []

    def build() -> dict[str, Any]:
        calls.append(1)
        return dict(PLAIN)

    infos = LazyInfos(build)
    assert not calls
    assert isinstance(infos, dict)
    assert not calls
    for use in (*READS.values(), *WRITES.values()):
        use(infos)
        infos.update(PLAIN)
    assert calls == [1]


def test_an_error_of_the_builder_is_raised_at_each_look():
    calls = []

    def build() -> dict[str, Any]:
        calls.append(1)
        raise RuntimeError("no infos")

    infos = LazyInfos(build)
    for use in (*READS.values(), *WRITES.values()):
        if use is not READS["isinstance"] and use is not READS["match"]:
            with pytest.raises(RuntimeError, match="no infos"):
                use(infos)
    assert calls == [1]


def test_ctrl_c_while_building_leaves_it_to_be_built():
    answers = iter([KeyboardInterrupt(), None])

    def build() -> dict[str, Any]:
        if answer := next(answers):
            raise answer
        return dict(PLAIN)

    infos = LazyInfos(build)
    with pytest.raises(KeyboardInterrupt):
        len(infos)
    assert infos == PLAIN


def test_building_lets_go_of_what_it_was_built_from():
    class Source:
        def __call__(self) -> dict[str, Any]:
            return {}

    source = Source()
    gone = weakref.ref(source)
    infos = LazyInfos(source)
    del source
    assert gone() is not None
    assert not infos
    assert gone() is None


# --------------------------------------------------------------------------------------- the "episode" entry


def ended_episodes() -> Any:
    episodes = Episodes(2, AutoresetMode.NEXT_STEP)
    episodes.on_reset()
    return episodes.on_step(np.array([1.0, 2.0]), np.array([False, True]), np.zeros(2, bool))


def test_ended_episodes_are_offered():
    infos = LazyInfos(lambda: dict(PLAIN), ended_episodes())
    assert "episode" in infos
    assert "_episode" in infos
    assert infos["episode"]["r"].tolist() == [0, 2]
    assert infos["_episode"].tolist() == [False, True]
    assert set(infos) == {*PLAIN, "episode", "_episode"}


@pytest.mark.parametrize("key", ["episode", "_episode"])
def test_a_sub_environment_s_own_entry_prevails(key):
    infos = LazyInfos(lambda: {key: "mine"}, ended_episodes())
    assert infos == {key: "mine"}


class FakeFleet(gym.vector.VectorEnv):
    """Three sub-environments; an episode of number i has i + 2 steps. Infos are lazy, or plain without "episode"."""

    def __init__(self, is_lazy: bool, own_episode: bool = False) -> None:
        self.num_envs = 3
        self.single_observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 3)
        self.single_action_space = gym.spaces.Discrete(2)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 3)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.is_lazy, self.own_episode = is_lazy, own_episode
        self.episodes = Episodes(3, AutoresetMode.NEXT_STEP)
        self.count = 0

    def _pack(self, sparse: list[tuple[int, dict[str, Any]]], ended: Any = None) -> dict[str, Any]:
        build = functools.partial(batch_infos, 3, sparse)
        return LazyInfos(build, ended) if self.is_lazy else build()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episodes.on_reset()
        self.count = 0
        return np.zeros((3, 2), np.float32), self._pack([(1, {"start": 1})])

    def step(self, actions: Any) -> Any:
        self.count += 1
        turn = self.count % np.arange(3, 6)  # the step of the episode, 0 in the row of a reset
        rewards = np.where(turn == 0, 0.0, np.arange(3.0) + self.count)
        terminated = turn == np.arange(2, 5)
        truncated = np.zeros(3, bool)
        ended = self.episodes.on_step(rewards, terminated, truncated)
        sparse: list[tuple[int, dict[str, Any]]] = [
            (0, {"count": self.count}),
            (2, {"count": -self.count, "inner": {"x": 0.5}}),
        ]
        if self.own_episode:
            sparse.append((0, {"episode": {"r": 7.0}}))
        return np.full((3, 2), self.count, np.float32), rewards, terminated, truncated, self._pack(sparse, ended)


def roll(env: Any, steps: int = 20) -> list[Any]:
    results = [env.reset(seed=1)[-1]]
    results.extend(env.step(np.zeros(3, np.int64))[-1] for _ in range(steps))
    return results


def strip_times(infos: Any) -> Any:
    """Plain Python, without what depends on the clock and without our "id"."""
    if isinstance(infos, dict):
        return {key: strip_times(value) for key, value in infos.items() if key not in ("t", "id", "_t")}
    if isinstance(infos, list):
        return [strip_times(value) for value in infos]
    return infos.tolist() if hasattr(infos, "tolist") else infos


def test_record_episode_statistics_replaces_our_entry():
    wrapped = RecordEpisodeStatistics(FakeFleet(is_lazy=True))
    reference = RecordEpisodeStatistics(FakeFleet(is_lazy=False))
    found, expected = roll(wrapped), roll(reference)
    assert strip_times(found) == strip_times(expected)
    assert list(wrapped.return_queue) == list(reference.return_queue)
    assert list(wrapped.length_queue) == list(reference.length_queue)
    assert wrapped.episode_count == reference.episode_count > 5
    assert all("id" not in infos["episode"] for infos in found if "episode" in infos)
    assert any("episode" in infos for infos in found)


def test_record_episode_statistics_still_refuses_a_sub_environment_s_own():
    env = RecordEpisodeStatistics(FakeFleet(is_lazy=True, own_episode=True))
    with pytest.raises(ValueError, match="already exists in info"):
        roll(env)


def test_record_episode_statistics_still_refuses_a_second_one():
    env = RecordEpisodeStatistics(RecordEpisodeStatistics(FakeFleet(is_lazy=True)))
    with pytest.raises(ValueError, match="already exists in info"):
        roll(env)


def wrap_statistics_of_statistics(env: Any) -> Any:
    return RecordEpisodeStatistics(RecordEpisodeStatistics(env), stats_key="outer")


def convert(name: str) -> Callable[[Any], Any]:
    """A wrapper of Gymnasium's that needs a package more."""

    def wrap(env: Any) -> Any:
        return getattr(gym.wrappers.vector, name)(env)

    return wrap


class Copying(gym.vector.VectorWrapper):
    """Makes infos anew as Gymnasium's array conversions do."""

    def step(self, actions: Any) -> Any:
        *rest, infos = self.env.step(actions)
        return *rest, type(infos)(**{key: copy.deepcopy(value) for key, value in infos.items()})


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "NormalizeReward": lambda env: RecordEpisodeStatistics(NormalizeReward(env)),
    "NormalizeObservation": lambda env: RecordEpisodeStatistics(NormalizeObservation(env)),
    "DictInfoToList": lambda env: DictInfoToList(RecordEpisodeStatistics(env)),
    "NumpyToTorch": lambda env: convert("NumpyToTorch")(RecordEpisodeStatistics(env)),
    "Copying": lambda env: Copying(RecordEpisodeStatistics(env)),
    "two": wrap_statistics_of_statistics,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_gymnasium_s_wrappers_see_what_they_are_used_to(wrap):
    found, expected = roll(wrap(FakeFleet(is_lazy=True))), roll(wrap(FakeFleet(is_lazy=False)))
    assert strip_times(found) == strip_times(expected)


@pytest.mark.parametrize("wrap", [DictInfoToList, Copying, convert("NumpyToTorch")], ids=["list", "copy", "torch"])
def test_conversions_keep_our_entry(wrap):
    found = roll(wrap(FakeFleet(is_lazy=True)))
    expected = roll(wrap(RecordEpisodeStatistics(FakeFleet(is_lazy=False))))
    assert strip_times(found) == strip_times(expected)
