"""The commands: parse, call, print. What they call is imported when they run, so that `--help` is quick."""

from __future__ import annotations

import faulthandler
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import envfleet
from envfleet.cli import rllib
from envfleet.cli.console import Commands, JsonFile, check_output, make_console, progress_bar, write_figures
from envfleet.cli.demo import demo
from envfleet.cli.options import EnvArgs
from envfleet.cli.parsing import choose_names, parse_env_kwargs, split_counts, split_names
from envfleet.cli.playing import evaluate, play, tournament, watch
from envfleet.cli.remote import close, status, submit
from envfleet.cli.searching import search
from envfleet.cli.serving import serve_app, token_app
from envfleet.cli.training import export, plot, train
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.bench.workloads import Workload

app = typer.Typer(
    name="envfleet",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Env = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="A Gymnasium id (CartPole-v1, mypackage:MyEnv-v0), a callable (mypackage.envs:make_env), or a built-in "
        "workload (cheap, lunar, medium, image, dict, infos, hockey, halfcheetah, breakout, minigrid).",
        show_default=False,
    ),
]


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"envfleet {envfleet.__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Step many Gymnasium environments as one: measure, train, play, host them for others."""


@app.command()
def bench(  # noqa: PLR0913 (one parameter per option)
    env: Env,
    *,
    num_envs: Annotated[
        str, typer.Option("--num-envs", "-n", help="Number of sub-environments; several with commas.")
    ] = "8",
    workers: Annotated[
        str,
        typer.Option(
            "--workers", "-w", help="Number of workers; several with commas; by default chosen by each contender."
        ),
    ] = "",
    backends: Annotated[
        str,
        typer.Option(
            help="Backends of envfleet: auto, serial, thread, process, ray, kernel (or the compiled twin); all; none."
        ),
    ] = "default",
    peers: Annotated[
        str, typer.Option(help="loop, gymnasium-sync, gymnasium-async, sb3-dummy, sb3-subproc, envpool; all; none.")
    ] = "default",
    seconds: Annotated[
        float | None,
        typer.Option(min=0.01, help="Duration of one measurement; by default at most 0.5, and half a minute for all."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements per contender.")] = 3,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=check_output, help="Also draw a plot: .png, .pdf or .svg.")
    ] = None,
) -> None:
    """Measure fleets of ENV against the usual ways to step many environments."""
    from envfleet.bench.contenders import BACKEND_NAMES, CONTENDERS, DEFAULT_BACKENDS, PEER_NAMES
    from envfleet.bench.plot import check_plot, plot_report
    from envfleet.bench.report import show_report
    from envfleet.bench.results import figures_json
    from envfleet.bench.rounds import Contest, run_contests, share_of_time

    names = choose_names(peers, "--peers", PEER_NAMES, PEER_NAMES)
    names += [f"envfleet-{name}" for name in choose_names(backends, "--backends", BACKEND_NAMES, DEFAULT_BACKENDS)]
    if not names:
        raise InvalidArgument("nothing to measure: select contenders with `--backends` or `--peers`")
    if plot is not None:
        check_plot(plot)
    workload, sizes = _resolve(env, env_args), split_counts(num_envs, "--num-envs")
    worker_counts = split_counts(workers, "--workers") if workers else [None]
    contenders = [CONTENDERS[name] for name in names]
    contests = [Contest(workload, size, count, contenders) for count in worker_counts for size in sizes]
    with progress_bar() as show:
        report = run_contests(contests, seconds or share_of_time(contests, rounds), rounds, show)
    console = make_console()
    show_report(report, console)
    write_figures(json_file, figures_json("bench", report))
    if plot is not None:
        plot_report(report, plot)
        console.print(f"[dim]Plot: {plot}[/dim]", soft_wrap=True)
    if not any(run.measured for run in report.runs):
        raise typer.Exit(1)


@app.command()
def tune(
    env: Env,
    *,
    num_envs: Annotated[
        int | None, typer.Option("--num-envs", "-n", min=1, help="Sub-environments; searched over if not given.")
    ] = None,
    backends: Annotated[str, typer.Option(help="Backends to try: serial, thread, process.")] = "serial,thread,process",
    seconds: Annotated[float, typer.Option(min=1.0, help="Time limit of the search.")] = 30.0,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    json_file: JsonFile = None,
) -> None:
    """Find the fastest fleet for ENV: backend, workers, sub-environments."""
    from envfleet.bench.results import figures_json
    from envfleet.bench.tune import search_space, show_tuning
    from envfleet.bench.tune import tune as run_tune
    from envfleet.machine import whole_cores

    candidates = search_space(whole_cores(), num_envs, split_names(backends))
    workload = _resolve(env, env_args)
    with progress_bar() as show:
        tuning = run_tune(workload, candidates, seconds, show)
    show_tuning(tuning, make_console())
    write_figures(json_file, figures_json("tune", tuning))


@app.command()
def doctor(
    env: Env,
    *,
    num_envs: Annotated[int, typer.Option("--num-envs", "-n", min=1, help="Sub-environments of your fleet.")] = 8,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, help="Workers of your fleet; the usable cores if not given.")
    ] = None,
    policy_latency_ms: Annotated[
        float, typer.Option(min=0.0, help="Time your policy takes for one batch of actions.", show_default=False)
    ] = 0.0,
    seconds: Annotated[float, typer.Option(min=0.05, help="About the length of one measurement.")] = 0.5,
    env_args: EnvArgs = [],  # noqa: B006 (typer copies it)
    json_file: JsonFile = None,
) -> None:
    """Report what limits the speed of a fleet of ENV, and what to change."""
    from envfleet.bench.doctor import examine
    from envfleet.bench.findings import diagnose, show_diagnosis
    from envfleet.bench.results import figures_json

    workload = _resolve(env, env_args)
    with progress_bar() as show:
        facts = examine(workload, num_envs, workers, policy_s=policy_latency_ms / 1e3, seconds=seconds, progress=show)
    diagnosis = diagnose(facts)
    show_diagnosis(diagnosis, make_console())
    write_figures(json_file, figures_json("doctor", diagnosis))


@app.command()
def envs(
    pattern: Annotated[str, typer.Argument(help="Only ids that contain this.", show_default=False)] = "",
    *,
    modules: Annotated[
        list[str], typer.Option("--import", "-i", metavar="MODULE", help="Import this first; it registers its own ids.")
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """List the registered environments, by namespace; kernels are marked."""
    from envfleet.bench.catalog import catalog, show_catalog

    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InvalidArgument(f"--import {name}: it cannot be imported ({error}). Install it first.") from error
    specs = catalog(pattern)
    if not specs:
        raise InvalidArgument(
            f"no registered id contains {pattern!r}. Environments of other packages register when their module is "
            "imported: envfleet envs --import ale_py."
        )
    show_catalog(specs, make_console())


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The file that an error message names.")
    ],
) -> None:
    """Run a failed episode again in this process; exit code 0 if it fails again, 1 if it does not."""
    from envfleet.workers.replay import replay as run_replay

    if not faulthandler.is_enabled():
        faulthandler.enable(file=2)  # should native code crash again: where
    report = run_replay(str(file), typer.echo)
    typer.echo(report.text)
    if not report.reproduced:
        raise typer.Exit(1)


for _command in (train, plot, export, search, evaluate, tournament, watch, play, demo, status, close, submit):
    app.command()(_command)
app.add_typer(serve_app)
app.add_typer(token_app)
app.add_typer(rllib.app)


def _resolve(env: str, env_args: list[str]) -> Workload:
    """Find the workload that is named on the command line, and see that it can be built."""
    from envfleet.bench.rounds import require_buildable
    from envfleet.bench.workloads import resolve

    with progress_bar(f"building {env}"):
        workload = resolve(env, parse_env_kwargs(env_args))
        require_buildable(workload)
    return workload
