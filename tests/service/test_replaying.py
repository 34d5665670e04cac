"""Fleets that are restored after their code changed, or that draw unseeded numbers."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.service.serving import make_settings
from tests.service.test_fleets import process

from envfleet.service.database.models import Attempt, FleetEvent
from envfleet.service.offers import Offer, make_offer
from envfleet.service.refusals import Closed
from envfleet.service.settings import Settings
from envfleet.service.users.auth import Identity
from envfleet.service.web.replay import Replays

COUNTER = """
import random
from pathlib import Path

import gymnasium as gym
import numpy as np


class Counter(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value = self.np_random.random()
        return np.array([self.value]), {}

    def step(self, action):
        self.value += STEP
        return np.array([self.value]), float(self.value), self.value > 3.0, False, {}


gym.register("Counter-v0", f"{__name__}:Counter", disable_env_checker=True)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Offer]:
    """Writes the module of an environment and returns its offer."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the cache knows files by size and second

    def write(name: str, step: str) -> Offer:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(COUNTER.replace("+= STEP", f"+= {step}")), encoding="utf-8")
        module = name.removesuffix(".py").replace("/", ".")
        monkeypatch.delitem(sys.modules, module, raising=False)
        gym.envs.registration.registry.pop("Counter-v0", None)
        return make_offer(f"{module}:Counter-v0", backend="serial", abandon_penalty=0.0, ranked_episodes=1)

    return write


def begin(settings: Settings, mode: str = "training") -> tuple[Identity, str]:
    """Leave a fleet that made a reset and a step."""
    with process(settings) as first:
        user = first.user("ann")
        fleet = first.create(user, "Counter-v0", 2 if mode == "training" else 1, mode=mode)
        first.reset(user, fleet)
        first.step(user, fleet, 1, [0] * (2 if mode == "training" else 1))
    return user, fleet


@pytest.mark.parametrize("file", ["counter_file.py", "counter_package/parts.py"])
def test_a_fleet_whose_code_was_edited_does_not_go_on(
    tmp_path: Path, write: Callable[[str, str], Offer], file: str
) -> None:
    settings = make_settings(tmp_path, offers=(write(file, "1.0"),))
    user, fleet = begin(settings)
    with process(settings) as later:  # the same code continues
        later.step(user, fleet, 2, [0, 0])
    write(file, "1.5")
    with process(settings) as later:
        with pytest.raises(Closed, match=r"ran counter_\w+ \([0-9a-f]+\), this service has counter_\w+ \([0-9a-f]+\)"):
            later.step(user, fleet, 3, [0, 0])
        later.fleets.close_fleet(user.user_id, fleet)
        assert later.store.count_live_envs(user.user_id) == 0


@pytest.mark.parametrize("mode", ["training", "ranked"])
@pytest.mark.parametrize("step", ["np.random.random()", "random.random()", "float(Path('STEPS').read_text())"])
def test_an_environment_that_gives_other_numbers_ends(
    tmp_path: Path, write: Callable[[str, str], Offer], monkeypatch: pytest.MonkeyPatch, step: str, mode: str
) -> None:
    """Silently, the client would have continued in another episode than the one it had seen."""
    monkeypatch.chdir(tmp_path)
    Path("STEPS").write_text("0.5")
    settings = make_settings(tmp_path, offers=(write("drawing.py", step),))
    user, fleet = begin(settings, mode)
    Path("STEPS").write_text("0.25")
    with process(settings) as later:
        with pytest.raises(Closed, match=r"call 1 .* other results .*global random numbers.* was closed: create a new"):
            later.step(user, fleet, 2, [0])
        assert later.store.count_live_envs(user.user_id) == later.fleets.num_held == 0
        with pytest.raises(Closed, match="was closed"):
            later.step(user, fleet, 2, [0])
        later.fleets.close_fleet(user.user_id, fleet)
        assert later.scores.board("Counter-v0") == []
        assert later.count(Attempt) == int(mode == "ranked")
        assert later.count(FleetEvent) == 3


def test_a_fleet_that_cannot_go_on_can_be_closed_at_once(tmp_path: Path, write: Callable[[str, str], Offer]) -> None:
    settings = make_settings(tmp_path, offers=(write("closing.py", "np.random.random()"),))
    user, fleet = begin(settings)
    with process(settings) as later:
        later.fleets.close_fleet(user.user_id, fleet)
        assert later.store.count_live_envs(user.user_id) == 0


def test_a_replay_that_differs_from_the_episode_is_not_shown(
    tmp_path: Path, write: Callable[[str, str], Offer]
) -> None:
    offer = write("playing.py", "1.0 + np.random.random()")
    with process(make_settings(tmp_path, offers=(offer,))) as here:
        user = here.user("ann")
        fleet = here.create(user, "Counter-v0", 1)
        here.reset(user, fleet)
        for seq in range(1, 4):
            here.step(user, fleet, seq, [0])
        [episode] = here.scores.episodes(user.user_id)
        with pytest.raises(Closed, match="its rewards differ from the recorded ones"):
            Replays(here.store, here.fleets).make(episode)


def test_versions_name_the_code_of_kernels_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    code = """
        from envfleet.envs.classic.cartpole import CartPole
        from envfleet.kernels.registration import register

        class Mine(CartPole):
            pass

        register("MineHere-v0", f"{__name__}:Mine", max_episode_steps=10)
        # LAST
    """
    file = tmp_path / "own_kernel.py"
    file.write_text(textwrap.dedent(code), encoding="utf-8")
    offer = make_offer("own_kernel:MineHere-v0")
    before = offer.version()
    assert before.startswith("envfleet ")
    assert ", own_kernel (" in before
    assert offer.version() == before
    file.write_text(textwrap.dedent(code.replace("LAST", "last")), encoding="utf-8")
    assert offer.version() != before


def test_versions_of_installed_packages_are_their_own() -> None:
    assert make_offer("CartPole-v1").version() == f"gymnasium {gym.__version__}"


def test_checksums_differ_with_every_part(tmp_path: Path) -> None:
    with process(make_settings(tmp_path)) as here:
        user = here.user("ann")
        fleet = here.create(user)
        with here.fleets.use(user.user_id, fleet) as hosted:
            observations = np.arange(12.0, dtype=np.float32).reshape(3, 4)
            parts: dict[str, Any] = {
                "observations": observations,
                "rewards": np.ones(3),
                "terminated": np.zeros(3, np.bool_),
            }
            known = {hosted.checksum(parts)}
            for name, array in parts.items():
                changed = array.copy()
                changed.flat[-1] = not changed.flat[-1]
                known.add(hosted.checksum({**parts, name: changed}))
            known.add(hosted.checksum({**parts, "observations": observations[::-1]}))
    assert len(known) == 5
