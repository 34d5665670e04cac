"""Uses of a remote fleet: training, and reading scores and quotas."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.remote.conftest import TURBOFAN, Place
from typer.testing import CliRunner

import envfleet
from envfleet.cli.app import app
from envfleet.errors import InvalidArgument
from envfleet.training.config import RunOptions, find_config, parse_config
from envfleet.training.folder import RunFolder
from envfleet.training.loop.trainer import Trainer
from envfleet.training.plan import resolve

CONFIG = find_config("turbofan_ppo")

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def remote_config(**kwargs: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(CONFIG.read_text(encoding="utf-8"))
    config.pop("$schema")
    phase = config["curriculum"]["phases"][0]
    phase["transitions"] = 256
    phase["environment"] = {"id": "remote", "kwargs": kwargs}
    config["training"] |= {"rollout_steps": 8, "eval_games": 2, "eval_frequency": None}
    config["agent"]["hyperparameters"]["num_minibatches"] = 2
    return config


def train(place: Any, config: dict[str, Any], folder: Path | None = None, **options: Any) -> tuple[float, Any]:
    trainer = Trainer(
        resolve(parse_config(config), RunOptions(num_envs=16, **options)),
        folder=None if folder is None else RunFolder(folder),
    )
    try:
        assert trainer.run() in {"completed", "max_transitions"}
        return trainer.progress.latest()["return"], trainer.state_dict()
    finally:
        trainer.close()


def test_training_on_a_service_is_training_on_the_kernel(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_TOKEN", place.token)
    config = remote_config(url=place.url, env="Turbofan-v0", max_episode_steps=20)
    remote, _ = train(place, config)
    config["curriculum"]["phases"][0]["environment"] = {"id": TURBOFAN, "kwargs": {"max_episode_steps": 20}}
    local, _ = train(place, config)
    assert remote == local  # the same seeds, the same observations, the same updates


def test_services_allow_what_the_configuration_asks_for(place: Place) -> None:
    phase = json.loads(CONFIG.read_text(encoding="utf-8"))["curriculum"]["phases"][0]
    assert phase["environment"]["id"] == TURBOFAN
    for offer in place.service.settings.offers:
        if offer.env == TURBOFAN:
            offer.check(1024, phase["environment"]["kwargs"])


def test_a_run_goes_on_with_new_episodes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_TOKEN", place.token)
    config = remote_config(url=place.url, env="Turbofan-v0", max_episode_steps=20)
    _, state = train(place, config, max_transitions=128)
    trainer = Trainer(resolve(parse_config(config), RunOptions(num_envs=16)))
    with pytest.warns(RuntimeWarning, match="new episodes begin"):
        trainer.load_state_dict(state)
    assert trainer.run() == "completed"
    assert trainer.transitions == 256
    trainer.close()


@pytest.mark.parametrize(
    ("kwargs", "clue"),
    [
        ({"env": "Turbofan-v0"}, "without url"),
        ({"url": "http://host", "env": "e", "token": "t"}, "ENVFLEET_TOKEN"),
        ({"url": "http://host", "env": "e", "mode": "ranked"}, "seeds"),
    ],
)
def test_configurations_that_cannot_be(kwargs: dict[str, Any], clue: str) -> None:
    with pytest.raises(InvalidArgument, match=clue):
        parse_config(remote_config(**kwargs))


def test_a_backend_is_the_services_business(place: Place) -> None:
    config = parse_config(remote_config(url=place.url, env="Turbofan-v0"))
    with pytest.raises(InvalidArgument, match="which chooses its own"):
        Trainer(resolve(config, RunOptions(num_envs=2, backend="thread")))


def test_status_tells_fleets_quota_and_scores(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.service.hosting.hosted.secrets.randbits", random.Random(0).getrandbits)  # of engines
    token = place.service.tokens.create("mia")
    command = ["status", place.url, "--token", token]
    first = CliRunner().invoke(app, command)
    assert (first.exit_code, "No fleets are open" in first.output) == (0, True)
    with envfleet.connect(place.url, "Turbofan-v0", 2, token=token, mode="ranked") as fleet:
        fleet.reset()
        fleet.step([2, 0])
        shown = CliRunner().invoke(app, command).output
        engine: Any = fleet.engine
        for text in ("mia", "participant", "ranked", "live envs", "No scores yet"):
            assert text in shown
        line = next(line for line in shown.splitlines() if engine.fleet_ids[0] in line)  # whole, for `envfleet close`
        assert line.split()[-4:-2] == ["2", "1"]  # engines, and those that run
    refused = CliRunner().invoke(app, ["status", place.url, "--token", "ef_wrong"])
    assert refused.exit_code == 2
    assert "service refused" in refused.output


def test_a_recording_of_a_remote_fleet(place: Place, tmp_path: Path) -> None:
    with envfleet.connect(place.url, "CartPole-v1", num_envs=3, token=place.token) as fleet:
        recording = envfleet.record(fleet, tmp_path / "remote")
        fleet.reset(seed=7)
        rollout = fleet.rollout("random", 50, seed=1)
    assert recording.num_steps == int((~rollout.is_reset).sum()) > 100
    assert recording.num_episodes >= len(rollout.episodes) > 3
