"""What a run leaves on the disk: agents that anybody may load, and all it needs to go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envfleet.agents import Agent, saving
from envfleet.errors import InvalidArgument
from envfleet.training.folder import RESUME_FILE

BEST = "best.pt"


class Checkpoints:
    """The checkpoints of one run.

    `checkpoints/000000250000.pt` is the agent after 250,000 transitions, `checkpoints/best.pt` the best one so far:
    weights alone, which load without executing anything (`load_agent`). `resume.pt` is the whole run at its last
    checkpoint; it is unpickled, so go on with runs of your own only. Every file is replaced as a whole or not at all.

    Args:
        folder: Of the run.
        max_kept: Agents to keep, the best one aside; the oldest goes.

    Attributes:
        folder: Of the run.
    """

    def __init__(self, folder: Path, max_kept: int) -> None:
        self.folder, self._agents, self._max_kept = folder, folder / "checkpoints", max_kept

    @property
    def latest(self) -> Path | None:
        """Return the newest agent's file."""
        return max(self._numbered(), default=None)

    @property
    def best(self) -> Path | None:
        """Return the best agent's file."""
        path = self._agents / BEST
        return path if path.is_file() else None

    @property
    def way_on(self) -> str:
        """Return what to do with a run that ended by an error."""
        if (self.folder / RESUME_FILE).is_file():
            return f"go on from its last checkpoint: envfleet train --resume {self.folder}"
        return "begin the run again: it has no checkpoint to go on from"

    def save(self, agent: Agent[Any], transitions: int, state: Mapping[str, Any]) -> Path:
        """Write the agent, and all that is needed to go on from here.

        Args:
            agent: Whose weights.
            transitions: Of the run so far.
            state: What `load` returns: anything that pickles.

        Returns:
            The agent's file.
        """
        path = self._agents / f"{transitions:012d}.pt"
        agent.save(path, "weights")
        saving.write_trusted(self.folder / RESUME_FILE, state)
        for old in self._numbered()[: -self._max_kept]:
            old.unlink()
        return path

    def save_best(self, agent: Agent[Any]) -> Path:
        """Write the agent as the best one so far."""
        path = self._agents / BEST
        agent.save(path, "weights")
        return path

    def load(self) -> dict[str, Any]:
        """Return what `save` was given last.

        Raises:
            InvalidArgument: There is none, or it cannot be read.
        """
        path = self.folder / RESUME_FILE
        if not path.is_file():
            raise InvalidArgument(
                f"{self.folder} has no {RESUME_FILE}: the run ended before its first checkpoint; begin a new one, "
                "with a smaller checkpoint_frequency"
            )
        try:
            return saving.read(path, is_trusted=True)
        except InvalidArgument as error:
            kept = self.latest or self.best
            start = "" if kept is None else f", with agent.checkpoint_path={str(kept)!r} to keep what was learned"
            raise InvalidArgument(f"{path} is damaged, or of another version: begin a new run{start}") from error

    def _numbered(self) -> list[Path]:
        return sorted(path for path in self._agents.glob("*.pt") if path.stem.isdigit())
