"""Keyword arguments that nobody takes: neither `make` nor the environment that it is to build."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator

from envfleet.errors import InvalidArgument
from envfleet.making.registered import find_spec

_OF_GYMNASIUM = {"render_mode", "max_episode_steps", "disable_env_checker"}
_WHOLE_DICT = {"kwargs", "env_kwargs", "env_options"}


def check_keywords(source: Any, env_kwargs: Mapping[str, Any], options: Collection[str]) -> None:
    """Refuse a keyword that the constructor of a registered environment does not take.

    Args:
        source: What the person gave as an environment; only ids and specs have keywords to check.
        env_kwargs: What is not an option of `make`.
        options: Names of those that are.

    Raises:
        InvalidArgument: Names the keyword, and the option that is nearest to it.
    """
    if not env_kwargs or not isinstance(source, (str, EnvSpec)):
        return
    spec = find_spec(source)
    unsure = [name for name in env_kwargs if name not in _OF_GYMNASIUM and name not in spec.kwargs]
    accepted = _accepted(spec) if unsure else None
    if accepted is None:
        return
    for name in unsure:
        if name not in accepted:
            takes = ", ".join(accepted) or "none"
            raise InvalidArgument(
                f"{name}={env_kwargs[name]!r} is neither an option of make() nor a keyword of {spec.id}, which takes "
                f"{takes}: {advise(name, [*options, *accepted])}"
            )


def _accepted(spec: EnvSpec) -> list[str] | None:
    """The keywords that an environment's constructor names; `None` if it takes any, or if that cannot be told here."""
    entry_point: str | Callable[..., Any] | None = spec.entry_point
    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(creator).parameters.values() if creator is not None else None
    except (ImportError, AttributeError, TypeError, ValueError):  # building it says why, where it is built
        return None
    if parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def advise(name: str, known: Iterable[str]) -> str:
    """What to do about a keyword that nobody takes: the end of the sentence that refuses it.

    Args:
        name: The keyword.
        known: Those that are taken, the likeliest first.
    """
    known = list(known)
    if name in _WHOLE_DICT:
        return "write each of its entries as a keyword of make() itself"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7) or [one for one in known if one in name]
    return f"did you mean {near[0]}?" if near else "check the spelling, or leave it out"
