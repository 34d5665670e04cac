"""The commands with what is neither hockey nor compiled: a PettingZoo game for two, and an environment for one."""

from __future__ import annotations

import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import polars as pl
import pygame
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from tests.unit.training.duel import Duel, Rocks
from typer.testing import CliRunner, Result

import envfleet
from envfleet.agents import PPO
from envfleet.cli.app import app
from envfleet.envs.games import find_game
from envfleet.errors import InvalidArgument, MissingDependency
from envfleet.training import resume, train
from envfleet.training.evaluation import evaluate
from envfleet.training.games import MatchConfig

ROCKS = "tests.unit.training.duel:Rocks"
TUTORIALS = Path(__file__).resolve().parents[3] / "docs" / "tutorials"
SLEEPY = {"type": "fetch:Sleepy", "kwargs": {"sleep": 0.8}}
OPPONENTS = [{"type": "self_play"}, SLEEPY, {"type": "random"}, {"type": "snapshots"}, {"type": "none"}]
TRAINING = {"rollout_steps": 16, "eval_games": 6, "eval_frequency": None, "checkpoint_frequency": None}
AGENT = {"type": "PPO", "hyperparameters": {"hidden": [8], "num_minibatches": 1, "num_epochs": 1}}

pytestmark = pytest.mark.usefixtures("no_plots", "one_torch_thread", "_tutorials")


@pytest.fixture
def _tutorials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TUTORIALS))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _polars_runtime() -> None:
    """Polars opens the descriptors of its runtime with the first file that it reads."""
    pl.read_csv(b"a\n1\n")


def config_of(environment: dict[str, Any], **phase: Any) -> dict[str, Any]:
    phase = {"name": "all", "transitions": 300, "environment": environment, **phase}
    return {"curriculum": {"phases": [phase]}, "training": TRAINING, "agent": AGENT, "seed": 1}


def fetch(**phase: Any) -> dict[str, Any]:
    opponent = {"type": "weighted_mixture", "opponents": OPPONENTS}
    return config_of({"id": "fetch:Fetch", "kwargs": {"size": 7}}, **{"opponent": opponent, **phase})


def invoke(*arguments: object) -> Result:
    runner = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"})
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def trained(config: dict[str, Any], folder: Path) -> Path:
    (folder / "mine.json").write_text(json.dumps(config), encoding="utf-8")
    invoke("train", folder / "mine.json", "-n", 2, "--backend", "serial", "--out", folder, "--name", "run", "--quiet")
    return folder / "run"


class Dark(CartPoleEnv):
    """Renders nothing."""

    def __init__(self) -> None:
        super().__init__()


def test_an_environment_without_frames_is_not_filmed(tmp_path: Path) -> None:
    place, agent = f"{Path(__file__).stem}:Dark", tmp_path / "agent.pt"
    cart = CartPoleEnv()
    PPO(cart.observation_space, cart.action_space, num_envs=1, seed=1).save(agent)
    assert f"{place}, 2 episodes each" in invoke("evaluate", agent, "--env", place, "--games", 2).output
    result = CliRunner().invoke(app, ["watch", str(agent), "--env", place, "--out", str(tmp_path / "film.gif")])
    assert result.exit_code == 2
    assert "its constructor has no render_mode" in re.sub(r"[\s│]+", " ", result.output)


@pytest.mark.parametrize("command", [("watch", "champion"), ("watch", "champion", "--out", "film.gif"), ("play",)])
def test_without_pygame_the_commands_say_what_to_install(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pygame", None)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    assert "pip install 'envfleet[hockey]'" in re.sub(r"[\s│]+", " ", result.output)


@pytest.mark.parametrize("player", ["agent.pt", "champion"])
def test_what_nobody_would_see_is_not_played(player: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pygame.display, "init", lambda: None)
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "offscreen")
    cart = CartPoleEnv()
    PPO(cart.observation_space, cart.action_space, num_envs=1, seed=1).save(tmp_path / "agent.pt")
    monkeypatch.chdir(tmp_path)
    env = ["--env", "CartPole-v1"] if player == "agent.pt" else []
    result = CliRunner().invoke(app, ["watch", player, *env, "--games", "1"])
    assert result.exit_code == 2, result.output
    assert "no window can be opened here (there is no display)" in re.sub(r"[\s│]+", " ", result.output)


def test_a_game_for_two_is_trained_evaluated_filmed_and_ranked(tmp_path: Path) -> None:
    run = trained(fetch(shaping="fetch:nearer"), tmp_path)
    episodes = pl.read_csv(run / "episodes.csv")
    assert {"self", "fetch:Sleepy(sleep=0.8)", "random"} <= set(episodes["opponent"])
    examined = set(pl.read_csv(run / "evaluations.csv")["opponent"])
    assert examined >= {"random", "fetch:Sleepy(sleep=0.8)", "pool", "learner"}

    figures = tmp_path / "figures.json"
    shown = invoke("evaluate", run, "--opponent", "fetch:Sleepy", "--games", 12, "--json", figures).output
    assert f"{run.name} against fetch:Sleepy" in shown
    written = json.loads(figures.read_text())
    assert sum(written["score"].values()) == written["games"] == 12
    assert set(written["sides"]) == {"red", "blue"}

    film = tmp_path / "game.gif"
    shown = invoke("watch", run, "--against", "random", "--games", 1, "--side", "blue", "--out", film).output
    assert f"Game 1, {run.name} on the blue:" in shown
    assert imageio.imread(film, index=0).shape == (16 + 18, 16 * 7, 3)  # names and score above it

    assert "random" in invoke("tournament", run, "--games", 4).output
    assert (run / "tournament.png").exists()


def test_a_game_that_knows_more_is_named_by_its_class(tmp_path: Path) -> None:
    run = trained(config_of({"id": ROCKS}, opponent={"type": "basic_rock"}), tmp_path)
    assert set(pl.read_csv(run / "episodes.csv")["opponent"]) == {"basic_rock"}
    figures = tmp_path / "figures.json"
    invoke("evaluate", "random", "--env", ROCKS, "--opponent", "rock", "--games", 300, "--json", figures)
    score = json.loads(figures.read_text())["score"]
    assert all(70 < count < 130 for count in score.values()), score
    assert "rock" in invoke("tournament", run, "--games", 4).output


def test_scripts_inside_a_game_reach_it_and_its_infos_come_out() -> None:
    with envfleet.make(Rocks().source(), 3, autoreset_mode="DISABLED") as fleet:
        fleet.reset(seed=0, options={"player_one": 0, "player_two": 1})
        assert fleet.get_attr("player_two") == (1, 1, 1)
        fleet.set_attr("player_two", [0, 1, 1])
        _, rewards, *_, infos = fleet.step(np.array([[1, 2], [1, 2], [2, 2]]))
    assert rewards.tolist() == [-1.0, 1.0, -1.0]
    assert infos["choice"].tolist() == [1, 1, 2]
    assert infos["choice_two"].tolist() == [-1, -1, -1]
    with pytest.raises(InvalidArgument, match="rocks has scripts, but its environment has no player_one and player_tw"):
        Rocks(Duel)


def test_a_person_plays_a_game_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.envs.keyboard.pressed_keys", lambda keys: [pygame.K_p])
    game = find_game("tests.unit.training.duel:Scripted")
    assert game is not None
    assert game.person(game.open("", {}), 0).act(None) == 1


def test_arguments_that_a_game_does_not_take_are_named() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'fetch:Fetch' takes no argument 'sise', it takes .*did you mean size\?"
    ):
        find_game("fetch:Fetch", {"sise": 3})


def nothing() -> None:
    """An environment with a missing `return`."""


def licensed() -> None:
    raise OSError("no licence")


def simulated() -> None:
    raise MissingDependency("this simulator needs MuJoCo: pip install mujoco")


@pytest.mark.parametrize(
    ("name", "words"),
    [("nothing", "returned None, expected a gymnasium.Env or"), ("licensed", "raised OSError: no licence: fix it, or")],
)
def test_what_makes_no_environment_is_named(name: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{__name__}:{name}' {words}"):
        find_game(f"{__name__}:{name}")


def test_an_error_of_ours_keeps_its_type() -> None:
    with pytest.raises(MissingDependency, match=r"^this simulator needs"):
        find_game(f"{__name__}:simulated")


class Hasty:
    """Moves by what it sees, without a thought."""

    name = "hasty"

    def __init__(self, salt: int) -> None:
        self.salt = salt

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        rows = np.ascontiguousarray(observations)
        return np.array([zlib.crc32(seen.tobytes(), self.salt) % 3 for seen in rows])


def test_evaluation_does_not_depend_on_num_envs() -> None:
    game = find_game("fetch:Fetch", {"size": 7})
    assert game is not None
    many, few = (evaluate(Hasty(1), Hasty(2), games=20, match=MatchConfig(game=game, num_envs=n)) for n in (64, 3))
    assert many == few
    assert 0 < many.score.draws < 20


def test_a_run_with_custom_opponents_resumes_to_the_last_bit(tmp_path: Path) -> None:
    config = fetch(opponent={"type": "weighted_mixture", "opponents": [SLEEPY, {"type": "random"}]})
    options: Any = {"num_envs": 2, "backend": "serial", "base_output_dir": tmp_path, "verbose": False}
    whole = train(config, run_name="whole", **options)
    part = train(config, run_name="part", max_transitions=100, **options)
    done = resume(part.run_dir, verbose=False)
    rest = [(run.run_dir / "episodes.csv").read_bytes() for run in (whole, done)]
    assert rest[0] == rest[1]


def test_rewards_are_what_the_function_makes_of_them(tmp_path: Path) -> None:
    config = fetch(shaping=f"{Path(__file__).stem}:doubled")
    result = train(config, num_envs=2, backend="serial", base_output_dir=tmp_path, verbose=False)
    episodes = pl.read_csv(result.run_dir / "episodes.csv")
    np.testing.assert_allclose(episodes["shaped_return"], 2 * episodes["return"] + episodes["length"])


def doubled(observations: Any, actions: Any, rewards: Any, next_observations: Any) -> Any:
    assert observations.shape == next_observations.shape == (len(rewards), 3)
    assert actions.shape == (len(rewards),)
    assert (np.abs(observations[:, 0] - next_observations[:, 0]) < 0.34).all()  # one place of seven, of the same game
    return 2 * rewards + 1


def test_a_single_player_environment_goes_through_all_commands(tmp_path: Path) -> None:
    run = trained(
        config_of({"id": "gymnasium.envs.classic_control:CartPoleEnv", "kwargs": {"sutton_barto_reward": True}}),
        tmp_path,
    )
    figures = tmp_path / "figures.json"
    shown = invoke("evaluate", run, "--env", "CartPole-v1", "--games", 5, "--json", figures).output
    assert "mean return" in shown
    written = json.loads(figures.read_text())
    assert (written["episodes"], written["env"]) == (5, "CartPole-v1")

    film = tmp_path / "pole.gif"
    shown = invoke("watch", run, "--env", "CartPole-v1", "--games", 5, "--out", film).output
    returns = [float(number) for number in re.findall(r"return ([\d.]+) after", shown)]
    assert np.mean(returns) == written["mean"]
    assert imageio.imread(film, index=0).shape == (400 + 32, 600, 3)

    shown = invoke("tournament", run, "--games", 2).output
    assert "CartPoleEnv" in shown


class Pole(CartPoleEnv):
    """CartPole for a person."""

    def get_keys_to_action(self) -> dict[Any, int]:
        return {(): 0, "d": 1}


def test_a_person_plays_where_keys_mean_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")

    class Pressed:
        def __getitem__(self, key: int) -> bool:
            return key == pygame.K_d

    monkeypatch.setattr(pygame.key, "get_pressed", Pressed)
    shown = invoke("play", "--env", f"{Path(__file__).stem}:Pole", "--games", 1).output
    steps = int(re.findall(r"after (\d+) steps", shown)[0])
    assert 8 <= steps <= 11  # always pushed to one side
    with pytest.raises(AssertionError, match="does not define keys"):
        invoke("play", "--env", "CartPole-v1")


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ({"opponent": None}, r"phases\[0\] plays 'fetch:Fetch', a two-player game, without an opponent: add"),
        ({"opponent": {"type": "basic_weak"}}, "has no scripted player of that name: use random"),
        (
            {"opponent": {"type": "fetch:Nobody"}},
            "opponent is 'fetch:Nobody', but module 'fetch' has no attribute 'Nobody'",
        ),
        ({"opponent": {"type": "fetch:nearer"}}, "nearer cannot be constructed .*: accept"),
        (
            {"shaping": "fetch:SIZE"},
            "shaping is 'fetch:SIZE', a int, which cannot be called: name a class or a function",
        ),
        ({"reward_shaping": {}}, "has reward_shaping, but 'fetch:Fetch' has no shaping terms: write your own function"),
    ],
)
def test_mistakes_are_named_before_the_run_begins(phase: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=said):
        train(fetch(**phase), base_output_dir=tmp_path / "runs", verbose=False)
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--env", "CartPole-v1", "--opponent", "random"), "'CartPole-v1' is for one player: leave out --opponent"),
        (("--env", "CartPole-v1"), "x.pt cannot be read (No such file or directory): pass the folder of a run"),
        (("--env", "remote"), '--env is "remote" without url and env'),
        (("--env", "fetch:Fetch", "--mode", "FAST"), "mode='FAST', but 'fetch:Fetch' has no modes: leave it out"),
        (("--env", "fetch:Fetch", "--side", "left"), "side='left': pass one of 'red', 'blue', 'both'"),
        (("--env", "fetch:nearer"), "x.pt cannot be read (No such file or directory)"),
    ],
)
def test_what_the_environment_does_not_have_is_refused(options: tuple[str, ...], said: str) -> None:
    player = "random" if "fetch:Fetch" in options else "x.pt"
    result = CliRunner().invoke(app, ["evaluate", player, *options])
    assert result.exit_code == 2
    assert said in re.sub(r"[\s│]+", " ", result.output)


class Paying(CartPoleEnv):
    """Pays more or less for one step."""

    def __init__(self, pay: float, render_mode: str | None = None) -> None:
        super().__init__()
        self._pay = pay

    def step(self, action: Any) -> Any:
        observation, _, *_ = super().step(action)
        return observation, self._pay, True, False, {}


def test_tournaments_use_the_environment_of_the_last_phase(tmp_path: Path) -> None:
    place = f"{Path(__file__).stem}:Paying"
    for name, pays in (("two", (1.0, 5.0)), ("three", (1.0, 5.0, 9.0))):
        phases = [
            {"name": f"{pay}", "transitions": 32, "environment": {"id": place, "kwargs": {"pay": pay}}} for pay in pays
        ]
        config = {"curriculum": {"phases": phases}, "training": TRAINING, "agent": AGENT}
        train(config, base_output_dir=tmp_path, run_name=name, verbose=False)
        assert re.search(rf"{name} +{pays[-1]:.2f} ", invoke("evaluate", tmp_path / name).output)
    result = CliRunner().invoke(app, ["tournament", str(tmp_path)])
    assert result.exit_code == 2
    said = re.sub(r"[\s│]+", " ", result.output)
    assert "were trained on" in said
    assert "{'pay': 9.0}" in said
