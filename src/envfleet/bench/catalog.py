"""List of the registered environments, with kernels marked."""

from __future__ import annotations

import itertools

import gymnasium
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from rich.markup import escape

from envfleet.kernels.registration import is_kernel


def catalog(pattern: str = "") -> list[EnvSpec]:
    """Return the registered environments that `gymnasium.make` can build.

    Args:
        pattern: Text that the ids must contain; case does not matter.

    Returns:
        Specifications by namespace, Gymnasium's own first, in the order of registration. No environment is imported.
    """
    specs = sorted(gymnasium.registry.values(), key=lambda spec: spec.namespace or "")
    return [spec for spec in specs if spec.entry_point is not None and pattern.lower() in spec.id.lower()]


def show_catalog(specs: list[EnvSpec], console: Console) -> None:
    """Print the list by namespace."""
    for namespace, members in itertools.groupby(specs, key=lambda spec: spec.namespace):
        console.print(f"[bold]{escape(namespace or 'without a namespace')}[/bold]")
        for spec in members:
            console.print(f"  {escape(spec.id)}" + (" [dim]kernel[/dim]" if is_kernel(spec) else ""), soft_wrap=True)
    console.print()
    console.print(f"{len(specs)} environments: envfleet.make(ID, num_envs=8).")
    if any(map(is_kernel, specs)):
        console.print('Kernels are compiled and step by the million: backend="kernel".')
