"""Problems of a configuration, as the one error message that rejects it.

A line names the key by its path in the file, shows its value, says what is accepted and what to do. Structure and types
are checked by `config.parse_config`; what depends on a game, an agent or a file by `plan.resolve`. Each reports all
problems it finds together.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from envfleet.errors import InvalidArgument
from envfleet.registry import RANDOM
from envfleet.training.phases import NOBODY, SCRIPT, TAGS, UNKNOWN


class Problems:
    """Problems found in a configuration.

    Args:
        source: File name or description of the configuration; errors begin with it.
    """

    def __init__(self, source: str) -> None:
        self._source, self._lines = source, list[str]()

    def add(self, line: str) -> None:
        """Add a problem."""
        self._lines.append(line)

    def add_invalid(self, error: ValidationError) -> None:
        """Add all problems of a pydantic error."""
        self._lines += [_describe(problem) for problem in error.errors(include_url=False)]

    def __bool__(self) -> bool:
        return bool(self._lines)

    def error(self) -> InvalidArgument:
        """Return the error that lists all problems."""
        if len(self._lines) == 1:
            return InvalidArgument(f"{self._source}: {self._lines[0]}")
        listed = "".join(f"\n- {line}" for line in self._lines)
        return InvalidArgument(f"{self._source} has {len(self._lines)} mistakes:{listed}")


def describe_hyperparameter(problem: Mapping[str, Any]) -> str:
    """Return the line of a pydantic problem with a hyperparameter."""
    key = "".join(f".{part} is {problem['input']!r}" for part in problem["loc"][:1])
    return f"agent.hyperparameters{key}: {_in_json_terms(problem['msg'])}"


def _describe(problem: Mapping[str, Any]) -> str:
    keys = [key for key in problem["loc"] if key not in TAGS]  # pydantic inserts the tag of a union
    context, kind = problem.get("ctx", {}), problem["type"]
    if kind == UNKNOWN:
        return f"{_path(keys)} {context['problem']}"
    if kind == "missing":
        return f"{_path(keys)} is missing: add it"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        value = repr(context["tag"]) if "tag" in context else "missing"
        kinds = ", ".join(map(repr, (NOBODY, RANDOM, *TAGS[1:])))
        return (
            f"{_path([*keys, 'type'])} is {value}, expected one of {kinds}, '{SCRIPT}NAME' for a scripted player of "
            "the game, or your own class, 'my_package:MyOpponent'"
        )
    if kind == "value_error":
        return f"{_path(keys) or 'it'} {context['error']}"
    return f"{_path(keys)} is {reprlib.repr(problem['input'])}: {_in_json_terms(problem['msg'])}"


def _in_json_terms(text: str) -> str:
    """Replace Python's terms in a message of pydantic by those of JSON."""
    text = re.sub(r"(Input|List|String) should (be|have|match)", "expected", text.removeprefix("Value error, "))
    text = re.sub(r" or (object to|instance of) .*| after validation.*", "", text).replace("tuple", "list")
    return text.replace("dictionary", "object").replace("pattern '.:.'", "'module:name'")


def _path(keys: Sequence[int | str]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
