"""Infos of hosted environments: what participants receive; environments that a service rejects at its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from tests.service.serving import make_settings
from tests.service.test_fleets import process
from typer.testing import CliRunner

from envfleet.cli.app import app
from envfleet.service.offers import Offer, make_offer

ENV = "Telling-v0"
INFOS: dict[str, Any] = {
    "secret": 7,
    "score": 3,
    "large": 2**70,
    "deep": {"score": [1, -(2**70)]},
    "action_mask": np.array([1, 0], np.int8),
}


class Telling(gym.Env[Any, Any]):
    """Ends after two steps; its infos hold more than participants should know."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 2
        return np.zeros(1, np.float32), dict(INFOS)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return np.zeros(1, np.float32), 0.0, self._left == 0, False, dict(INFOS)


class Textual(Telling):
    """Observations of a kind that cannot be sent."""

    observation_space = spaces.Text(5)  # type: ignore[assignment]  # that is the mistake


class Unbuilt(Telling):
    """Needs a package that is not installed."""

    def __init__(self) -> None:
        raise gym.error.DependencyNotInstalled("boxes are not installed, run `pip install boxes`")


class Unpacked(Telling):
    """Its resets fail."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        raise FileNotFoundError("maps/level1.txt")


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Offer]:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))

    def make(cls: type[Telling] = Telling, **options: Any) -> Offer:
        gym.envs.registration.registry.pop(ENV, None)
        gym.register(ENV, f"{__name__}:{cls.__name__}", disable_env_checker=True)
        return make_offer(ENV, backend="serial", **options)

    return make


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ((), {"action_mask"}),
        (("score",), {"action_mask", "score"}),
        (("large", "deep"), {"action_mask", "large", "deep"}),
    ],
)
def test_infos_are_those_of_the_allow_list(
    tmp_path: Path, offer: Callable[..., Offer], allowed: tuple[str, ...], names: set[str]
) -> None:
    both = names | {f"_{name}" for name in names}
    with process(make_settings(tmp_path, offers=(offer(infos=allowed),))) as here:
        user = here.user("ann")
        fleet = here.create(user, ENV, 2, autoreset_mode="SAME_STEP")
        first = here.reset(user, fleet)["infos"]
        assert set(first) == both
        here.step(user, fleet, 1, [0, 0])
        last = here.step(user, fleet, 2, [0, 0])["infos"]
    assert set(last) == both | {"final_obs", "_final_obs", "final_info", "_final_info"}
    assert set(last["final_info"]) == both
    if "large" in names:
        assert first["large"][1] == [str(2**70)] * 2
        assert first["deep"]["score"][1] == [[1, str(-(2**70))]] * 2


def test_kernels_send_the_infos_that_they_declare(tmp_path: Path) -> None:
    with process(make_settings(tmp_path)) as here:
        user = here.user("ann")
        fleet = here.create(user, "envfleet/Turbofan-v0", 2)
        assert set(here.reset(user, fleet)["infos"]) == {"num_rows", "reason", "_num_rows", "_reason"}


@pytest.mark.parametrize(
    ("cls", "cause"),
    [
        (Textual, "a space of type Text cannot be sent"),
        (Unbuilt, "DependencyNotInstalled: boxes are not installed, run `pip install boxes`"),
        (Unpacked, "FileNotFoundError: maps/level1.txt"),
    ],
)
def test_a_service_rejects_at_its_start_what_it_cannot_host(
    tmp_path: Path, offer: Callable[..., Offer], cls: type[Telling], cause: str
) -> None:
    """Participants saw an error for each fleet instead, and the operator saw none."""
    offer(cls)
    database = f"sqlite:///{tmp_path / 'service.db'}"
    result = CliRunner().invoke(app, ["serve", "--env", ENV, "--backend", "serial", "--database", database])
    message = " ".join(result.stderr.replace("│", "").split())
    assert (result.exit_code, f"--env {ENV} cannot be hosted" in message, cause in message) == (2, True, True), message
    assert "Serving" not in result.stdout
