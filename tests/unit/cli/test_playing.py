"""The commands for trained players, with a hidden window."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as imageio
import numpy as np
import pygame
import pytest
from gymnasium import spaces
from tests.terminal import TERMINAL, drawn_lines
from typer.testing import CliRunner, Result

from envfleet.agents import PPO, PPOConfig
from envfleet.cli.app import app
from envfleet.envs.games import known_game
from envfleet.envs.hockey import HockeyTwoEnv
from envfleet.training.games import LoadedPlayer, load_player, play
from envfleet.training.games.showing import Person, show_games

pytestmark = [
    pytest.mark.timeout(1200),  # when the game is not compiled yet, on a busy machine
    pytest.mark.usefixtures("one_torch_thread"),
]


def invoke(*arguments: str) -> Result:
    return CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(app, list(arguments))


def flat(text: str) -> str:
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    view, move = spaces.Box(-np.inf, np.inf, (18,), np.float32), spaces.Box(-1, 1, (4,), np.float32)
    for seed, name in enumerate(("000000000100", "best")):
        agent = PPO(view, move, PPOConfig(hidden=(8,)), seed=seed)
        agent.save(tmp_path / "run" / "checkpoints" / f"{name}.pt", "weights")
    return tmp_path / "run"


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.display.quit()


def test_evaluate_prints_and_writes_what_was_played(run: Path, tmp_path: Path) -> None:
    figures = tmp_path / "out" / "figures.json"
    result = invoke("evaluate", str(run), "--opponent", "weak", "--games", "40", "--seed", "4", "--json", str(figures))
    assert result.exit_code == 0, result.output
    outcomes = play(run / "checkpoints" / "best.pt", "weak", 40, seed=4).outcomes
    written = json.loads(figures.read_text())
    wins, draws, losses = (int((outcomes == k).sum()) for k in (1, 0, -1))
    assert written["score"] == {"wins": wins, "draws": draws, "losses": losses}
    assert written["sides"]["left"]["wins"] + written["sides"]["right"]["wins"] == wins
    assert written["win_rate"] == wins / 40
    assert "run against weak, NORMAL" in result.output
    assert f"{written['draw_rate']:.1%}" in result.output


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("evaluate {run} --opponent weak --games 4", "run against weak"),
        ("tournament {run} --games 4", "weak against strong"),
    ],
)
def test_progress_is_shown_in_a_terminal(run: Path, command: str, text: str) -> None:
    result = CliRunner(env=TERMINAL).invoke(app, command.format(run=run).split())
    assert result.exit_code == 0, result.output
    assert re.search(rf" \d:\d\d:\d\d {text}$", drawn_lines(result.stderr)[-1])


def test_tournament_draws_and_writes(run: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    result = invoke("tournament", str(run), "--games", "8", "--json", str(figures))
    assert result.exit_code == 0, result.output
    written = json.loads(figures.read_text())
    assert {rating["name"] for rating in written["ratings"]} == {"000000000100", "best", "weak", "strong"}
    assert "4 players, 8 games a pair" in result.output
    assert (run / "tournament.png").read_bytes().startswith(b"\x89PNG")


def test_watch_writes_the_games_that_evaluate_counts(tmp_path: Path) -> None:
    film = tmp_path / "games.gif"
    command = ["watch", "strong", "--against", "weak", "--seed", "5", "--games", "1", "--out", str(film)]
    result = CliRunner(env=TERMINAL).invoke(app, command)
    assert result.exit_code == 0, result.output
    assert drawn_lines(result.stderr)[-1].endswith("game 1 of 1")
    games = play("strong", "weak", 1, seed=5)
    what = {1: "strong won", 0: "a draw", -1: "weak won"}[int(games.outcomes[0])]
    assert f"Game 1, strong on the left: {what} after {games.lengths[0]} steps." in flat(result.stdout)
    assert imageio.imread(film, index=0).shape == (518, 600, 3)  # with players, score and clock above


def test_games_that_are_shown_are_those_that_are_counted(run: Path) -> None:
    player, opponent = load_player(run), load_player("strong")
    shown = [
        state
        for state in show_games(HockeyTwoEnv(), [player, opponent], 3, seed=1, game=known_game("hockey"))
        if state.outcome is not None
    ]
    games = play(player, opponent, 3, seed=1)
    assert [state.outcome for state in shown] == games.outcomes.tolist()
    assert [state.step for state in shown] == games.lengths.tolist()
    assert [state.is_left for state in shown] == [True, False, True]


def test_a_person_plays_until_escape(window: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Pressed:
        def __getitem__(self, key: int) -> bool:
            return False

    def look() -> Pressed:
        looks.append(len(looks))
        if len(looks) == 5:
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE))
        return Pressed()

    monkeypatch.setattr(pygame.key, "get_pressed", look)
    result = invoke("play", "--against", "weak")
    assert result.exit_code == 0, result.output
    assert len(looks) == 5
    assert not pygame.display.get_init()


@pytest.mark.parametrize("is_left", [True, False])
def test_arrows_move_a_person_where_they_point(window: None, monkeypatch: pytest.MonkeyPatch, is_left: bool) -> None:
    class Pressed:
        def __getitem__(self, key: int) -> bool:
            return key == pygame.K_UP

    monkeypatch.setattr(pygame.key, "get_pressed", Pressed)
    env = HockeyTwoEnv(render_mode="human")
    person = LoadedPlayer("you", policy=Person(known_game("hockey").person(env, 0 if is_left else 1)))
    states = show_games(
        env, [person, load_player("weak")], 1, side="left" if is_left else "right", game=known_game("hockey")
    )
    for _ in zip(range(15), states, strict=False):
        pass
    assert env._game is not None
    racket = env._game.world.rackets[0 if is_left else 1]
    assert racket.position[1] > 4.5
    env.close()


def test_closing_the_window_ends_it(window: None) -> None:
    pygame.display.init()
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    result = invoke("watch", "strong", "--against", "weak")
    assert result.exit_code == 0, result.output
    assert "Game 1" not in result.output


def test_no_window_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "none-such")
    result = invoke("play")
    assert result.exit_code == 2
    assert "no window can be opened here" in flat(result.output)
    assert "--out game.gif" in flat(result.output)


@pytest.mark.parametrize("command", ["evaluate", "watch"])
def test_an_agent_of_another_environment_is_told_of_the_option(command: str, tmp_path: Path) -> None:
    agent, film = tmp_path / "cart.pt", ("--out", str(tmp_path / "film.gif")) if command == "watch" else ()
    PPO(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=1).save(agent)
    result = invoke(command, str(agent), *film)
    assert "cart has observations Box(-1.0, 1.0, (4,), float32) and actions Discrete(2), a" in flat(result.output)
    assert "pass the environment of this one (`env=`, `match=`, on the command line --env)" in flat(result.output)
    result = invoke(command, str(agent), "--env", "Pendulum-v1", *film)
    assert result.exit_code == 2
    assert "has observations Box(-1.0, 1.0, (4,), float32) and actions Discrete(2), the" in flat(result.output)
    assert "on the command line --env)" in flat(result.output)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "none.pt"), "unknown player 'none.pt', expected 'weak', 'strong', 'champion'"),
        (("evaluate", "weak", "--side", "top"), "side='top': pass one of 'left', 'right', 'both'"),
        (("tournament", "nowhere"), "no saved agent (*.pt) in nowhere: pass"),
        (("watch", "weak", "--out", "game.avi"), "ends in '.avi': films are written as .gif or .mp4"),
        (("play", "--mode", "drill"), "mode='drill': pass one of 'NORMAL'"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in flat(result.output)
