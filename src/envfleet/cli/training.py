"""Commands for training and its results: `envfleet train`, `envfleet plot`, `envfleet export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envfleet.cli.console import check_output, make_console, progress_bar, show_file
from envfleet.cli.options import Backend, Device, EnvArgs, MaxMinutes, NumEnvs, Quiet, Threads, Trust, Workers
from envfleet.cli.parsing import parse_env_kwargs, refuse_given
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.training.config import RunConfig


def train(  # noqa: PLR0913 (one parameter per option)
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A JSON file, or the name of a configuration that comes with envfleet, such as quickstart; without "
            "CONFIG the names are listed.",
        ),
    ] = None,
    *,
    env: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Train in this environment with the agent's defaults, instead of CONFIG."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="With --env: PPO, SAC, TD3, DDDQN, or module:Name of your class.", show_default="PPO"),
    ] = None,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    num_envs: NumEnvs = None,
    engine: Annotated[
        str | None, typer.Option(help="Engine of a game; hockey has compiled and box2d.", show_default="the first")
    ] = None,
    backend: Backend = None,
    workers: Workers = None,
    device: Device = None,
    threads: Threads = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, instead of the configuration's.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for runs.", show_default="results/runs")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; by default made of agent, time and configuration.")
    ] = None,
    max_minutes: MaxMinutes = None,
    max_transitions: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many transitions; with --env 100,000 if not given.")
    ] = None,
    stop_at_return: Annotated[
        float | None, typer.Option(help="Stop once the mean return of the last 100 episodes is at least this.")
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(help="What to do when a sub-environment fails: raise or restart.", show_default="raise"),
    ] = None,
    max_restarts: Annotated[
        int | None,
        typer.Option(min=0, help="Failures allowed within an hour with --on-failure restart.", show_default="10"),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Begin with the weights of this run, or of a checkpoint's file.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue the run in this folder from its last checkpoint.")
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print CONFIG with all defaults filled in, the agent's too, and exit."),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train an agent as CONFIG says, or in an environment; Ctrl-C saves the run, --resume continues it."""
    from envfleet import training
    from envfleet.training.config import change_config, find_config

    limits: dict[str, Any] = {"max_minutes": max_minutes, "max_transitions": max_transitions, "verbose": not quiet}
    limits["stop_at_return"] = stop_at_return
    if resume is not None:
        passed = {
            "CONFIG": config, "--env": env, "--env-arg": env_args or None, "--agent": agent, "--num-envs": num_envs,
            "--engine": engine, "--backend": backend, "--workers": workers, "--seed": seed, "--out": out,
            "--name": name, "--on-failure": on_failure, "--weights": weights, "--print-config": print_config or None,
        }  # fmt: skip
        refuse_given(passed, "--resume continues with the settings of the run")
        set_threads(threads)
        result = training.resume(resume, device=device, max_restarts=max_restarts, **limits)
    else:
        path = None if config is None else find_config(config)
        read = _read_config(path, env, env_args, agent, max_transitions)
        if weights is not None:
            read = change_config(read, {"agent.checkpoint_path": str(weights)}, "--weights")
        if print_config:
            _print_config(read)
            return
        subject = read if path is None or weights is not None else path  # errors name the file
        set_threads(threads)
        options: dict[str, Any] = {
            "num_envs": num_envs, "engine": engine, "backend": backend, "workers": workers, "device": device,
            "seed": seed, "on_failure": on_failure, "max_restarts": max_restarts,
            "base_output_dir": out, "run_name": name,
        }  # fmt: skip
        options = {key: value for key, value in options.items() if value is not None}
        result = training.train(subject, **limits, **options)
    from envfleet.cli.reports import show_result

    show_result(result, make_console())
    if result.reason == "interrupted":
        raise typer.Exit(130)


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the figures; needed for several runs.", show_default="plots in the only run"
        ),
    ] = None,
) -> None:
    """Plot a run as it is now, or several runs in the same figures."""
    from envfleet.training.records import plot_runs

    with progress_bar(f"plots of {len(runs)} runs"):
        files = plot_runs(runs, out)
    typer.echo("\n".join(map(str, files)) or "There is nothing to draw yet.")


def export(
    agent: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or the file of a checkpoint.")],
    *,
    to: Annotated[
        Path, typer.Option(metavar="FILE", help="policy.onnx, or policy.pt for TorchScript.", callback=check_output)
    ],
    trust: Trust = False,
) -> None:
    """Write the policy of a trained agent to a file that runs without envfleet."""
    from envfleet.agents import export_policy, load_agent

    with progress_bar(str(to)):
        export_policy(load_agent(agent, trust=trust), to)
    show_file("Policy", to)


def set_threads(count: int) -> None:
    """Set the number of threads for networks on a CPU; more than one slows down small networks and other programs."""
    import torch

    torch.set_num_threads(count)


def _read_config(
    path: Path | None, env: str | None, env_args: list[str], agent: str | None, transitions: int | None
) -> RunConfig:
    from envfleet.training.config import read_config, shipped_names  # imports no torch

    if path is not None:
        passed = {"--env": env, "--env-arg": env_args or None, "--agent": agent}
        refuse_given(passed, "CONFIG sets the environment and the agent")
        return read_config(path)
    if env is None:
        raise InvalidArgument(
            f"no CONFIG is given: pass one of {', '.join(shipped_names())}, a JSON file, --env ID, or --resume RUN"
        )
    from envfleet.training.plan import config_for

    return config_for(env, agent or "PPO", transitions or 100_000, parse_env_kwargs(env_args))


def _print_config(config: RunConfig) -> None:
    import dataclasses
    import json

    from envfleet.training.plan import resolve

    plan = resolve(config)
    content, values = plan.config.model_dump(mode="json"), dataclasses.asdict(plan.agent_config)
    content["hyperparameters"] = {name: values.pop(name, None) for name in content["hyperparameters"]}
    values.pop("warmup", None)  # which is training.warmup_steps
    content["agent"]["hyperparameters"] = values
    typer.echo(json.dumps(content, indent=2))
