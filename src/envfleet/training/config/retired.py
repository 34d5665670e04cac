"""Keys of older files that are not kept: those that never did anything are dropped, others are refused."""

from __future__ import annotations

from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.options import RETIRED

_TRAINING = {
    "max_episode_steps": "it never did anything: the environment says how long a game lasts",
    "checkpoint_save_freq": "it never did anything: write checkpoint_frequency, in transitions",
    "resource_log_freq": "it never did anything: steps per second are always recorded",
    "episode_resource_window": "it never did anything",
    "episode_resource_samples": "it never did anything",
}
_OPPONENT = {
    "skill_range": "opponents are not drawn by rating: write matchmaking in an opponent of type snapshots",
    "agent_type": "the file of an agent says what kind it is",
}
_OFTEN_NULL = ("checkpoint", "opponents", "distribution", *_OPPONENT)
"""Keys that older files write into opponents of every type."""
_SNAPSHOTS = {"run_checkpoints", "archive"}
_PRIORITISED = {"DDQN_PER": "DDDQN"}
_NEAREST = {"REDQTD3": "TD3", "CrossQ": "SAC", "TDMPC2": "SAC", "TDMPC2_REPO": "SAC"}


def modernise(data: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Bring the content of a file of the older form into the present one.

    Args:
        data: The content; it is left as it is.
        notes: Takes a sentence for every key that is dropped, which begins with its path.

    Raises:
        InvalidArgument: A key did something that is written in another way here; the message says in which.
    """
    data = {name: value for name, value in data.items() if name != "$schema"}
    _refuse_grids(data.get("hyperparameters"), "hyperparameters")
    if isinstance(data.get("training"), dict):
        data["training"] = _training(data["training"], notes)
    if isinstance(data.get("agent"), dict):
        data["agent"] = _agent(data["agent"])
    curriculum = data.get("curriculum")
    if isinstance(curriculum, dict) and isinstance(curriculum.get("phases"), list):
        phases = [_phase(phase, f"curriculum.phases[{i}]", notes) for i, phase in enumerate(curriculum["phases"])]
        data["curriculum"] = {**curriculum, "phases": phases}
    return data


def _training(section: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    kept = dict(section)
    dropped = {name: kept.pop(name) for name in _TRAINING if name in kept}
    notes += [f"training.{name}={value!r} has no effect: {_TRAINING[name]}" for name, value in dropped.items()]
    every = kept.pop("train_freq", 1)
    if every != 1:
        updates = kept.get("updates_per_step", 1)
        advice = f", such as {updates / every:g}" if _is_number(every) and _is_number(updates) else ""
        raise InvalidArgument(
            f"training.train_freq is {every!r}: write updates_per_step, gradient updates per transition, also a "
            f"fraction{advice}"
        )
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _refuse_grids(section: Any, path: str) -> None:
    for name, value in section.items() if isinstance(section, dict) else ():
        if isinstance(value, list) and not name.startswith("hidden"):
            raise InvalidArgument(
                f"{path}.{name} is {value!r}, expected one value: write one, and train once for each of the list"
            )


def _agent(section: dict[str, Any]) -> dict[str, Any]:
    _refuse_grids(section, "agent")
    _refuse_grids(section.get("hyperparameters"), "agent.hyperparameters")
    kind = str(section.get("type"))
    if kind in _NEAREST:
        raise InvalidArgument(
            f"agent.type is {kind!r}, which does not exist here; the nearest is {_NEAREST[kind]}: write "
            f"{_NEAREST[kind]!r}, and leave out the hyperparameters that it does not have"
        )
    if kind not in _PRIORITISED or not isinstance(section.get("hyperparameters", {}), dict):
        return section
    given = dict(section.get("hyperparameters", {}))
    if "prioritised" not in given:
        given.setdefault("use_per", True)
    return {**section, "type": _PRIORITISED[kind], "hyperparameters": given}


def _phase(phase: Any, path: str, notes: list[str]) -> Any:
    if not isinstance(phase, dict):
        return phase
    place = phase.get("environment")
    kwargs: Any = place.get("kwargs") if isinstance(place, dict) else None
    for name in RETIRED.keys() & kwargs.keys() if isinstance(kwargs, dict) else ():
        raise InvalidArgument(
            f"{path}.environment.kwargs.{name} is {kwargs[name]!r}, but a fleet has no such option any more: "
            f"{RETIRED[name]}"
        )
    bonus = phase.get("reward_bonus")
    for name in ("WIN_DISCOUNT_START", "WIN_DISCOUNT_FINAL"):
        if isinstance(bonus, dict) and name in bonus:
            raise InvalidArgument(
                f"{path}.reward_bonus.{name} is {bonus[name]!r}, but the bonus is paid for the step that wins, not "
                "backwards over the game, which is not known before its end: leave it out; the agent's gamma (and "
                "num_steps) carry the bonus back"
            )
    if "opponent" in phase:
        return {**phase, "opponent": _opponent(phase["opponent"], f"{path}.opponent", notes)}
    return phase


def _opponent(opponent: Any, path: str, notes: list[str]) -> Any:
    if not isinstance(opponent, dict):
        return opponent
    kept = dict(opponent)
    if kept.get("type") in _SNAPSHOTS:
        kept["type"] = "snapshots"
    if kept.get("distribution") is not None:
        raise InvalidArgument(
            f"{path}.distribution is {kept['distribution']!r}: write a weighted_mixture of opponents of type snapshots "
            "with their matchmaking (pfsp is prioritised, random is uniform), and of basic_weak and basic_strong "
            "for baseline"
        )
    kept = {name: value for name, value in kept.items() if value is not None or name not in _OFTEN_NULL}
    if kept.get("type") not in ("self_play", "snapshots") and kept.get("deterministic") is True:
        del kept["deterministic"]
    dropped = {name: kept.pop(name) for name in _OPPONENT if name in kept}
    notes += [f"{path}.{name}={value!r} has no effect: {_OPPONENT[name]}" for name, value in dropped.items()]
    if isinstance(kept.get("opponents"), list):
        kept["opponents"] = [_opponent(one, f"{path}.opponents[{i}]", notes) for i, one in enumerate(kept["opponents"])]
    return kept
