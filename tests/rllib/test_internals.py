"""RLlib's internals that packing relies on are where the installed release of Ray has them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import ray

from envfleet.rllib import internals

PACKAGE = Path(internals.__file__).parent
DOCUMENTED = {
    "Algorithm", "AlgorithmConfig", "Columns", "ConnectorV2", "DEFAULT_MODULE_ID", "EnvContext", "GetActions",
    "NumpyToTensor", "PPO", "PPOConfig", "RLlibCallback", "SingleAgentEpisode", "TensorToNumpy", "register_env",
}  # fmt: skip


def missing_members(members: dict[type, dict[str, str]]) -> list[str]:
    """Return the names that classes neither define nor assign, each with its use."""
    missing = []
    for owner, uses in members.items():
        sources = "".join(inspect.getsource(one) for one in inspect.getmro(owner) if one.__module__.startswith("ray."))
        missing += [
            f"{owner.__module__}.{owner.__name__}.{name} ({use})"
            for name, use in uses.items()
            if not hasattr(owner, name) and not re.search(rf"\bself\.{name}\b", sources)
        ]
    return missing


def test_every_member_is_there() -> None:
    missing = missing_members(internals.MEMBERS)
    assert not missing, (
        f"Ray {ray.__version__} moved or removed what envfleet.rllib uses:\n  " + "\n  ".join(missing) + "\n"
        "Adapt the module that uses it and MEMBERS in envfleet/rllib/internals.py, or lower the bound in pyproject.toml"
    )


def test_a_member_that_moved_is_named() -> None:
    owner: Any = internals.PPOTorchLearner
    (missing,) = missing_members({owner: {"_gone_since": "an example", "_params": "kept"}})
    assert missing.endswith("PPOTorchLearner._gone_since (an example)")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.stem)
def test_internals_are_imported_in_one_module(file: Path) -> None:
    imported = {
        name.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("ray.rllib", "ray.tune"))
        for name in node.names
    }
    assert file.name == "internals.py" or imported <= DOCUMENTED
