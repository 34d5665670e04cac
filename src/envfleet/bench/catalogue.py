"""The registered environments that can be built, and so vectorized, here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import gymnasium
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from envfleet.bench.report import make_table
from envfleet.bench.workloads import missing_module, requirement_of
from envfleet.kernels.registration import is_kernel

_OWN_NAMESPACE = "Gymnasium's own"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One registered environment.

    Attributes:
        env_id: Its id.
        namespace: The part before the slash, or a name for those without one.
        problem: Why it cannot be built here, or `None`. Only what shows without importing it.
        note: What is worth knowing of one that can be built; empty if there is nothing.
    """

    env_id: str
    namespace: str
    problem: str | None
    note: str


def catalogue(pattern: str = "") -> list[Entry]:
    """List the registered environments.

    Args:
        pattern: Only ids that contain it, upper or lower case.

    Returns:
        By namespace, in the order of registration. Nothing of the environments is imported.
    """
    newest = _newest_versions()
    return [
        Entry(env_id, spec.namespace or _OWN_NAMESPACE, _problem(spec), _note(spec, newest))
        for env_id, spec in sorted(gymnasium.registry.items(), key=lambda item: item[1].namespace is not None)
        if pattern.lower() in env_id.lower()
    ]


def _newest_versions() -> dict[tuple[str | None, str], int]:
    newest: dict[tuple[str | None, str], int] = {}
    for spec in gymnasium.registry.values():
        key = (spec.namespace, spec.name)
        newest[key] = max(newest.get(key, 0), spec.version or 0)
    return newest


def _problem(spec: EnvSpec) -> str | None:
    if spec.entry_point is None:
        return "has only a vector environment of its own"
    # Gymnasium keeps ids of environments that moved away; their entry point does nothing but raise.
    name = getattr(spec.entry_point, "__name__", "")
    if name == "_raise_mujoco_py_error":
        return "moved to gymnasium-robotics; use v4 or v5"
    if name == "_raise_shimmy_error":
        return "needs shimmy and the id of a Gym environment"
    missing = missing_module(spec)
    return None if missing is None else f"needs {missing}: pip install {requirement_of(spec)!r}"


def _note(spec: EnvSpec, newest: dict[tuple[str | None, str], int]) -> str:
    notes = ["kernel"] if is_kernel(spec) else []
    latest = newest[spec.namespace, spec.name]
    if spec.version is not None and spec.version < latest:
        notes.append(f"old, v{latest} is current")
    if spec.max_episode_steps is None:
        notes.append("no registered time limit")
    return ", ".join(notes)


def show_catalogue(entries: Sequence[Entry], console: Console) -> None:
    """Print the list by namespace: what can be built, then the others under what keeps them from it."""
    for namespace in dict.fromkeys(entry.namespace for entry in entries):
        members = [entry for entry in entries if entry.namespace == namespace]
        table = make_table(escape(namespace))
        table.show_header = False
        for entry in members:
            if entry.problem is None:
                table.add_row("[green]✓[/green]", escape(entry.env_id), f"[dim]{escape(entry.note)}[/dim]")
        if table.row_count:
            console.print(table)
        else:
            console.print(f"[bold italic]{escape(namespace)}[/bold italic]")
        for problem in dict.fromkeys(entry.problem for entry in members if entry.problem is not None):
            ids = ", ".join(entry.env_id for entry in members if entry.problem == problem)
            console.print(f"[red]✗[/red]  {escape(problem)}")
            console.print(Padding(f"[dim]{escape(ids)}[/dim]", (0, 0, 0, 3)))
        console.print()
    buildable = sum(entry.problem is None for entry in entries)
    console.print(f"{buildable} of {len(entries)} can be vectorized here: envfleet.make(ID, num_envs=8).")
    kernels = sum(is_kernel(gymnasium.spec(entry.env_id)) for entry in entries if entry.problem is None)
    if kernels:
        console.print(f'{kernels} are kernels, of which compiled code steps a million: backend="kernel".')
