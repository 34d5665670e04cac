"""Who can sit at the table: scripted players by name, agents, checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

from envfleet.agents import load_agent
from envfleet.agents.agent import Agent
from envfleet.envs.hockey.opponents import BasicOpponent
from envfleet.errors import InvalidArgument
from envfleet.training.games.seating import Policy

Player = str | Path | Policy
"""`"weak"`, `"strong"` or `"champion"`, the path of a checkpoint or of a run, or anything with `act_batch`."""

SCRIPTED = {"weak": 1, "strong": 2}
"""Scripted players by name, and the numbers that environments know them by."""

SHIPPED = {"champion": Path(__file__).with_name("shipped") / "champion.pt"}
"""Trained players that come with the package, by name: their weights alone, as `Agent.save` writes them."""

RESUME_FILE = "resume.pt"
"""What a run needs to go on, beside its checkpoints; no player."""

_VIEW = (18,)


@dataclasses.dataclass(frozen=True, eq=False)
class Seated:
    """A player that is ready to play.

    Attributes:
        name: To show.
        strength: 1 or 2: the environment plays it, as the weak or strong scripted player; 0: `policy` does.
        policy: `None` for scripted players.
    """

    name: str
    strength: int = 0
    policy: Policy | None = None


def seat_player(player: Player, name: str | None = None, *, device: str = "cpu") -> Seated:
    """Make a player ready to play hockey.

    Args:
        player: Who; of the folder of a run, its best checkpoint.
        name: To show; by default the scripted player's, the file's, or the kind of the agent.
        device: Where the networks of a checkpoint live.

    Raises:
        InvalidArgument: There is no such player, or it plays something else.
    """
    if isinstance(player, BasicOpponent):  # its swing would depend on who else plays
        player = "weak" if player.weak else "strong"
    if isinstance(player, str) and player in SCRIPTED:
        return Seated(name or player, SCRIPTED[player])
    if isinstance(player, (str, Path)):
        path = SHIPPED.get(str(player)) or _file_of(player)
        agent: Any = load_agent(path, num_envs=1, device=device)
        shown = name or path.stem
    else:
        agent, shown = player, name or str(getattr(player, "name", type(player).__name__))
    if not callable(getattr(agent, "act_batch", None)):
        raise InvalidArgument(
            f"a player of type {type(agent).__name__} has no act_batch(observations, deterministic): pass an agent, "
            "the path of a checkpoint, 'weak', 'strong' or 'champion'"
        )
    if isinstance(agent, Agent) and not plays_hockey(agent):
        raise InvalidArgument(
            f"{shown} sees observations of shape {agent.observation_space.shape}, a hockey player sees {_VIEW}: pass "
            "an agent that was trained on hockey"
        )
    return Seated(shown, policy=cast(Policy, agent))


def plays_hockey(agent: Agent[Any]) -> bool:
    """Return whether an agent sees what players of hockey see."""
    return agent.observation_space.shape == _VIEW


def _file_of(player: str | Path) -> Path:
    path = Path(player)
    if path.is_dir():
        path = path / "checkpoints" / "best.pt"
    if not path.is_file():
        raise InvalidArgument(
            f"there is no player {str(path)!r}, expected {', '.join(map(repr, (*SCRIPTED, *SHIPPED)))}, the file of a "
            "checkpoint or the folder of a run: check the path"
        )
    return path
