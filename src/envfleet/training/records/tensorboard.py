"""TensorBoard's view of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from envfleet.files import naming
from envfleet.training.events import Began, Evaluated, Event, Learned, Observer, Progress
from envfleet.training.folder import RunFolder
from envfleet.training.opponents.standing import LEARNER

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_PROGRESS_EVERY_S = 2.0


class TensorBoardWriter(Observer):
    """Writes means over the latest episodes, losses, evaluations and speed as scalars, over transitions.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.tensorboard
        self._writer: SummaryWriter | None = None
        self._next_speed = 0.0

    def on_event(self, event: Event) -> None:
        """Write scalars."""
        with naming(self._folder):
            match event:
                case Began():
                    from torch.utils.tensorboard import SummaryWriter

                    # What an interrupted run wrote after the checkpoint is hidden.
                    self._writer = SummaryWriter(str(self._folder), purge_step=event.transitions + 1)
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
                    means = {f"episodes/{name}": mean for name, mean in event.latest.items()}
                    self._add(means | {"speed/steps_per_s": event.steps_per_s}, event.transitions)

    def _add(self, scalars: Mapping[str, float], transitions: int) -> None:
        if self._writer is not None:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, transitions)

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
