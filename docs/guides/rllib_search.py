"""Tune searches learning rates: every trial trains PPO on a fleet of its own."""

from typing import Any

from ray import tune

from envfleet.rllib import PackedPPO, PackedPPOConfig


def param_space(num_envs: int = 64, batch_size: int = 12_800) -> PackedPPOConfig:
    """PPO on a fleet of Pendulums, with learning rates to try; every batch ends episodes, which last 200 steps."""
    return (
        PackedPPOConfig()
        .environment("envfleet/Pendulum-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        .packing(fleet_options={"workers": 1})  # several trials share the machine
        .training(
            lr=tune.grid_search([1e-4, 1e-3]),
            train_batch_size=batch_size,
            minibatch_size=batch_size // 10,
            num_epochs=10,
            gamma=0.95,
            lambda_=0.95,
            vf_clip_param=float("inf"),
        )
    )


def search(iterations: int = 15) -> Any:
    """The best trial of a search."""
    tuner = tune.Tuner(
        PackedPPO,
        param_space=param_space(),
        run_config=tune.RunConfig(stop={"training_iteration": iterations}, verbose=1),
        tune_config=tune.TuneConfig(metric="env_runners/episode_return_mean", mode="max"),
    )
    return tuner.fit().get_best_result()


if __name__ == "__main__":
    best = search()
    print(best.config["lr"], best.metrics["env_runners"]["episode_return_mean"])
