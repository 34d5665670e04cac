"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

EnvArgs = Annotated[
    list[str], typer.Option("--env-arg", "-a", metavar="NAME=VALUE", help="Argument of the environment; repeatable.")
]
NumEnvs = Annotated[
    int | None, typer.Option("--num-envs", "-n", min=1, help="Number of sub-environments.", show_default="1")
]
Backend = Annotated[
    str | None,
    typer.Option(
        help="Backend of the fleet: auto, serial, thread, process, ray, kernel, native.", show_default="chosen"
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, help="Number of worker threads or processes.", show_default="chosen"),
]
Device = Annotated[str | None, typer.Option(help="Device of the networks: cpu, cuda, cuda:1.", show_default="cpu")]
Threads = Annotated[int, typer.Option(min=1, help="Threads for networks on a CPU.")]
MaxMinutes = Annotated[float | None, typer.Option(help="Stop a run after this many minutes.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the result.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Execute code that a checkpoint names: your own agent class or network.")
]
