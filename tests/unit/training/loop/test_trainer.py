"""The training loop, mostly where it has nothing to do with hockey."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.training.watching import Watcher

from envfleet.agents import DDDQN, PPO, Transitions, load_agent
from envfleet.errors import InvalidArgument, ObservationError, RestartBudgetSpent, RewardError, SubEnvError
from envfleet.training import RunOptions, Trainer, resume, train
from envfleet.training.config import RunConfig, parse_config
from envfleet.training.events import Began, Ended, Episodes, Evaluated, Evaluating, Learned, PhaseBegan, Saved
from envfleet.training.loop.evaluator import Evaluator
from envfleet.training.loop.learners import RolloutLearner
from envfleet.training.plan import resolve
from envfleet.training.single_run import stop_requests

pytestmark = pytest.mark.usefixtures("no_plots")

CARTPOLE = "envfleet/CartPole-v1"
ENVS = "tests.unit.training.loop.cliff"


def config_of(
    *phases: dict[str, Any], agent: str = "DDDQN", env: str = "envfleet/CartPole-v1", **more: Any
) -> RunConfig:
    training = {
        "warmup_steps": 40,
        "updates_per_step": 0.25,
        "eval_frequency": None,
        "eval_games": 2,
        "checkpoint_frequency": None,
        **more,
    }
    whole = [
        {"name": f"p{number}", "environment": {"id": env}, "opponent": {"type": "none"}, **phase}
        for number, phase in enumerate(phases)
    ]
    hyperparameters = {} if agent == "PPO" else {"batch_size": 16}
    return parse_config(
        {
            "curriculum": {"phases": whole},
            "training": training,
            "hyperparameters": hyperparameters,
            "agent": {"type": agent, "hyperparameters": {"hidden": [16]}},
        }
    )


def trained(config: RunConfig, num_envs: int = 2, watcher: Watcher | None = None, **more: Any) -> Trainer:
    trainer = Trainer(resolve(config, RunOptions(num_envs=num_envs, **more)), observers=[watcher or Watcher()])
    with contextlib.closing(trainer):
        trainer.run()
    return trainer


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_updates_per_transition_do_not_depend_on_num_envs(num_envs: int) -> None:
    trainer = trained(config_of({"transitions": 240}, updates_per_step=0.5), num_envs)
    assert (trainer.transitions, trainer.agent.num_updates) == (240, 100)


def test_the_first_actions_are_uniform() -> None:
    trainer = Trainer(resolve(config_of({"transitions": 2000}, warmup_steps=2000), RunOptions(num_envs=4)))
    with contextlib.closing(trainer):
        trainer.run()
        assert isinstance(trainer.agent, DDDQN)
        actions = trainer.agent.replay.state_dict()["columns"]["actions"].numpy()
    assert 0.45 < actions.mean() < 0.55
    assert trainer.agent.num_updates == 0


def test_a_pretrained_agent_acts_by_its_policy_in_the_warm_up(tmp_path: Path) -> None:
    first = trained(config_of({"transitions": 200}))
    first.agent.save(tmp_path / "first.pt", "weights")
    config = config_of({"transitions": 200}, warmup_steps=190)
    section = config.agent.model_copy(
        update={"checkpoint_path": str(tmp_path / "first.pt"), "hyperparameters": {"hidden": [16], "epsilon_end": 0.0}}
    )
    trainer = trained(config.model_copy(update={"agent": section}))
    assert isinstance(trainer.agent, DDDQN)
    columns = trainer.agent.replay.state_dict()["columns"]
    best = first.agent.act_batch(columns["observations"].numpy()[:190], deterministic=True)
    assert (columns["actions"].numpy()[:190] == best).all()
    assert 0 < trainer.agent.num_updates <= 3


def test_a_run_resumes_without_the_file_of_its_first_weights(tmp_path: Path) -> None:
    trained(config_of({"transitions": 4})).agent.save(tmp_path / "first.pt", "weights")
    config = config_of({"transitions": 40})
    section = config.agent.model_copy(update={"checkpoint_path": str(tmp_path / "first.pt")})
    config = config.model_copy(update={"agent": section})
    train(config, max_transitions=20, base_output_dir=tmp_path, run_name="a", verbose=False)
    (tmp_path / "first.pt").unlink()
    assert resume(tmp_path / "a", verbose=False).total_steps == 40


def test_mismatched_first_weights_are_refused_by_difference(tmp_path: Path) -> None:
    trained(config_of({"transitions": 4})).agent.save(tmp_path / "first.pt", "weights")
    config = config_of({"transitions": 4})
    for hidden, env, problem in (
        (
            [8],
            CARTPOLE,
            r"saved weights do not fit .*\[16, 4\]\) from checkpoint, the shape in current model is torch.Size\(\[8",
        ),
        ([16], f"{ENVS}:Cliff", r"it has observations .*\(4,\).*, the run has observations .*\(2,\)"),
    ):
        update = {"checkpoint_path": str(tmp_path / "first.pt"), "hyperparameters": {"hidden": hidden}}
        section = config.agent.model_copy(update=update)
        other = config_of({"transitions": 4}, env=env).model_copy(update={"agent": section})
        with pytest.raises(InvalidArgument, match=rf"(?s)first\.pt', a DDDQN, but {problem}"):
            trained(other)


def test_first_weights_of_another_activation_are_refused(tmp_path: Path) -> None:
    config = config_of({"transitions": 4})
    trained(config).agent.save(tmp_path / "first.pt", "weights")
    update = {
        "checkpoint_path": str(tmp_path / "first.pt"),
        "hyperparameters": {**config.agent.hyperparameters, "activation": "tanh"},
    }
    other = config.model_copy(update={"agent": config.agent.model_copy(update=update)})
    with pytest.raises(InvalidArgument, match=r"but its activation is 'relu': set agent.hyperparameters.activation"):
        trained(other)


def test_phases_clear_or_keep_the_replay_buffer() -> None:
    watcher = Watcher()
    phases = ({"transitions": 160}, {"episodes": 6, "clear_buffer": False}, {"transitions": 80, "clear_buffer": True})
    trainer = trained(config_of(*phases), 4, watcher)
    begun = watcher.of(PhaseBegan)
    assert [event.phase_name for event in begun] == ["p0", "p1", "p2"]
    assert (begun[0].transitions, begun[1].transitions) == (0, 160)
    episodes = watcher.of(Episodes)
    assert sum(len(event) for event in episodes if event.phase == 1) >= 6
    assert [event.episodes for event in episodes] == np.cumsum([len(event) for event in episodes]).tolist()
    assert episodes[-1].episodes == trainer.progress.episodes
    assert isinstance(trainer.agent, DDDQN)
    assert len(trainer.agent.replay) == 80
    kinds = [type(event) for event in watcher.events]
    assert (kinds[0], kinds[-1]) == (Began, Ended)
    assert {Learned, Evaluated} <= set(kinds)


@pytest.mark.parametrize("agent", ["DDDQN", "PPO"])
def test_updates_at_the_end_of_a_phase_count_for_it(agent: str) -> None:
    watcher = Watcher()
    trained(config_of({"transitions": 150}, {"transitions": 150}, agent=agent, rollout_steps=200), 2, watcher)
    assert [(event.phase, event.transitions) for event in watcher.of(Learned)] == [(0, 150), (1, 300)]


def test_ppo_learns_from_rollouts_and_from_what_is_left_of_one() -> None:
    watcher = Watcher()
    trainer = trained(config_of({"transitions": 200}, agent="PPO", rollout_steps=32), 4, watcher)
    assert isinstance(trainer.agent, PPO)
    assert trainer.agent.num_transitions == trainer.transitions == 200
    assert sum(len(event) for event in watcher.of(Episodes)) == trainer.progress.episodes > 0


def test_a_nan_reward_ends_training_after_the_last_checkpoint(tmp_path: Path) -> None:
    config = config_of({"transitions": 400}, env=f"{ENVS}:unsound", warmup_steps=20, checkpoint_frequency=30)
    with pytest.raises(RewardError, match=r"returned nan in the reward, .*; the checkpoint .*\.pt is from before"):
        train(config, base_output_dir=tmp_path, run_name="a", verbose=False)
    saved = sorted((tmp_path / "a" / "checkpoints").glob("*.pt"))
    assert [path.stem for path in saved][:1] == ["000000000030"]
    weights = load_agent(saved[-1]).weights()
    assert all(tensor.isfinite().all() for network in weights.values() for tensor in network.values())


def test_a_reward_before_the_first_checkpoint_names_none(tmp_path: Path) -> None:
    config = config_of({"transitions": 400}, env=f"{ENVS}:unsound", warmup_steps=20)
    with pytest.raises(RewardError, match="there is no checkpoint yet"):
        train(config, base_output_dir=tmp_path, run_name="a", verbose=False)


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ("blurred", "observation"),
        ("blurred_at_the_end", "observation"),
        ("blurred_at_first", "observation"),
        ("blurred_in_part", "poles"),
    ],
)
def test_a_non_finite_observation_names_its_sub_env(tmp_path: Path, env: str, place: str) -> None:
    config = config_of({"transitions": 400}, env=f"{ENVS}:{env}", warmup_steps=20)
    with pytest.raises(ObservationError, match=rf"sub-environment 0 returned nan in {place}\[2\]"):
        train(config, base_output_dir=tmp_path, run_name="a", verbose=False)


@pytest.mark.parametrize(
    ("env", "action"), [("beyond", "12 in observation,"), ("beyond_in_part", r"4.0 in dials\[1\],")]
)
@pytest.mark.parametrize("agent", ["DDDQN", "PPO"])
def test_a_choice_outside_its_space_is_reported_at_its_sub_env(env: str, action: str, agent: str) -> None:
    with pytest.raises(
        ObservationError, match=f"sub-environment 0 returned {action} expected .* choices within the space"
    ):
        trained(config_of({"transitions": 40}, env=f"{ENVS}:{env}", agent=agent), 2, backend="serial")


def test_ppo_does_not_learn_from_non_finite_observations() -> None:
    # Every step ends a rollout: the update found its loss to be NaN before the observation was looked at.
    config = config_of({"transitions": 400}, env=f"{ENVS}:blurred", agent="PPO", rollout_steps=1)
    with pytest.raises(ObservationError, match=r"returned nan in observation\[2\]"):
        trained(config, 8, backend="serial")


@pytest.mark.parametrize("limit", [{"max_minutes": "5"}, {"max_transitions": 0}, {"max_transitions": float("inf")}])
def test_limits_of_a_run_are_numbers_above_0(limit: dict[str, Any]) -> None:
    [(name, value)] = limit.items()
    with pytest.raises(InvalidArgument, match=f"{name}={value!r}: pass a number above 0, or leave it out"):
        RunOptions(**limit)


def test_a_failing_sub_env_does_not_end_training_with_restarts() -> None:
    config = config_of({"transitions": 160}, env=f"{ENVS}:breaking")
    with pytest.raises(SubEnvError, match="the ice broke"):
        trained(config, 2, backend="serial")
    trainer = trained(config, 2, backend="serial", on_failure="restart")
    assert trainer.transitions == 160
    with pytest.raises(InvalidArgument, match="means nothing with backend='kernel'"):
        trained(config_of({"transitions": 1}), 1, on_failure="restart")


def test_a_finished_run_continues_with_buffer_and_optimizer(tmp_path: Path) -> None:
    config = config_of({"transitions": 100}, {"transitions": 60, "clear_buffer": False})
    first = train(config, base_output_dir=tmp_path, verbose=False)
    assert (first.reason, first.total_steps) == ("completed", 160)
    more = resume(first.run_dir, max_transitions=240, verbose=False)
    assert (more.reason, more.total_steps) == ("completed", 240)
    assert more.total_updates == first.total_updates + 20  # 0.25 for each transition, without another warm-up
    again = resume(first.run_dir, max_transitions=300, verbose=False)
    assert (again.reason, again.total_steps, again.total_updates) == ("completed", 300, more.total_updates + 15)
    assert resume(first.run_dir, verbose=False).total_steps == 300


def test_an_observer_ends_a_run_in_order(tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, Episodes) and event.transitions > 50:
            watcher.stop_requested = True

    watcher = Watcher(stop)
    result = train(config_of({"transitions": 1_000}), base_output_dir=tmp_path, verbose=False, observers=[watcher])
    assert result.reason == "observer"
    assert 50 < result.total_steps < 200
    assert watcher.of(Ended)[0].reason == "observer"
    assert resume(result.run_dir, verbose=False).total_steps == 1_000


def test_a_run_stops_at_a_return() -> None:
    watcher = Watcher()
    trainer = trained(config_of({"transitions": 5_000}, env=f"{ENVS}:Cliff"), 2, watcher, stop_at_return=7.0)
    assert watcher.of(Ended)[0].reason == "stop_at_return"
    assert trainer.transitions == 700  # 100 episodes of 7 steps, each worth 7


def test_max_restarts_is_an_option_and_a_key_of_the_file() -> None:
    config = config_of({"transitions": 160}, env=f"{ENVS}:breaking")
    with pytest.raises(RestartBudgetSpent, match="max_restarts=0"):
        trained(config, 2, backend="serial", on_failure="restart", max_restarts=0)
    strict = config_of({"transitions": 160}, env=f"{ENVS}:breaking", max_restarts=1)
    with pytest.raises(RestartBudgetSpent, match="max_restarts=1"):
        trained(strict, 2, backend="serial", on_failure="restart")
    trained(strict, 2, backend="serial", on_failure="restart", max_restarts=5)


def test_a_resumed_run_names_the_key_that_differs(tmp_path: Path) -> None:
    result = train(config_of({"transitions": 90}), base_output_dir=tmp_path, max_transitions=40, verbose=False)
    path = result.run_dir / "config.json"
    path.write_text(path.read_text().replace('"batch_size": 16', '"batch_size": 17'))
    expected = "hyperparameters.batch_size is 17 in the configuration, but was 16 when the run was saved"
    with pytest.raises(InvalidArgument, match=expected):
        resume(result.run_dir, verbose=False)


def test_resuming_removes_what_a_killed_save_left(tmp_path: Path) -> None:
    result = train(config_of({"transitions": 90}), base_output_dir=tmp_path, max_transitions=40, verbose=False)
    left = [result.run_dir / ".resume.0a1b2c3d.pt", result.run_dir / "checkpoints" / ".000000000040.0a1b2c3d.pt"]
    for path in left:
        path.write_bytes(b"half")
    resume(result.run_dir, verbose=False)
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize(("column", "error"), [("reward", RewardError), ("observation", ObservationError)])
def test_values_beyond_float32_name_the_environment(column: str, error: type[Exception]) -> None:
    config = config_of({"transitions": 160}, env=f"{ENVS}:large_{column}")
    with pytest.raises(error, match=rf"sub-environment \d returned 1e\+300 in .*{column}.*finite in float32"):
        trained(config, 2, backend="serial")


def test_ctrl_c_saves_and_ends_and_signals_are_as_before(tmp_path: Path) -> None:
    def interrupt(event: object) -> None:
        if isinstance(event, Episodes) and event.transitions > 100:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    watcher = Watcher(interrupt)
    config = config_of({"transitions": 100_000})
    result = train(config, num_envs=2, base_output_dir=tmp_path, verbose=False, observers=[watcher])
    assert result.reason == "interrupted"
    assert 100 < result.total_steps < 1000
    assert result.run_name.endswith("_vec2")
    assert (result.run_dir / "resume.pt").is_file()
    assert result.checkpoint is not None
    assert [event.path for event in watcher.of(Saved)] == [result.checkpoint]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_what_it_always_does() -> None:
    with stop_requests() as should_stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert should_stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("agent", ["DDDQN", "PPO"])
def test_resumed_runs_do_not_join_new_and_old_episodes(agent: str) -> None:
    config = config_of({"transitions": 120}, agent=agent, rollout_steps=16)
    with contextlib.closing(Trainer(resolve(config, RunOptions(num_envs=2)))) as first:
        first.begin()
        for _ in range(9):
            first.round()
        state = first.state_dict()
    state["arena"]["fleet"] = None  # as of a service, which keeps nothing
    happened: list[Transitions] = []
    with contextlib.closing(Trainer(resolve(config, RunOptions(num_envs=2)))) as second:
        with pytest.warns(RuntimeWarning, match="new episodes begin"):
            second.load_state_dict(state)
        learner = second._learner
        take = learner.take

        def spy(transitions: Transitions) -> dict[str, float]:
            happened.append(transitions)
            return take(transitions)

        learner.take = spy  # type: ignore[method-assign]
        for _ in range(3):
            acted_on = second._observations
            second.round()
            assert (happened[-1].observations == acted_on).all()
        if isinstance(learner, RolloutLearner):
            rollout = learner._rollouts.take()
            assert rollout.truncated[8].all()
            assert (rollout.observations[9:12] == [transitions.observations for transitions in happened]).all()


def test_all_observers_are_closed_even_if_one_fails() -> None:
    class Stubborn(Watcher):
        def close(self) -> None:
            raise OSError("the disk is full")

    watcher = Watcher()
    trainer = Trainer(resolve(config_of({"transitions": 10})), observers=[Stubborn(), watcher])
    with pytest.raises(OSError, match="the disk is full"):
        trainer.close()
    assert watcher.is_closed


@pytest.mark.parametrize(
    ("budget", "reason"), [({"max_transitions": 50}, "max_transitions"), ({"max_minutes": 1e-6}, "max_minutes")]
)
def test_a_budget_ends_training(budget: dict[str, Any], reason: str) -> None:
    watcher = Watcher()
    trained(config_of({"transitions": 10**6}), 2, watcher, **budget)
    assert [event.reason for event in watcher.of(Ended)] == [reason]


def test_only_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    config = config_of({"transitions": 200}, checkpoint_frequency=40, max_checkpoints=2, eval_frequency=100)
    result = train(config, num_envs=2, base_output_dir=tmp_path, run_name="a", verbose=False)
    names = {path.name for path in (result.run_dir / "checkpoints").iterdir()}
    assert names == {"000000000160.pt", "000000000200.pt", "best.pt"}


def test_options_that_cannot_be_are_refused() -> None:
    for wrong in ({"num_envs": 0}, {"max_minutes": -1.0}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            RunOptions(**wrong)
    with pytest.raises(InvalidArgument, match="cannot be imported"):
        trained(config_of({"transitions": 1}, env="nowhere:make"))
    for device in ("warp", "meta"):  # the second is one of PyTorch's, on which nothing is ever computed
        with pytest.raises(InvalidArgument, match=f"device='{device}' cannot be used"):
            trained(config_of({"transitions": 1}), device=device)
        data = config_of({"transitions": 1}).model_dump(mode="json")
        data["agent"]["hyperparameters"]["replay_device"] = device
        with pytest.raises(InvalidArgument, match=f"agent.hyperparameters.replay_device='{device}' cannot be used"):
            trained(parse_config(data))


def test_gymnasium_ids_may_name_the_module_that_registers_them() -> None:
    assert trained(config_of({"transitions": 4}, env="gymnasium:CartPole-v1")).transitions == 4


@pytest.mark.parametrize(
    ("env", "name"), [(f"{ENVS}:Cliff", f"{ENVS}:Cliff"), ("gymnasium:CartPole-v1", "CartPole-v1")]
)
def test_a_run_names_its_environment(env: str, name: str) -> None:
    watcher = Watcher()
    trained(config_of({"transitions": 4}, env=env), 2, watcher)
    assert watcher.of(Began)[0].plan.startswith(f"{name}, serial, ")


def test_observers_are_closed_where_the_last_part_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise InvalidArgument("no snapshots")

    monkeypatch.setattr("envfleet.training.loop.trainer.SnapshotPool", refuse)
    watcher = Watcher()
    with pytest.raises(InvalidArgument, match="no snapshots"):
        trained(config_of({"transitions": 1}), watcher=watcher)
    assert watcher.is_closed


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    watcher = Watcher()
    with pytest.raises(InvalidArgument, match="device='warp'"):
        train(
            config_of({"transitions": 1}), device="warp", base_output_dir=tmp_path, verbose=False, observers=[watcher]
        )
    assert watcher.is_closed
    assert not list(tmp_path.iterdir())


def test_evaluations_survive_what_the_run_survives() -> None:
    trainer = trained(config_of({"transitions": 12}, env=f"{ENVS}:fragile"), 2, backend="serial", on_failure="restart")
    assert trainer.progress.evaluation is not None
    assert [one["mean_length"] <= 6 for one in trainer.progress.evaluation.results.values()] == [True]


def test_evaluations_run_where_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINER", str(os.getpid()))
    config = config_of({"transitions": 160}, env=f"{ENVS}:Elsewhere", eval_games=3)
    trainer = trained(config, 4, backend="process", workers=2)
    assert trainer.progress.evaluation is not None
    with pytest.raises(SubEnvError, match="this is the trainer's process"):
        trained(config, 1, backend="serial")


def test_an_agent_is_saved_though_its_last_evaluation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no games today")

    monkeypatch.setattr(Evaluator, "evaluate", fail)
    with pytest.raises(RuntimeError, match="no games today"):
        train(config_of({"transitions": 100}), base_output_dir=tmp_path, run_name="a", verbose=False)
    assert (tmp_path / "a" / "resume.pt").is_file()


def test_a_stopped_evaluation_is_made_after_resuming() -> None:
    config = config_of({"transitions": 200}, eval_frequency=100, eval_games=8)
    watcher, again = Watcher(), Watcher()
    whole = Watcher()
    trained(config, 2, whole)
    with contextlib.closing(Trainer(resolve(config, RunOptions(num_envs=2)), observers=[watcher])) as trainer:
        assert trainer.run(lambda: trainer.progress.is_evaluation_due) == "interrupted"
        assert [event.transitions for event in watcher.of(Evaluating)] == [100]
        assert not watcher.of(Evaluated)
        state = pickle.loads(pickle.dumps(trainer.state_dict()))
    with contextlib.closing(
        Trainer(resolve(config, RunOptions(num_envs=2)), observers=[again], is_resumed=True)
    ) as trainer:
        trainer.load_state_dict(state)
        assert trainer.run() == "completed"
    evaluated, expected = ([(event.transitions, event.score) for event in one.of(Evaluated)] for one in (again, whole))
    assert evaluated == expected
    assert [transitions for transitions, _ in evaluated] == [100, 200]
