"""The commands that train and what comes of it: `envfleet train`, `envfleet plot`, `envfleet export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from envfleet.cli.console import check_output, make_console, readable_errors
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.training.config import RunConfig

_OF_THE_RUN = ("env", "agent", "num_envs", "engine", "backend", "workers", "seed", "on_failure", "out", "name")


def register(app: typer.Typer) -> None:
    """Give the command line these commands."""
    app.command()(train)
    app.command()(plot)
    app.command()(export)


def train(  # noqa: PLR0913 (one parameter per option)
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A JSON file, or the name of a configuration that comes with envfleet, such as quickstart; without "
            "CONFIG the names are listed.",
            show_default=False,
        ),
    ] = None,
    *,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Train in this environment, with the agent's defaults, in place of CONFIG.",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="With --env: PPO, SAC, TD3, DDDQN, or module:Name of your own.", show_default="PPO"),
    ] = None,
    num_envs: Annotated[
        int | None, typer.Option("--num-envs", "-n", min=1, help="Number of sub-environments; 1 if not given.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine, for a game that has several: hockey has compiled and box2d.", show_default="the first"
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="Backend of the fleet: auto, serial, thread, process, ray, kernel.", show_default="chosen"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help="Number of worker threads or processes.", show_default="chosen"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device of the networks: cpu, cuda, cuda:1.", show_default="cpu")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads for networks on a CPU.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, in place of the configuration's.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for runs.", show_default="results/runs")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; by default made of agent, time and configuration.")
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    max_transitions: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many transitions; with --env 100,000 if not given.")
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(help="What to do when a sub-environment fails: raise or restart.", show_default="raise"),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue the run in this folder from its last checkpoint.")
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print CONFIG with all defaults filled in, the agent's too, and exit."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
) -> None:
    """Train an agent as CONFIG says, or in an environment; Ctrl-C saves the run, --resume continues it."""
    with readable_errors():
        given = {
            "env": env, "agent": agent, "num_envs": num_envs, "engine": engine, "backend": backend, "workers": workers,
            "device": device,
            "seed": seed, "out": out, "name": name, "max_minutes": max_minutes, "max_transitions": max_transitions,
            "on_failure": on_failure,
        }  # fmt: skip
        options = {option: value for option, value in given.items() if value is not None}
        if resume is not None:
            result = _resume(config, resume, {**options, "verbose": not quiet}, threads)
        else:
            read = _configuration(config, env, agent, max_transitions)
            if print_config:
                _print_config(read)
                return
            options = {option: value for option, value in options.items() if option not in ("env", "agent")}
            result = _train(read, {**options, "verbose": not quiet}, threads)
        from envfleet.cli.run_report import show_result

        show_result(result, make_console())
        if result.reason == "interrupted":
            raise typer.Exit(130)


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.", show_default=False)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the figures; the run's own if there is one run.", show_default="plots"
        ),
    ] = None,
) -> None:
    """Plot a run as it is now, or several runs in the same figures."""
    with readable_errors():
        from envfleet.training.records import plot_runs

        console = make_console()
        files = plot_runs(runs, out)
        for file in files:
            console.print(escape(str(file)), soft_wrap=True)
        if not files:
            console.print("There is nothing to draw yet.")


def export(
    agent: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or the file of a checkpoint.", show_default=False)
    ],
    *,
    to: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="policy.onnx, or policy.pt for TorchScript.", callback=check_output, show_default=False
        ),
    ],
) -> None:
    """Write the policy of a trained agent to a file that runs without envfleet."""
    with readable_errors():
        from envfleet.agents import export_policy, load_agent

        export_policy(load_agent(agent), to)
        make_console().print(f"[dim]Policy: {escape(str(to))}[/dim]", soft_wrap=True)


def set_threads(count: int) -> None:
    """Set the number of threads for networks on a CPU. More than one slows small networks, and other programs, down."""
    import torch

    torch.set_num_threads(count)


def _configuration(config: str | None, env: str | None, agent: str | None, transitions: int | None) -> RunConfig:
    from envfleet.training.config import config_for, read_config, shipped_names  # before torch is imported

    if config is not None:
        if env is not None or agent is not None:
            raise InvalidArgument(
                f"CONFIG is {config!r} and --env or --agent is given, but a configuration names both: leave one out"
            )
        return read_config(config)
    if env is None:
        raise InvalidArgument(
            f"no CONFIG is given: pass one of {', '.join(shipped_names())}, a JSON file, --env ID, or --resume RUN"
        )
    return config_for(env, agent or "PPO", transitions or 100_000)


def _train(config: RunConfig, options: dict[str, Any], threads: int) -> Any:
    if "out" in options:
        options["base_output_dir"] = options.pop("out")
    if "name" in options:
        options["run_name"] = options.pop("name")
    from envfleet.training import train as run

    set_threads(threads)
    return run(config, **options)


def _resume(config: str | None, run: Path, options: dict[str, Any], threads: int) -> Any:
    if config is not None:
        raise InvalidArgument(f"CONFIG is {config!r}, but {run} goes on with its own: leave CONFIG out")
    fixed = [f"--{option.replace('_', '-')}" for option in _OF_THE_RUN if option in options]
    if fixed:
        raise InvalidArgument(
            f"{', '.join(fixed)} with --resume, but a run goes on with what it began with: leave it out"
        )
    from envfleet.training import resume

    set_threads(threads)
    return resume(run, **options)


def _print_config(config: RunConfig) -> None:
    import dataclasses
    import json

    from envfleet.training.config import agent_config

    content = config.model_dump(mode="json")
    content["agent"]["hyperparameters"] = {
        name: value
        for name, value in dataclasses.asdict(agent_config(config)).items()
        if name not in ("warmup", "learning_rate", "batch_size")
    }
    agent = dataclasses.asdict(agent_config(config))
    content["hyperparameters"] = {name: agent.get(name) for name in content["hyperparameters"]}
    typer.echo(json.dumps(content, indent=2))
