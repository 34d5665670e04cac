"""The commands of RLlib: `envfleet rllib train`, `envfleet rllib compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from envfleet.cli.console import progress_bar, show_file
from envfleet.cli.options import Threads
from envfleet.cli.parsing import choose_names, split_counts
from envfleet.cli.training import set_threads
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.rllib.experiments.training import Iteration

app = typer.Typer(
    name="rllib", help="Train with Ray's RLlib, and compare its ways to use a fleet.", no_args_is_help=True
)

EnvId = Annotated[str, typer.Option("--env", help="A Gymnasium id.")]
BackendName = Annotated[str, typer.Option(help="Of the fleet: auto, serial, thread, process, kernel, native.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over each batch.")]
Seed = Annotated[int, typer.Option(min=0, help="Of environments, networks and draws.")]
_PARTS = ("iteration", "sampling", "connectors", "learner")
_SPEEDS = ("samples/s", *_PARTS)


@app.command()
def train(  # noqa: PLR0913 (one parameter per option)
    *,
    env: EnvId = "envfleet/Pendulum-v1",
    way: Annotated[Literal["packed_vec", "vec"], typer.Option(help="How RLlib gets its samples.")] = "packed_vec",
    backend: BackendName = "auto",
    num_envs: Annotated[int, typer.Option("--num-envs", "-n", min=1, help="Sub-environments per EnvRunner.")] = 64,
    num_env_runners: Annotated[int, typer.Option(min=0, help="Processes that sample; 0: this one.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per iteration.")] = 8192,
    minibatch_size: Annotated[int, typer.Option(min=1, help="Samples per update.")] = 512,
    epochs: Epochs = 10,
    learning_rate: Annotated[float, typer.Option("--lr", help="Of Adam.")] = 1e-3,
    iterations: Annotated[int, typer.Option("--iterations", "-i", min=1, help="How long.")] = 30,
    episodes: Annotated[int, typer.Option(min=1, help="To evaluate with the best actions.")] = 20,
    seed: Seed = 0,
    threads: Threads = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the GIF.")] = Path("results/rllib"),
) -> None:
    """Train PPO, evaluate it with its best actions, and write a GIF of them."""
    from envfleet.rllib.experiments.evaluation import evaluate, record
    from envfleet.rllib.experiments.training import TrainingPlan, build, quiet_ray
    from envfleet.rllib.experiments.training import train as run_training

    plan = TrainingPlan(
        env=_registered(env), way=way, backend=backend, num_envs=num_envs, num_env_runners=num_env_runners,
        batch_size=batch_size, minibatch_size=minibatch_size, num_epochs=epochs, learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    set_threads(threads)
    typer.echo(f"{way} on {env}: {num_envs:,} sub-environments, {batch_size:,} samples")
    typer.echo(_columns("", "return", "loss", *_SPEEDS))
    with quiet_ray(), build(plan) as algorithm:
        for iteration in run_training(algorithm, plan, iterations):
            episode_return = "–" if iteration.episode_return is None else f"{iteration.episode_return:.1f}"
            typer.echo(_columns(iteration.number, episode_return, f"{iteration.loss:.3g}", *_speeds(iteration)))
        returns = evaluate(algorithm, env, episodes, seed=seed + 1_000_000)
        typer.echo(f"best actions, {episodes} episodes: return {returns.mean():.1f} ± {returns.std():.1f}")
        file = out / f"{plan.way}.gif"
        with progress_bar(str(file)):
            record(algorithm, env, file, seed=seed + 1_000_000)
    show_file("GIF", file)


@app.command()
def compare(  # noqa: PLR0913 (one parameter per option)
    *,
    env: EnvId = "envfleet/Pendulum-v1",
    backend: BackendName = "auto",
    ways: Annotated[str, typer.Option(help="vec, packed_vec; all.")] = "all",
    num_envs: Annotated[str, typer.Option("--num-envs", "-n", help="With commas.")] = "10,100,1000,5000",
    batch_sizes: Annotated[str, typer.Option("--batch-sizes", "-b", help="In samples, with commas.")] = "10000,100000",
    epochs: Epochs = 5,
    iterations: Annotated[int, typer.Option("--iterations", "-i", min=1, help="To measure, after a first.")] = 2,
    threads: Threads = 1,
    policies: Annotated[bool, typer.Option("--policies", help="Keep the trained policies, as checkpoints.")] = False,
    data: Annotated[str, typer.Option(metavar="NAME", help="Name of the file of figures.")] = "compare.json",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for figures and plots.")] = Path("results/rllib"),
) -> None:
    """Measure vec and packed_vec over sub-environments × batch sizes; one minibatch per epoch."""
    from envfleet.rllib.experiments.comparison import grid, sweep
    from envfleet.rllib.experiments.training import WAYS, TrainingPlan, quiet_ray

    chosen = choose_names(ways, "--ways", WAYS, WAYS)
    counts, sizes = split_counts(num_envs, "--num-envs"), split_counts(batch_sizes, "--batch-sizes")
    plans = grid(TrainingPlan(env=_registered(env), backend=backend, num_epochs=epochs), chosen, counts, sizes)
    set_threads(threads)
    for size in sizes:
        if many := [f"{count:,}" for count in counts if count > size]:
            typer.echo(f"left out: batches of {size:,} with {', '.join(many)} sub-environments, less than a step")
    with quiet_ray():
        sweep(plans, iterations, out, file_name=data, keeps_policies=policies, show=typer.echo)
    for name in (data, "throughput.png", "connectors.png"):
        show_file("Figures", out / name)


def _registered(env: str) -> str:
    """Return the id of a known environment; RLlib reports unknown ones late and in many lines."""
    import gymnasium

    try:
        gymnasium.spec(env)
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidArgument(f"--env is {env!r}, which is not registered: `envfleet envs` lists what is") from error
    return env


def _columns(*cells: object) -> str:
    return "".join(f"{cell!s:>12}" for cell in cells)


def _speeds(iteration: Iteration) -> list[str]:
    return [f"{iteration.samples_per_s:,.0f}", *(f"{iteration.seconds[part]:.2f} s" for part in _PARTS)]
