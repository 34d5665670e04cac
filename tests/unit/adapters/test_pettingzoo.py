"""PettingZoo games as fleets with agents as rows, against the same games through PettingZoo's API."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tests.conftest import ONE_OF_EACH, Backend

import envfleet
from envfleet.adapters.pettingzoo import AgentFleet
from envfleet.adapters.pettingzoo_game import ParallelGame
from envfleet.envs.hockey.parallel import HockeyParallelEnv
from envfleet.errors import InvalidArgument, SubEnvError

NUM_GAMES = 3


class Race:
    """A small `ParallelEnv`: runners step on by 1 or 2, leave at the goal, and are cut off when time is up."""

    metadata: ClassVar[dict[str, Any]] = {"name": "race_v0", "render_modes": ["ansi"]}
    render_mode = "ansi"
    possible_agents = ("red", "green", "blue")

    def __init__(self, limit: int = 7, is_dict: bool = False) -> None:
        self.agents: list[str] = []
        self._limit, self._is_dict = limit, is_dict

    def observation_space(self, agent: str) -> Any:
        box = spaces.Box(-1, 99, (2,), np.float32)
        return spaces.Dict({"view": box, "turn": spaces.Discrete(50)}) if self._is_dict else box

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def _observe(self, agent: str) -> Any:
        view = np.array([self._places[agent], self._goal], np.float32)
        return {"view": view, "turn": self._turn} if self._is_dict else view

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._turn = list(self.possible_agents), 0
        self._goal = int(self._rng.integers(4, 10))
        self._places = dict.fromkeys(self.agents, 0)
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {"place": 0} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        playing, self._turn = self.agents, self._turn + 1
        for agent in playing:
            assert self.action_space(agent).contains(actions[agent])
            self._places[agent] += int(actions[agent])
        ended = {agent: self._places[agent] >= self._goal for agent in playing}
        late = dict.fromkeys(playing, self._turn >= self._limit)
        self.agents = [agent for agent in playing if not ended[agent] and not late[agent]]
        infos = {agent: {"place": self._places[agent], "name": agent} for agent in playing}
        rewards = {agent: 1.0 if ended[agent] else -0.1 * int(actions[agent]) for agent in playing}
        return {agent: self._observe(agent) for agent in playing}, rewards, ended, late, infos

    def render(self) -> str:
        return f"{self._places}"

    def close(self) -> None:
        pass


def replay_rows(env: Any, seed: int, actions: np.ndarray, mode: AutoresetMode) -> list[dict[str, np.ndarray]]:
    """Return the rows of one game by calls of PettingZoo."""
    names = env.possible_agents
    seen, infos = env.reset(seed=seed)
    steps, awaits = [], False
    for one in actions:
        row: dict[str, Any] = {name: np.zeros(len(names)) for name in ("reward", "terminated", "truncated", "active")}
        if awaits:
            seen, infos = env.reset()
            awaits = False
        else:
            playing = list(env.agents)
            results = env.step({agent: one[names.index(agent)] for agent in playing})
            seen, *numbers, infos = results
            for name, values in zip(("reward", "terminated", "truncated"), numbers, strict=True):
                for agent in playing:
                    row[name][names.index(agent)] = values[agent]
            for agent in playing:
                row["active"][names.index(agent)] = 1
            if not env.agents:
                row["final"] = [seen.get(agent) for agent in names]
                awaits = mode is AutoresetMode.NEXT_STEP
                if not awaits:
                    seen, infos = env.reset()
        nothing = np.zeros_like(next(iter(seen.values())))
        row["seen"] = np.array([seen.get(agent, nothing) for agent in names])
        row["place"] = np.array([infos.get(agent, {}).get("place", 0) for agent in names])
        steps.append(row)
    return steps


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("backend", ONE_OF_EACH, ids=str)
def test_rows_are_the_agents_of_games_played_one_by_one(backend: Backend, mode: AutoresetMode) -> None:
    actions = np.random.default_rng(0).integers(0, 3, (40, NUM_GAMES, 3))
    expected = [replay_rows(Race(), 5 + game, actions[:, game], mode) for game in range(NUM_GAMES)]
    options: dict[str, Any] = {"backend": backend.name, "workers": backend.workers, "autoreset_mode": mode}
    options["record_episodes"] = True
    with AgentFleet.make(Race, NUM_GAMES, **options) as fleet:
        first, infos = fleet.reset(seed=5)
        assert first.shape == (9, 2)
        assert infos["place"].tolist() == [0] * 9
        returns = np.zeros(9)
        for step, one in enumerate(actions):
            seen, rewards, terminated, truncated, infos = fleet.step(one.reshape(9))
            rows = {
                name: np.concatenate([game[step][name] for game in expected])
                for name in expected[0][0]
                if name != "final"
            }
            np.testing.assert_array_equal(seen, rows["seen"])
            np.testing.assert_array_equal(rewards, rows["reward"])
            np.testing.assert_array_equal(terminated, rows["terminated"])
            np.testing.assert_array_equal(truncated, rows["truncated"])
            np.testing.assert_array_equal(infos["is_active"], rows["active"])
            np.testing.assert_array_equal(infos["place"] if "place" in infos else np.zeros(9), rows["place"])
            returns += rewards
            ended = terminated | truncated
            assert ("episode" in infos) == ended.any()
            if ended.any():
                np.testing.assert_allclose(infos["episode"]["r"][ended], returns[ended])
                returns[ended] = 0
            for game in range(NUM_GAMES):
                if mode is AutoresetMode.SAME_STEP and "final" in expected[game][step]:
                    for agent, last in enumerate(expected[game][step]["final"]):
                        shown = infos["final_obs"][3 * game + agent]
                        np.testing.assert_array_equal(shown, np.zeros(2) if last is None else last)


class Telling(Race):
    """Gives infos of all kinds, some of them unlike those of other agents."""

    def step(self, actions: dict[str, Any]) -> Any:
        *results, infos = super().step(actions)
        for place, (agent, info) in enumerate(infos.items()):
            info |= {"stats": {"turn": self._turn, "deep": {"name": agent}}, "ragged": np.full(place + 1, self._turn)}
            info["kind"] = [self._turn, {"x": self._turn}, "text"][self.possible_agents.index(agent)]
        return *results, infos


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_infos_of_all_kinds_go_by_rows(mode: AutoresetMode) -> None:
    with AgentFleet.make(functools.partial(Telling, 3), 2, backend="serial", autoreset_mode=mode) as fleet:
        fleet.reset(seed=5)
        *_, infos = fleet.step(np.full(6, 0))
        assert infos["stats"]["turn"].tolist() == [1] * 6
        assert infos["stats"]["deep"]["name"].tolist() == ["red", "green", "blue"] * 2
        assert [array.tolist() for array in infos["ragged"]] == [[1], [1, 1], [1, 1, 1]] * 2
        assert infos["kind"].tolist() == [1, {"x": 1}, "text"] * 2
        for name in ("stats", "ragged", "kind"):
            assert infos[f"_{name}"].all()
        for _ in range(2):
            *_, truncated, infos = fleet.step(np.full(6, 0))
        assert truncated.all()
        last = infos if mode is AutoresetMode.NEXT_STEP else infos["final_info"]
        assert last["stats"]["turn"].tolist() == [3] * 6
        assert last["kind"].tolist() == [3, {"x": 3}, "text"] * 2


def test_infos_of_agents_that_have_ended_are_none() -> None:
    with AgentFleet.make(Telling, 1, backend="serial") as fleet:
        fleet.reset(seed=0)
        for _ in range(5):
            *_, infos = fleet.step(np.array([0, 2, 0]))
        *_, infos = fleet.step(np.array([0, 2, 0]))
        assert infos["_kind"].tolist() == [True, False, True]
        assert infos["kind"].tolist() == [6, None, "text"]
        assert infos["stats"]["turn"].tolist() == [6, 0, 6]
        assert infos["ragged"][1] is None


def test_the_numbers_of_episodes_are_those_of_agents() -> None:
    with AgentFleet.make(Race, 2, backend="serial", record_episodes=True) as fleet:
        fleet.reset(seed=0)
        lengths = []
        for _ in range(60):
            *_, infos = fleet.step(np.array([2, 1, 0, 2, 1, 0]))
            if "episode" in infos:
                lengths += infos["episode"]["l"][infos["_episode"]].tolist()
        assert set(lengths) >= {2, 7}
        assert max(lengths) == 7


def test_spaces_may_be_dicts_and_masks_go_by_games() -> None:
    make_env = functools.partial(Race, 4, is_dict=True)
    with AgentFleet.make(make_env, 2, backend="serial", autoreset_mode="DISABLED") as fleet:
        seen, _ = fleet.reset(seed=1)
        assert fleet.observation_space.contains(seen)
        assert {name: value.shape for name, value in seen.items()} == {"view": (6, 2), "turn": (6,)}
        seen, *_ = fleet.step(np.zeros(6, np.int64))
        assert seen["turn"].tolist() == [1] * 6
        seen, _ = fleet.reset(options={"reset_mask": np.arange(6) < 3})
        assert seen["turn"].tolist() == [0] * 3 + [1] * 3
        with pytest.raises(InvalidArgument, match="reset together"):
            fleet.reset(options={"reset_mask": np.arange(6) < 2})
        with pytest.raises(InvalidArgument, match="2 games × 3 agents"):
            fleet.reset(options={"reset_mask": np.ones(5, np.bool_)})
        with pytest.raises(InvalidArgument, match=r"shape \(5,\), expected \(6,\)"):
            fleet.step(np.zeros(5, np.int64))
        assert fleet.render() == ("{'red': 0, 'green': 0, 'blue': 0}",) * 2


def test_a_game_is_an_environment_of_any_fleet() -> None:
    with envfleet.make(functools.partial(ParallelGame, HockeyParallelEnv), 2, backend="process") as fleet:
        seen, _ = fleet.reset(seed=3)
        assert seen.shape == (2, 2, 18)
        seen, rewards, *_, infos = fleet.step(fleet.action_space.sample())
        both = infos["player_one.reward"] + infos["player_two.reward"]
        np.testing.assert_array_equal(rewards, both)


def test_a_game_that_fails_is_begun_anew() -> None:
    class Breaking(Race):
        def step(self, actions: dict[str, Any]) -> Any:
            if self._goal == 4:
                raise RuntimeError("broke")
            return super().step(actions)

    with AgentFleet.make(Breaking, 2, backend="serial", on_failure="restart", max_restarts=100) as fleet:
        fleet.reset(seed=0)
        lost = 0
        for _ in range(60):
            _, rewards, _, truncated, infos = fleet.step(np.ones(6, np.int64))
            if "env_error" in infos:
                rows = infos["_env_error"]
                assert rows.reshape(2, 3).all(axis=1).sum() == rows.sum() / 3
                assert truncated[rows].all()
                assert not rewards[rows].any()
                lost += 1
        assert lost


def test_gymnasiums_statistics_of_agents() -> None:
    with AgentFleet.make(Race, 2, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        assert fleet.autoreset_mode is fleet.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        subject = RecordEpisodeStatistics(fleet)
        subject.reset(seed=0)
        for _ in range(8):
            *_, infos = subject.step(np.full(6, 2))
            if "episode" in infos:
                break
        assert set(infos["episode"]["r"].tolist()) > {0.0}


@pytest.mark.usefixtures("one_torch_thread")
def test_stable_baselines_learns_from_all_agents() -> None:
    """Through `adopt`, which makes a fleet of any vector environment."""
    from stable_baselines3 import PPO

    from envfleet.adapters.sb3 import FleetVecEnv

    agents = AgentFleet.make(Race, 2, backend="serial", autoreset_mode="SAME_STEP")
    env = FleetVecEnv(envfleet.adopt(agents))
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(192)
    assert model.num_timesteps == 192
    assert model.ep_info_buffer
    env.close()


class Pairs(Race):
    def action_space(self, agent: str) -> Any:
        return spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))


def test_actions_of_another_structure_are_refused() -> None:
    with AgentFleet.make(Pairs, 2, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="expected a tuple of 2 parts"):
            fleet.step((np.zeros(6, np.int64),) * 3)


class Unlike(Race):
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3 if agent == "red" else 4)


class Texts(Race):
    def observation_space(self, agent: str) -> Any:
        return spaces.Text(5)


def test_what_cannot_be_rows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="pad_action_space_v0"):
        AgentFleet.make(Unlike, 1, backend="serial")
    for nothing in (dict, Race(), "CartPole-v1"):
        with pytest.raises((InvalidArgument, SubEnvError), match="does not make a PettingZoo ParallelEnv"):
            AgentFleet.make(nothing, 1, backend="serial")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="expected Box"):
        AgentFleet.make(Texts, 1, backend="serial")
