"""Rules of compiled code for actions, parameters, fields and results."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.native.mistakes import RARELY, check, compile_step, load, with_step

from envfleet.errors import KernelError
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.plain import PlainEnv

pytestmark = pytest.mark.filterwarnings("ignore:.*First-class function type feature is experimental")


@pytest.mark.parametrize("result", ["1.0", "1.0, False, False", "1.0, False, 0, 0", "'one', False"])
def test_all_ways_through_step_return_equally_much(tmp_path: Path, result: str) -> None:
    with pytest.raises(KernelError, match=r"mine\.py:\d+ .*it returns Tuple.* on different paths.* on every path"):
        check(with_step(tmp_path, f"{RARELY}return {result}"))


def test_writing_to_the_action_is_refused(tmp_path: Path) -> None:
    head = "class Mine(Base):\n    action_space = spaces.Box(-1, 1, (2,), np.float32)\n    @staticmethod\n"
    cases = [
        ("action[0] = 1.0", "read-only"),
        (RARELY + "action[0] = 1.0", r"`action\[0\] = 1.0`.*writes to a parameter, an action, a constant or"),
        ("half = action[:1]\n        if state.x > 1e9: half *= 2.0", "writes to a parameter, an action, a constant or"),
    ]
    for line, clue in cases:
        body = f"    def step(state, action, rng, params):\n        {line}\n        return 1.0, 0\n"
        with pytest.raises(KernelError, match=clue):
            check(load(tmp_path, head + body))


@pytest.mark.parametrize("line", ["action['gear'] = 1", "action['steer'][0] = 1.0", "action['steer'][:] *= 2.0"])
def test_writing_to_an_action_of_several_parts_is_refused(tmp_path: Path, line: str) -> None:
    text = f"""
    class Mine(Base):
        action_space = spaces.Dict({{"gear": spaces.Discrete(3), "steer": spaces.Box(-1, 1, (2,))}})
        @staticmethod
        def step(state, action, rng, params):
            state.x += action["gear"] * action["steer"][1]
            {RARELY}{line}
            return 1.0, False
    """
    with pytest.raises(KernelError, match=r"mine\.py:\d+ .*writes to a parameter, an action, a constant or"):
        check(load(tmp_path, text))


def test_elements_of_actions_and_parameters_can_be_used(tmp_path: Path) -> None:
    text = """
    class Mine(Base):
        action_space = spaces.Box(-1, 1, (2,), np.float32)
        @staticmethod
        def step(state, action, rng, params):
            thrust, goal = action[0], params.goals[1]
            thrust *= 2.0
            goal += 1.0
            clipped = np.clip(action, -0.5, 0.5)
            clipped += 1.0
            state.x += thrust * goal + clipped[1]
            return 1.0, False
    """
    check(load(tmp_path, text))


NUMPY = {
    "return -np.sum(np.square(action)), False": 0.0,
    "return action @ action, state.x > 9.0": 0.0,
    "return state.cells.mean() + state.cells.max() + np.max(params.goals), state.cells.any()": 0.0,
    "return (state.cells == 0).sum() * 1.0, (state.cells > 0).all()": 3.0,
    "return float(state.n == 0) + float(state.n) + float(np.bool_(True)), False": 2.0,
}


@pytest.mark.parametrize("body", NUMPY)
def test_numbers_that_numpy_makes_of_arrays_are_results(tmp_path: Path, body: str) -> None:
    head = "class Mine(Base):\n    action_space = spaces.Box(-1, 1, (2,))\n    @staticmethod\n"
    kernel = load(tmp_path, f"{head}    def step(state, action, rng, params):\n        {body}\n")
    check(kernel)
    assert PlainEnv(read_kernel(kernel)).step([0.0, 0.0])[1:] == (NUMPY[body], False, False)


def test_fields_widen_numbers_and_narrow_their_precision(tmp_path: Path) -> None:
    whole = "state.n = state.is_on; state.n = int(state.x); state.n = round(state.x); state.n = np.int32(state.n) // 2"
    others = "state.x = state.n; state.x = state.is_on; state.half = state.x; state.is_on = bool(state.n)"
    logic = "state.is_on = state.is_on | (state.x > 1.0); state.is_on &= not state.n"
    compile_step(tmp_path, f"{whole}; {others}; {logic}")
