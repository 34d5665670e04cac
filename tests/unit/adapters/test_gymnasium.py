"""`AsyncFleet` and `SyncFleet` against Gymnasium's classes: the same calls, the same results.

Each test runs on theirs and ours. What is unlike Gymnasium's on purpose is in `test_gymnasium_differences.py`.
"""

from __future__ import annotations

import functools
import multiprocessing
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from tests.unit.adapters.peers import ASYNC, SYNC, BoundedEnv, EnvFns, Make, Typing, cartpole, counting
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.errors import SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv, InfoEnv, mismatches
from envfleet.testing.envs import AttributeEnv, SpaceEnv
from envfleet.testing.faults import PlainError

# Gymnasium's AsyncVectorEnv reports what a sub-environment raised as a warning, before it raises it.
pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")

PAIRS = pytest.mark.parametrize(("theirs", "ours"), [ASYNC, SYNC], ids=["async", "sync"])
ALL = pytest.mark.parametrize("kind", [*ASYNC, *SYNC])


def same(expected: Any, actual: Any) -> None:
    different = mismatches([*expected[:-1], without_empty(expected[-1])], [*actual[:-1], without_empty(actual[-1])])
    assert not different, different


def without_empty(infos: dict[str, Any]) -> dict[str, Any]:
    """Leave out an empty `final_info`: Gymnasium's AsyncVectorEnv has it in 1.4 and not in 1.2."""
    is_empty = infos.get("final_info") == {}
    return {name: value for name, value in infos.items() if not is_empty or name not in ("final_info", "_final_info")}


# ------------------------------------------------------------------------------------------------ results


@PAIRS
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("kind", ["vector", "dict", "cartpole"])
def test_same_results(theirs: Make, ours: Make, mode: AutoresetMode, kind: str, close_later: Make) -> None:
    """Every value that either returns in thirty steps: observations, rewards, flags, infos with their masks."""
    made_of: dict[str, EnvFns] = {
        "vector": counting(vary=True, ends="alternate"),
        "dict": [functools.partial(CountingEnv, vary=True, dict_obs=True)] * 3,
        "cartpole": [cartpole] * 3,
    }
    env_fns = made_of[kind]
    expected, actual = (
        close_later(theirs, env_fns, autoreset_mode=mode),
        close_later(ours, env_fns, autoreset_mode=mode),
    )
    same(expected.reset(seed=7), actual.reset(seed=7))
    expected.action_space.seed(1)
    for _ in range(30):
        actions = expected.action_space.sample()
        result = expected.step(actions)
        same(result, actual.step(actions))
        ended = result[2] | result[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            same(*(envs.reset(options={"reset_mask": ended.copy()}) for envs in (expected, actual)))
    same(expected.reset(seed=[3, None, 5]), actual.reset(seed=[3, None, 5]))
    same(expected.reset(options={"start": 2}), actual.reset(options={"start": 2}))


@PAIRS
@pytest.mark.parametrize("kind", ["box", "image", "discrete", "multidiscrete", "multibinary", "nested", "tuple"])
def test_same_results_in_any_space(theirs: Make, ours: Make, kind: str, close_later: Make) -> None:
    env_fns = [functools.partial(SpaceEnv, kind, kind)] * 2
    expected, actual = close_later(theirs, env_fns), close_later(ours, env_fns)
    assert expected.observation_space == actual.observation_space
    assert expected.action_space == actual.action_space
    same(expected.reset(seed=7), actual.reset(seed=7))
    expected.action_space.seed(1)
    for _ in range(6):
        actions = expected.action_space.sample()
        same(expected.step(actions), actual.step(actions))


@PAIRS
@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(4), np.array([9, -3])),
        (spaces.Discrete(4), np.array([1, 2], np.uint8)),
        (spaces.Discrete(4), np.array([1.5, 2.0])),
        (spaces.Discrete(4), [1, 7]),
        (spaces.Box(-1, 1, (2,), np.float32), np.full((2, 2), 0.1)),
        (spaces.Box(-1, 1, (2,), np.float32), np.full((2, 2), np.nan, np.float32)),
        (spaces.Box(-1, 1, (2,), np.float32), np.zeros((2, 5))),
        (spaces.Box(-1, 1, (2,), np.float32), [[1, 2], [3, 4]]),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,))}),
            {"a": np.array([5, 6]), "b": np.zeros((2, 1))},
        ),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), (np.array([5, 6]), np.array([1.5, 2.5]))),
    ],
    ids=str,
)
def test_actions_arrive_as_they_are(theirs: Make, ours: Make, space: Any, actions: Any, close_later: Make) -> None:
    """Neither cast nor checked: type, dtype and value of what each sub-environment gets."""
    env_fns: EnvFns = [functools.partial(Typing, space)] * 2
    expected, actual = close_later(theirs, env_fns), close_later(ours, env_fns)
    for envs in (expected, actual):
        envs.reset(seed=0)
    same(expected.step(actions), actual.step(actions))
    if theirs is ASYNC[0]:
        for envs in (expected, actual):
            envs.step_async(actions)
        same(expected.step_wait(), actual.step_wait())


@ALL
def test_actions_that_are_no_batch(kind: Make, close_later: Make) -> None:
    for actions, error in ((3, TypeError), (np.int64(3), TypeError), (ZERO, TypeError), (np.zeros(4, int), ValueError)):
        envs = close_later(kind, counting(3))
        envs.reset(seed=0)
        with pytest.raises(error):
            envs.step(actions)
        envs.step(np.zeros(3, int))  # nothing was stepped


ZERO = np.array(0)


@PAIRS
@pytest.mark.parametrize("kind", ["numbers", "objects", "nested", "sparse", "reserved"])
def test_same_infos(theirs: Make, ours: Make, kind: str, close_later: Make) -> None:
    """Nothing is added to what the sub-environments say: no `"episode"` of the fleet's own."""
    env_fns = [functools.partial(InfoEnv, kind, index) for index in range(3)]
    expected, actual = close_later(theirs, env_fns), close_later(ours, env_fns)
    same(expected.reset(seed=7), actual.reset(seed=7))
    for _ in range(7):
        same(*(envs.step(np.ones(3, int)) for envs in (expected, actual)))


@PAIRS
def test_same_attributes(theirs: Make, ours: Make, close_later: Make) -> None:
    env_fns = [functools.partial(cartpole, render_mode="rgb_array")] * 2
    expected, actual = close_later(theirs, env_fns), close_later(ours, env_fns)
    for name in (
        *("num_envs", "observation_space", "single_observation_space", "action_space", "single_action_space"),
        *("render_mode", "closed", "env_fns", "autoreset_mode", "metadata"),
    ):
        assert getattr(actual, name) == getattr(expected, name), name
    assert isinstance(actual, VectorEnv)
    assert actual.unwrapped is actual


@ALL
@pytest.mark.parametrize("mode", ["SameStep", AutoresetMode.SAME_STEP])
def test_positional_arguments(kind: Make, mode: Any, close_later: Make) -> None:
    """In the order of Gymnasium's constructors."""
    own = (False, "fork", False, None) if kind in ASYNC else ()
    envs = close_later(kind, counting(2), False, *own, "different", mode)
    assert envs.autoreset_mode is envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


@ALL
def test_unknown_autoreset_mode(kind: Make) -> None:
    with pytest.raises(ValueError, match="sometimes"):
        kind(counting(1), autoreset_mode="sometimes")


@ALL
@pytest.mark.parametrize("copy", [True, False])
def test_copy(kind: Make, copy: bool, close_later: Make) -> None:
    """Rewards and flags are the caller's own in any case; `copy` is about observations."""
    envs = close_later(kind, counting(2, length=2), copy=copy)
    envs.reset(seed=0)
    results = [envs.step(np.array([1, 2])) for _ in range(4)]
    assert [result[1].tolist() for result in results] == [[1.1, 1.2], [2.1, 2.2], [0, 0], [1.1, 1.2]]
    assert [result[2].tolist() for result in results] == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    if copy:
        assert [result[0][0, 0] for result in results] == [1, 2, 0, 1]
        results[-1][0][...] = -1
        assert envs.step(np.array([1, 2]))[0][0, 0] == 2


# ------------------------------------------------------------------------------------------------ calls


@ALL
def test_call_and_attributes(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, [functools.partial(AttributeEnv, difficulty) for difficulty in (1, 2, 3)])
    envs.reset(seed=0)
    assert envs.call("difficulty") == (1, 2, 3)
    assert envs.call("scaled", 10, plus=0.5) == (10.5, 20.5, 30.5)
    envs.set_attr("difficulty", [4, 5, 6])
    assert envs.get_attr("difficulty") == (4, 5, 6)
    envs.set_attr("length", 1)
    assert envs.get_attr("length") == (1, 1, 1)
    with pytest.raises(ValueError, match=re.escape("Got `2` values for 3 environments.")):
        envs.set_attr("difficulty", [1, 2])
    assert envs.np_random_seed == (0, 1, 2)
    own = CountingEnv()
    own.reset(seed=1)
    assert envs.np_random[1].random() == own.np_random.random()
    with pytest.raises(LookupError, match="no"):
        envs.call("refuse", "no")


@ALL
@pytest.mark.parametrize("render_mode", ["rgb_array", None])
def test_render(kind: Make, render_mode: str | None, close_later: Make) -> None:
    envs = close_later(kind, counting(2, render_mode=render_mode))
    envs.reset(seed=0)
    frames = envs.render()
    assert isinstance(frames, tuple)
    if render_mode is None:
        assert frames == (None, None)
    else:
        assert [frame.shape for frame in frames] == [(4, 6, 3)] * 2


@pytest.mark.parametrize("kind", SYNC)
def test_sub_environments_are_at_hand(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, (functools.partial(AttributeEnv, difficulty) for difficulty in (1, 2)))
    assert [env.difficulty for env in envs.envs] == [1, 2]
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    assert envs.envs[1].count == 1
    envs.envs[1].episode_length = 2
    assert envs.step(np.zeros(2, int))[2].tolist() == [False, True]


@pytest.mark.parametrize("kind", ASYNC)
def test_async_calls(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(2))
    envs.call_async("length")
    assert envs.call_wait(timeout=PATIENCE_S) == (5, 5)
    envs.reset_async(seed=5, options={"start": 3})
    observations, infos = envs.reset_wait(timeout=PATIENCE_S)
    assert observations[:, 4].tolist() == [3, 3]
    assert infos["episodes"].tolist() == [1, 1]
    envs.step_async(np.zeros(2, int))
    assert envs.step_wait()[1].tolist() == [4, 4]
    envs.reset_async(options={"reset_mask": np.array([False, True])})
    assert envs.reset_wait()[0][:, 0].tolist() == [4, 0]


ARGUMENTS: dict[str, tuple[Any, ...]] = {"step": (np.zeros(2, int),), "call": ("length",), "set_attr": ("length", 3)}


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("pending", ["reset", "step", "call"])
@pytest.mark.parametrize("verb", ["reset_async", "step_async", "call_async", "set_attr"])
def test_two_calls_at_once(kind: Make, pending: str, verb: str, close_later: Make) -> None:
    envs = close_later(kind, counting(2))
    envs.reset(seed=0)
    getattr(envs, f"{pending}_async")(*ARGUMENTS.get(pending, ()))
    with pytest.raises(AlreadyPendingCallError, match=f"{verb}.* while "):
        getattr(envs, verb)(*ARGUMENTS.get(verb.removesuffix("_async"), ()))
    getattr(envs, f"{pending}_wait")(timeout=PATIENCE_S)
    assert envs.step(np.zeros(2, int))[1][0] == (2 if pending == "step" else 1)


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("verb", ["reset", "step", "call"])
@pytest.mark.parametrize("pending", [None, "reset", "step", "call"])
def test_waiting_for_what_was_not_started(kind: Make, verb: str, pending: str | None, close_later: Make) -> None:
    if verb == pending:
        return
    envs = close_later(kind, counting(2))
    envs.reset(seed=0)
    if pending is not None:
        getattr(envs, f"{pending}_async")(*ARGUMENTS.get(pending, ()))
    with pytest.raises(NoAsyncCallError, match=f"{verb}_wait") as caught:
        getattr(envs, f"{verb}_wait")()
    assert caught.value.name == verb
    if pending is not None:
        getattr(envs, f"{pending}_wait")(timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_wait_times_out(kind: Make, verb: str, close_later: Make) -> None:
    slow_in: Any = {"reset": "reset", "step": "step", "call": "render"}[verb]
    nth = 2 if verb == "reset" else 1
    envs = close_later(kind, [functools.partial(FaultyEnv, "slow", slow_in, nth=nth, duration_s=2.0)] * 2)
    envs.reset(seed=0)
    getattr(envs, f"{verb}_async")(*{"step": (np.zeros(2, int),), "call": ("render",)}.get(verb, ()))
    message = re.escape(f"The call to `{verb}_wait` has timed out after 0.05 second(s).")
    with pytest.raises(multiprocessing.TimeoutError, match=message):
        getattr(envs, f"{verb}_wait")(timeout=0.05)
    envs.close(terminate=True)
    assert envs.closed


# ------------------------------------------------------------------------------------------------ refusals, errors


@ALL
def test_masks_and_seeds_that_do_not_fit(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(3))
    envs.reset(seed=[1, 2, None])
    for mask in ([True, False, True], np.array([True, False]), np.array([1, 0, 1]), np.zeros(3, bool)):
        with pytest.raises((AssertionError, TypeError, ValueError)):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises((AssertionError, TypeError, ValueError)):
        envs.reset(seed=[1, 2])
    envs.reset()


@ALL
@pytest.mark.parametrize(
    ("mode", "other"),
    [("same", (2.0,)), ("different", (1.0, 4)), ("same", (1.0, 5, 3))],
    ids=["bounds", "shape", "actions"],
)
def test_spaces_that_differ(kind: Make, mode: str, other: tuple[Any, ...], close_later: Make) -> None:
    env_fns = [functools.partial(BoundedEnv, 1.0), functools.partial(BoundedEnv, *other)]
    with pytest.raises((AssertionError, RuntimeError, ValueError), match=r"observation_mode|space|shape"):
        close_later(kind, env_fns, observation_mode=mode)


@ALL
def test_bounds_that_differ(kind: Make, close_later: Make) -> None:
    env_fns = [functools.partial(BoundedEnv, high) for high in (1.0, 2.0)]
    different = close_later(kind, env_fns, observation_mode="different")
    assert different.single_observation_space == spaces.Box(-1, 1, (5,), np.float64)
    assert different.observation_space == spaces.Box(
        np.repeat([[-1.0], [-2.0]], 5, axis=1), np.repeat([[1.0], [2.0]], 5, axis=1), (2, 5), np.float64
    )
    with pytest.raises(ValueError, match="other"):
        kind(env_fns, observation_mode="other")


@ALL
@pytest.mark.parametrize("when", ["constructor", "reset", "step"])
def test_errors_keep_their_type(kind: Make, when: Any, close_later: Make) -> None:
    faulty = functools.partial(FaultyEnv, "raise", when, nth=1 if when == "constructor" else 2)

    def use() -> None:
        envs = close_later(kind, [faulty] if when == "constructor" else [functools.partial(FaultyEnv, None), faulty])
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))
        envs.reset() if when == "reset" else envs.step(np.zeros(2, int))

    with pytest.raises(PlainError):
        use()


@pytest.mark.parametrize("kind", ASYNC)
def test_use_after_close(kind: Make) -> None:
    envs = kind(counting(2))
    envs.close()
    envs.close()
    assert envs.closed
    for verb in ("reset", "reset_async", "reset_wait", "step_async", "step_wait", "call_async", "call_wait", "render"):
        with pytest.raises(ClosedEnvironmentError):
            getattr(envs, verb)(*ARGUMENTS.get(verb.removesuffix("_async"), ()))


@ALL
@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"timeout": 0}, {"terminate": True}])
def test_close(kind: Make, options: dict[str, Any]) -> None:
    envs = kind(counting(2))
    envs.reset(seed=0)
    envs.close(**options)
    assert envs.closed


@ALL
def test_under_gymnasiums_wrappers(kind: Make) -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(kind(counting(2, length=2)))
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    *_, infos = envs.step(np.zeros(2, int))
    assert infos["episode"]["r"].tolist() == [3, 3]
    assert infos["episode"]["l"].tolist() == [2, 2]
    envs.close()


class _LooseResults(CountingEnv):
    """Observations with a key that the space lacks, and rewards that are `None`, which Gymnasium's classes take."""

    def __init__(self) -> None:
        super().__init__(dict_obs=True)

    def observe(self) -> Any:
        return {"more": "than the space", **super().observe()}

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, None if self.count == 2 else reward, *rest


@PAIRS
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_more_keys_and_rewards_that_are_none(theirs: Make, ours: Make, mode: AutoresetMode, close_later: Make) -> None:
    expected, actual = (close_later(kind, [_LooseResults] * 2, autoreset_mode=mode) for kind in (theirs, ours))
    same(expected.reset(seed=7), actual.reset(seed=7))
    for _ in range(7):
        result, other = (envs.step(np.array([1, 2])) for envs in (expected, actual))
        for infos in (result[-1], other[-1]):
            infos.pop("final_obs", None)  # ours is what the space holds
        np.testing.assert_array_equal(result[1], other[1])
        same((*result[:1], *result[2:]), (*other[:1], *other[2:]))


def test_make_refuses_both_in_words() -> None:
    with (
        envfleet.make(_LooseResults, 1, backend="serial") as fleet,
        pytest.raises(SubEnvError, match=r"has keys .*'more'"),
    ):
        fleet.reset()
    nothing: Any = dict[Any, None]().get
    with envfleet.make(
        lambda: gymnasium.wrappers.TransformReward(CountingEnv(), nothing), 1, backend="serial"
    ) as fleet:
        fleet.reset()
        with pytest.raises(SubEnvError, match="the reward None, expected a number"):
            fleet.step(np.array([0]))


@ALL
def test_spaces_that_the_caller_gives(kind: Make, close_later: Make) -> None:
    """A tuple of the batched and the single observation space replaces what would be found out."""
    single = spaces.Box(-9, 9, (5,), np.float64)
    batched = spaces.Box(-9, 9, (2, 5), np.float64)
    envs = close_later(
        kind, [functools.partial(BoundedEnv, high) for high in (1.0, 2.0)], observation_mode=(batched, single)
    )
    assert envs.single_observation_space is single
    assert envs.observation_space is batched
    assert envs.reset(seed=0)[0].shape == (2, 5)
    other = spaces.Box(-9, 9, (4,), np.float64)
    with pytest.raises((AssertionError, RuntimeError), match=r"shape|observation_space"):
        close_later(kind, [CountingEnv] * 2, observation_mode=(batched, other))
    with pytest.raises((AssertionError, TypeError, ValueError)):
        kind([CountingEnv], observation_mode=("same", "same"))
