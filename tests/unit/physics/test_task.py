"""A task of a user's own on every promise: equality with plain Python, states, partial steps, models that differ."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from tests.unit.physics.samples import Arm, Explosion, Gusts

import envfleet
from envfleet.errors import InvalidArgument, KernelError
from envfleet.physics import Task
from envfleet.physics.env import make_env
from envfleet.testing.duel import Duel


@pytest.mark.parametrize("task", [Arm, Gusts])
def test_fleets_equal_plain_python(task: type[Task], autoreset_mode: AutoresetMode) -> None:
    reference: Any = SyncVectorEnv([functools.partial(make_env, task)] * 3, autoreset_mode=autoreset_mode)
    subject = envfleet.make(task, 3, workers=2, autoreset_mode=autoreset_mode)
    try:
        assert subject.plan.backend == "native"
        duel = Duel(reference, subject)
        reference.action_space.seed(0)
        differences = [*duel.reset(seed=5), *duel.roll(20), *duel.reset(seed=[1, None, 4]), *duel.roll(10)]
        differences += [*duel.reset(options={"reset_mask": np.array([True, False, True])}), *duel.roll(10)]
        assert not [*differences, *duel.check_kept()]
    finally:
        reference.close()
        subject.close()


def test_states_continue_exactly() -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 3, 1)).astype(np.float32)
    with envfleet.make(Arm, 3) as fleet, envfleet.make(Arm, 3) as other:
        fleet.reset(seed=0)
        for action in actions[:10]:
            fleet.step(action)
        state = pickle.loads(pickle.dumps(fleet.get_state()))
        other.reset(seed=9)
        np.testing.assert_array_equal(other.set_state(state), fleet.engine.observe())
        for action in actions[10:]:
            for one, two in zip(fleet.step(action)[:4], other.step(action)[:4], strict=True):
                np.testing.assert_array_equal(one, two)


def test_some_rows_step_alone() -> None:
    with envfleet.make(Arm, 3) as fleet, envfleet.make(Arm, 3) as other:
        fleet.reset(seed=0)
        before, _ = other.reset(seed=0)
        expected = fleet.step(np.full((3, 1), 0.5, np.float32))
        other.send(np.full((2, 1), 0.5, np.float32), [2, 0])
        batch = other.recv()
        np.testing.assert_array_equal(batch.observations, expected[0][[2, 0]])
        np.testing.assert_array_equal(batch.rewards, expected[1][[2, 0]])
        np.testing.assert_array_equal(other.engine.observe()[1], before[1])


def test_models_differ_by_array_and_function() -> None:
    masses = np.array([[0.0, 1.0], [0.0, 2.0]])
    with envfleet.make(Arm, 2, model_fields={"body_mass": masses}) as fleet:
        np.testing.assert_array_equal(fleet.reset(seed=0)[0][:, 3], [1.0, 2.0])

    def draw(model: Any, rng: np.random.Generator) -> dict[str, Any]:
        return {"body_mass": model.body_mass * rng.uniform(0.5, 2.0)}

    with (
        envfleet.make(Arm, 2, model_fields=draw, seed=3) as fleet,
        envfleet.make(Arm, 2, model_fields=draw, seed=3) as same,
    ):
        observations = fleet.reset(seed=0)[0]
        np.testing.assert_array_equal(observations, same.reset(seed=0)[0])
        assert observations[0, 3] != observations[1, 3]


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_divergence_ends_the_episode(on_failure: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with envfleet.make(Explosion, 2, on_failure=on_failure) as fleet:
        fleet.reset(seed=0)
        _, _, _, truncated, infos = fleet.step(np.array([[1.0], [0.0]], np.float32))
        assert truncated.tolist() == [on_failure == "restart", False]
        assert ("env_error" in infos) == (on_failure == "restart")
        if on_failure == "restart":
            assert infos["_env_error"].tolist() == [True, False]
            assert "diverged" in infos["env_error"][0]
    assert "unstable" in capfd.readouterr().err


def test_episodes_are_recorded() -> None:
    with envfleet.make(Arm, 2, record_episodes=True, autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        returns = np.zeros(2)
        for _ in range(7):
            _, rewards, _, _, infos = fleet.step(np.zeros((2, 1), np.float32))
            returns += rewards
            for row in np.flatnonzero(infos.get("_episode", [])):
                assert infos["episode"]["r"][row] == pytest.approx(returns[row])
                returns[row] = 0.0
        assert fleet.rollout("random", 5, seed=0).rewards.shape == (5, 2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"model_fields": {"body_masses": 1}}, "not a field of MuJoCo's model"),
        ({"model_fields": {"body_mass": [1.0]}}, r"expected \(2, 2\)"),
        ({"model_fields": 3}, "expected a dict of arrays"),
        ({"model": "/nowhere.xml"}, "cannot be loaded"),
        ({"frame_skip": 0}, "frame_skip"),
        ({"coste": 1.0}, "did you mean cost"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        envfleet.make(Arm, 2, **kwargs)


def test_mistakes_in_tasks_name_the_line() -> None:
    class Misspelt(Arm):
        @staticmethod
        def observe(data: Any, out: NDArray[np.float64]) -> None:  # type: ignore[override]
            out[:] = data.qposs[0]

    class Swapped(Arm):
        @staticmethod
        def observe(out: NDArray[np.float64], data: Any) -> None: ...  # type: ignore[override]

    with pytest.raises(KernelError, match=r"in observe \(`out\[:\] = data.qposs\[0\]`\).*qposs"):
        envfleet.make(Misspelt, 2)
    with pytest.raises(KernelError, match=r"takes \(out, data\): write"):
        envfleet.make(Swapped, 2)


def test_plain_python_runs_on_other_backends() -> None:
    with envfleet.make(Arm, 2, backend="serial") as plain, envfleet.make(Arm, 2) as native:
        np.testing.assert_array_equal(plain.reset(seed=3)[0], native.reset(seed=3)[0])
