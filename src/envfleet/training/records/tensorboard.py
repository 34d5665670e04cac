"""TensorBoard log of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envfleet.files import naming
from envfleet.training.events import LEARNER, Began, Evaluated, Event, Learned, Observer, Progress
from envfleet.training.folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardWriter(Observer):
    """Observer that writes means over the latest episodes, losses, evaluations and speed as scalars over transitions.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.tensorboard
        self._writer: SummaryWriter | None = None

    def on_event(self, event: Event) -> None:
        """Write scalars."""
        with naming(self._folder):
            if isinstance(event, Began):
                from torch.utils.tensorboard import SummaryWriter

                # Hides what an interrupted run wrote after the checkpoint.
                self._writer = SummaryWriter(str(self._folder), purge_step=event.transitions + 1)
            elif self._writer is not None:
                for name, value in _scalars(event).items():
                    self._writer.add_scalar(name, value, event.transitions)

    def state_dict(self) -> dict[str, Any]:
        """Flush the file; `Began` has the position after a resume."""
        if self._writer is not None:
            with naming(self._folder):
                self._writer.flush()
        return {}

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()


def _scalars(event: Event) -> dict[str, float]:
    match event:
        case Learned():
            return {f"learning/{name}": value for name, value in event.figures.items()}
        case Evaluated():
            tables = {f"evaluation_{opponent}": figures for opponent, figures in event.results.items()}
            tables["evaluation"] = event.ratings.get(LEARNER, {})
            return {f"{table}/{name}": value for table, figures in tables.items() for name, value in figures.items()}
        case Progress():
            means = {f"episodes/{name}": mean for name, mean in event.latest.items()}
            return means | {"speed/steps_per_s": event.steps_per_s}
    return {}
