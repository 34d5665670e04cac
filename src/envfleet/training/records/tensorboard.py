"""TensorBoard's view of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from envfleet.files import naming
from envfleet.training.events import Began, Ended, Episodes, Evaluated, Event, Learned, Observer, Progress
from envfleet.training.opponents.standing import LEARNER
from envfleet.training.records.folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_PROGRESS_EVERY_S = 2.0
_COLUMNS = ("returns", "shaped_returns", "lengths", "winners")


class TensorBoardWriter(Observer):
    """Writes means over the latest episodes, losses, evaluations and speed as scalars, over transitions.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.tensorboard
        self._writer: SummaryWriter | None = None
        self._recent: list[Episodes] = []
        self._next_speed = 0.0

    def on_event(self, event: Event) -> None:
        """Write scalars."""
        with naming(self._folder):
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case Began():
                from torch.utils.tensorboard import SummaryWriter

                # What an interrupted run wrote after the checkpoint is hidden.
                self._writer = SummaryWriter(str(self._folder), purge_step=event.transitions + 1)
            case Episodes():
                self._recent.append(event)
            case Learned():
                self._add({f"learning/{name}": value for name, value in event.figures.items()}, event.transitions)
            case Evaluated():
                scalars = {
                    f"evaluation_{opponent}/{name}": value
                    for opponent, figures in event.results.items()
                    for name, value in figures.items()
                }
                rating = event.ratings.get(LEARNER, {})
                scalars |= {f"evaluation/{name}": value for name, value in rating.items()}
                self._add(scalars, event.transitions)
            case Progress() if time.monotonic() >= self._next_speed:
                self._next_speed = time.monotonic() + _PROGRESS_EVERY_S
                self._add({"speed/steps_per_s": event.steps_per_s} | self._episode_means(), event.transitions)
            case Ended():
                self._add(self._episode_means(), event.transitions)

    def _add(self, scalars: Mapping[str, float], transitions: int) -> None:
        if self._writer is not None:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, transitions)

    def _episode_means(self) -> dict[str, float]:
        """Means over the episodes since the last call, empty if there were none."""
        recent, self._recent = self._recent, []
        if not recent:
            return {}
        joined = {name: np.concatenate([getattr(event, name) for event in recent]) for name in _COLUMNS}
        return {
            "episodes/return": float(joined["returns"].mean()),
            "episodes/shaped_return": float(joined["shaped_returns"].mean()),
            "episodes/length": float(joined["lengths"].mean()),
            "episodes/win_rate": float((joined["winners"] > 0).mean()),
            "episodes/loss_rate": float((joined["winners"] < 0).mean()),
            "episodes/phase": float(recent[-1].phase),
        }

    def state_dict(self) -> dict[str, Any]:
        """Nothing: `Began` says where the run goes on."""
        if self._writer is not None:
            with naming(self._folder):
                self._writer.flush()
        return {}

    def close(self) -> None:
        """Write what waits and let go of the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
