"""JSON schema of configuration files, for editors; includes the modes and shaping terms of the known games."""

from __future__ import annotations

from typing import Any

from envfleet.envs.games import known_games
from envfleet.training.config import RunConfig


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of configuration files, with a description of each key."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["$schema"] = {"type": "string"}
    sections, games = schema["$defs"], known_games()
    examples = [mode for game in games for mode in game.modes]
    for section in ("Environment", "WeightedMode"):
        sections[section]["properties"]["mode"]["examples"] = examples
    moved = {"deprecated": True, "description": "Moved into kwargs.", "type": "boolean"}
    sections["Environment"]["properties"]["keep_mode"] = moved
    sections["RewardShaping"]["properties"] |= {
        key: {"default": weight, "description": f"{when} weight of {purpose} ({game.name})", "type": "number"}
        for game in games
        for term, (_, initial, final, purpose) in game.terms.items()
        for key, when, weight in ((f"{term}_START", "Initial", initial), (f"{term}_FINAL", "Final", final))
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
