"""DDDQN, with `act_batch(states, deterministic=False)`."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from envfleet import agents
from envfleet.agents import DDDQNConfig

__all__ = ["DDDQN", "DDDQNConfig"]


class DDDQN(agents.DDDQN):
    """`envfleet.agents.DDDQN` with `states` as the name of observations; saved files are those of envfleet's."""

    def act_batch(
        self, states: Any, deterministic: bool = False, *, env_indices: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Choose an action for every state; see `envfleet.agents.Agent.act_batch`."""
        return super().act_batch(states, deterministic, env_indices=env_indices)

    @classmethod
    def _kind(cls) -> str:
        return "DDDQN"
