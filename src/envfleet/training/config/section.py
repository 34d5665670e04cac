"""What all parts of a configuration have in common: frozen, and no key goes unnoticed."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A JSON object of a configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        unknown = [name for name in data if name not in cls.model_fields] if isinstance(data, dict) else []
        if unknown:
            raise PydanticCustomError(
                "unknown_key",
                "{problem}",
                {"key": unknown[0], "problem": describe_unknown(unknown[0], list(cls.model_fields))},
            )
        return data


def describe_unknown(name: str, accepted: list[str]) -> str:
    """Say that a key is not known, which ones are, and which one may be meant.

    >>> describe_unknown("episode", ["name", "episodes"])
    'is an unknown key, accepted are name, episodes: did you mean episodes?'
    """
    meant = difflib.get_close_matches(name, accepted, n=1, cutoff=0.6)
    advice = f"did you mean {meant[0]}?" if meant else "check the spelling, or leave it out"
    return f"is an unknown key, accepted are {', '.join(accepted)}: {advice}"
