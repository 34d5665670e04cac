"""The registered environments, and which of them are kernels."""

from __future__ import annotations

import itertools

import gymnasium
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from rich.markup import escape

from envfleet.kernels.registration import is_kernel


def catalogue(pattern: str = "") -> list[EnvSpec]:
    """List the registered environments of which a single one can be built.

    Args:
        pattern: Only ids that contain it, upper or lower case.

    Returns:
        By namespace, Gymnasium's own first, in the order of registration. Nothing of the environments is imported.
    """
    specs = sorted(gymnasium.registry.values(), key=lambda spec: spec.namespace or "")
    return [spec for spec in specs if spec.entry_point is not None and pattern.lower() in spec.id.lower()]


def show_catalogue(specs: list[EnvSpec], console: Console) -> None:
    """Print the list by namespace."""
    for namespace, members in itertools.groupby(specs, key=lambda spec: spec.namespace):
        console.print(f"[bold]{escape(namespace or 'without a namespace')}[/bold]")
        for spec in members:
            console.print(f"  {escape(spec.id)}" + (" [dim]kernel[/dim]" if is_kernel(spec) else ""), soft_wrap=True)
    console.print()
    console.print(f"{len(specs)} environments: envfleet.make(ID, num_envs=8).")
    if any(map(is_kernel, specs)):
        console.print('Kernels are compiled, a million of them step as one: backend="kernel".')
