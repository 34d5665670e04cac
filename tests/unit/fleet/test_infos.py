"""Infos equal what Gymnasium builds, except where Gymnasium loses a value."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from gymnasium.spaces import GraphInstance
from gymnasium.vector import AutoresetMode
from hypothesis import given
from tests.conftest import Backend

from envfleet.fleet.infos import batch_infos, own_info, scatter_infos, take_infos
from envfleet.testing.compare import mismatches

NUM_ENVS = 5


def gymnasium_infos(num_envs: int, sparse: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    vector_env: gym.vector.VectorEnv = gym.vector.VectorEnv()
    vector_env.num_envs = num_envs
    infos: dict[str, Any] = {}
    for index, info in sparse:
        infos = vector_env._add_info(infos, info, index)
    return infos


def assert_same(actual: Any, expected: Any) -> None:
    """Equal in class, type, shape and every value, at any depth."""
    assert [str(mismatch) for mismatch in mismatches(expected, actual, "infos")] == []


# Each key has one type throughout, as Gymnasium wants it. The last letter keeps the names of nested keys short.
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "count": st.integers(-(2**62), 2**62),
    "score": st.floats(),
    "single": st.floats(width=32).map(np.float32),
    "half": st.floats(width=16).map(np.float16),
    "small": st.integers(0, 255).map(np.uint8),
    "wide": st.integers(0, 2**63 - 1).map(np.longlong),
    "double": st.floats().map(np.float64),
    "phase": st.complex_numbers().map(np.complex128),
    "success": st.booleans().map(np.bool_),
    "name": st.text(max_size=3),
    "nothing": st.none(),
    "path": st.lists(st.integers(), max_size=2),
    "place": st.tuples(st.integers(), st.floats()),
    "vector": st.lists(st.floats(width=32), min_size=3, max_size=3).map(lambda v: np.array(v, np.float32)),
    "board": st.integers(0, 9).map(lambda v: np.full((2, 2), v, np.uint8)),
    "scalar": st.floats().map(np.array),
    "objects": st.text(max_size=2).map(lambda v: np.array([v, None], object)),
    "final_obs": st.lists(st.floats(), min_size=2, max_size=2).map(np.array) | st.integers(),
    "_private": st.integers(0, 9),
}
INFO = st.fixed_dictionaries({}, optional=LEAVES)
NESTED = st.fixed_dictionaries(
    {},
    optional={
        **LEAVES,
        "empty": st.just({}),
        "inner": INFO,
        "final_info": st.fixed_dictionaries({}, optional={**LEAVES, "deep": INFO}),
    },
)
STREAM = st.lists(st.tuples(st.integers(0, NUM_ENVS - 1), NESTED), max_size=12)
UNIFORM = st.sampled_from(sorted(LEAVES)).flatmap(
    lambda key: st.lists(LEAVES[key], max_size=NUM_ENVS).map(lambda v: [(i, {key: x}) for i, x in enumerate(v)])
)


@given(STREAM | UNIFORM)
def test_equals_gymnasium_where_each_key_has_one_type(sparse):
    assert_same(batch_infos(NUM_ENVS, sparse), gymnasium_infos(NUM_ENVS, sparse))
    assert_same(batch_infos(NUM_ENVS, iter(sparse)), batch_infos(NUM_ENVS, sparse))


def test_keys_keep_the_order_of_gymnasium():
    sparse: list[Any] = [(1, {"b": 1, "a": {"z": 2.0}}), (0, {"c": "x", "a": {"y": 1}})]
    assert list(batch_infos(2, sparse)) == list(gymnasium_infos(2, sparse)) == ["b", "_b", "a", "_a", "c", "_c"]


def one_key(*values: Any) -> Any:
    """Return the value of an info key with these values of sub-environments 1, 2, …."""
    infos = batch_infos(len(values) + 1, [(i + 1, {"key": value}) for i, value in enumerate(values)])
    assert infos["_key"].tolist() == [False] + [True] * len(values)
    return infos["key"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param((1, 0.5), np.array([0, 1, 0.5]), id="int-float"),
        pytest.param((0.5, 1), np.array([0, 0.5, 1]), id="float-int"),
        pytest.param((np.float32(0.1), 0.1), np.array([0, np.float32(0.1), 0.1]), id="float32-float"),
        pytest.param((np.uint8(255), np.int8(-1)), np.array([0, 255, -1], np.int16), id="uint8-int8"),
        pytest.param((1, 2j * np.complex128(1)), np.array([0, 1, 2j]), id="int-complex"),
    ],
)
def test_unlike_numbers_are_promoted(values, expected):
    assert_same(one_key(*values), expected)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((True, 2), id="bool-int"),
        pytest.param((0.5, False), id="float-bool"),
        pytest.param((1, None), id="int-none"),
        pytest.param((0.5, "high"), id="float-str"),
        pytest.param((1, {"a": 2}), id="int-dict"),
        pytest.param(({"a": 2}, 1), id="dict-int"),
        pytest.param((1, np.array([1, 2])), id="int-array"),
        pytest.param((2**70, 1), id="beyond-64-bits"),
        pytest.param((2**53 + 1, 0.5), id="digits-lost-in-float"),
        pytest.param((np.uint64(2**64 - 1), -1), id="digits-lost-between-ints"),
        pytest.param((np.array([1, 2]), np.array([1, 2, 3])), id="arrays-of-unlike-shape"),
        pytest.param((np.array([1, 2]), np.array([True, False])), id="arrays-of-unlike-kind"),
        pytest.param((np.array([1, 2]), np.array(["a", "b"])), id="numbers-and-text"),
        pytest.param((np.array([2**53 + 1]), np.array([0.5])), id="array-digits-lost-in-float"),
        pytest.param((np.zeros(1, [("a", int)]), np.zeros(1, [("b", int)])), id="unlike-records"),
        pytest.param((np.timedelta64(1, "Y"), np.timedelta64(1, "s")), id="months-and-seconds"),
    ],
)
def test_values_that_share_no_type_are_kept_as_objects(values):
    column = one_key(*values)
    assert column.dtype == object
    assert_same(list(column), [None, *values])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (([1, 2], [0.5, 0.5]), [[0, 0], [1, 2], [0.5, 0.5]]),
        ((np.array([1, 2], np.float32), [0.1, 0.2]), [[0, 0], [1, 2], [0.1, 0.2]]),
        ((["ab"], ["abcd"]), [[""], ["ab"], ["abcd"]]),
    ],
)
def test_arrays_of_one_shape_are_promoted(values, expected):
    assert_same(one_key(*map(np.array, values)), np.array(expected))


def test_a_later_info_of_the_same_index_prevails():
    sparse: list[Any] = [(0, {"a": 1, "inner": {"x": 1, "y": 1}}), (0, {"a": 2, "inner": {"x": 5}}), (1, {"a": 3})]
    assert_same(batch_infos(2, sparse), gymnasium_infos(2, sparse))
    assert batch_infos(2, sparse)["inner"]["x"].tolist() == [5, 0]


def test_the_mask_of_a_key_prevails_over_a_key_of_its_name():
    sparse = [(0, {"x": 1, "_x": True}), (2, {"_x": True, "x": 2})]
    assert_same(batch_infos(3, sparse), gymnasium_infos(3, sparse))
    assert_same(batch_infos(1, [(0, {"_x": 7, "x": 1})])["_x"], np.array([True]))


def test_a_defaultdict_is_not_asked_for_missing_keys():
    infos: list[dict[str, Any]] = [collections.defaultdict(int, a=1), collections.defaultdict(int, b=2)]
    assert_same(batch_infos(2, enumerate(infos)), gymnasium_infos(2, list(enumerate(infos))))
    assert [list(info) for info in infos] == [["a"], ["b"]]


def test_nothing_gives_nothing():
    assert batch_infos(3, []) == {}
    assert batch_infos(3, [(1, {})]) == {}


@dataclasses.dataclass
class Score:
    points: list[int]


class Plain:
    def __init__(self) -> None:
        self.values = [1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]  # mutable


class Unlike(list[int]):
    """A subclass of list."""


def mutable_info() -> dict[str, Any]:
    return {
        "set": {1},
        "deque": collections.deque([1], maxlen=4),
        "bytes": bytearray(b"a"),
        "dataclass": Score([1]),
        "plain": Plain(),
        "unlike": Unlike([1]),
        "tensor": torch.zeros(1),
        "objects": np.array([[1], None], object),
        "nested": [{"set": {1}}],
        "array": np.zeros(2),
        "list": [np.zeros(2), [1]],
        "dict": {"array": np.zeros(2), "list": [1]},
        "final_obs": {"image": np.zeros(2), "pair": (np.zeros(2), 1)},
        "graph": GraphInstance(np.zeros((1, 2)), None, None),
        "ordered": collections.OrderedDict(a=np.zeros(2)),
    }


def spoil(info: dict[str, Any]) -> None:
    """Change whatever can be changed in place."""
    info["array"][:] = 9
    info["list"][0][:] = 9
    info["list"][1].append(9)
    info["dict"]["array"][:] = 9
    info["dict"]["list"].append(9)
    info["dict"]["new"] = 9
    info["final_obs"]["image"][:] = 9
    info["final_obs"]["pair"][0][:] = 9
    info["graph"].nodes[:] = 9
    info["ordered"]["a"][:] = 9
    info["new"] = 9
    info["set"].add(9)
    info["deque"].append(9)
    info["bytes"][:] = b"z"
    info["dataclass"].points.append(9)
    info["plain"].values.append(9)
    info["unlike"].append(9)
    info["tensor"].fill_(9)
    info["objects"][0].append(9)
    info["nested"][0]["set"].add(9)


def test_an_owned_info_is_the_owner_s():
    info = mutable_info()
    owned = own_info(info)
    assert_same(owned, mutable_info())
    spoil(info)
    assert_same(owned, mutable_info())


def test_what_cannot_be_copied_is_shared():
    lock = threading.Lock()
    assert own_info({"lock": lock, "list": [lock]}) == {"lock": lock, "list": [lock]}


class Spoiling(gym.Env[Any, Any]):
    """Returns one info, which it changes in every call."""

    observation_space: Any = gym.spaces.Discrete(2)
    action_space: Any = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.info: dict[str, Any] = {
            "set": {0},
            "deque": collections.deque([0]),
            "dataclass": Score([0]),
            "tensor": torch.zeros(1),
        }
        self.count = 0

    def _spoil(self) -> dict[str, Any]:
        self.count += 1
        self.info["set"].add(self.count)
        self.info["deque"].append(self.count)
        self.info["dataclass"].points.append(self.count)
        self.info["tensor"] += 1
        return self.info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, self._spoil()

    def step(self, action: int) -> Any:
        return 0, 0.0, self.count % 3 == 0, False, self._spoil()


def test_infos_stay_as_they_were_returned(backend: Backend, autoreset_mode: AutoresetMode) -> None:
    def texts_of(infos: Any) -> list[Any]:
        rows = [[infos[key][row] for row in range(2)] for key in ("set", "deque", "dataclass", "tensor")]
        return [[str(value) for value in row] for row in rows]

    kept, texts = [], []
    with backend([Spoiling] * 2, autoreset_mode=autoreset_mode) as fleet:
        kept.append(fleet.reset(seed=0)[1])
        texts.append(texts_of(kept[-1]))
        for _ in range(4):
            *_, ended, _, infos = fleet.step(np.zeros(2, int))
            if "final_info" in infos:
                assert [len(value) for value in infos["final_info"]["set"]] == [len(infos["set"][0]) - 1] * 2
            kept.append(infos)
            texts.append(texts_of(infos))
            if autoreset_mode is AutoresetMode.DISABLED and ended.any():
                fleet.reset(options={"reset_mask": ended})
    assert [texts_of(infos) for infos in kept] == texts


def test_each_mask_is_an_array_of_its_own():
    infos = batch_infos(2, [(0, {"a": 1, "b": 2}), (1, {"a": 1, "b": 2})])
    infos["_a"][:] = False
    assert infos["_b"].all()


# ---------------------------------------------------------------------------------------------- dense columns, rows

Dense = dict[str, tuple[Any, Any]]


@given(
    st.sampled_from([bool, int, float, np.uint8, np.uint16, np.float32, np.float64]),
    st.lists(st.integers(0, 1) | st.floats(0, 1, width=16).map(np.float16) | st.text(max_size=1), max_size=2),
)
def test_finished_columns_merge_as_if_they_had_come_as_objects(kind, others):
    """Numbers have the same type through a column and by mail."""
    given_values = [kind(1), kind(0)]
    array, mask = np.zeros(NUM_ENVS, np.dtype(kind)), np.zeros(NUM_ENVS, np.bool_)
    array[:2], mask[:2] = given_values, True
    sparse: list[Any] = [(3 + k, {"key": value}) for k, value in enumerate(others)]
    objects: list[Any] = [(k, {"key": value}) for k, value in enumerate(given_values)]
    assert_same(batch_infos(NUM_ENVS, sparse, {"key": (array, mask, kind)}), batch_infos(NUM_ENVS, objects + sparse))


def test_scattered_rows_are_found_again():
    sparse: list[Any] = [(0, {"a": 1, "inner": {"x": 2.5}}), (2, {"a": 3, "b": "text", "vector": np.ones(2)})]
    whole = batch_infos(3, sparse)
    parts = [(take_infos(whole, np.array(rows)), np.array(rows)) for rows in ([2], [0, 1])]
    assert "b" not in parts[1][0]
    assert_same(scatter_infos(parts, 3), whole)
    assert take_infos(whole, np.array([1])) == {}


def test_scattered_parts_of_unlike_form_become_objects():
    parts = [({"x": np.ones((1, 2))}, np.array([1])), ({"x": np.ones((1, 3))}, np.array([0]))]
    values = scatter_infos(parts, 3)["x"]
    assert [None if value is None else value.shape for value in values] == [(3,), (2,), None]
