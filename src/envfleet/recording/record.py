"""`envfleet.record`: episodes of a fleet as a dataset of Minari."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, Self

from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet, replace_engine
from envfleet.fleet.layout import SpaceLayout
from envfleet.recording.engine import RecordingEngine, awaiting_reset
from envfleet.recording.episodes import EpisodeCutter


def record(
    fleet: Fleet,
    path: str | Path,
    *,
    dataset_id: str | None = None,
    algorithm_name: str | None = None,
    author: str | None = None,
    author_email: str | None = None,
    code_permalink: str | None = None,
    description: str | None = None,
) -> Recording:
    """Record the episodes of a fleet as a Minari dataset, until the recording or the fleet is closed.

    Everything that steps the fleet is recorded: `step`, `send` and `recv`, `rollout`, an adapter, an evaluation. An
    episode begins with a reset, or with the next autoreset, and has its last observation in every autoreset mode.
    Episodes that are unfinished when they are reset, or when the recording is closed, are truncated there. The step in
    which an environment failed (`on_failure="restart"`) is left out.

    Args:
        fleet: Any fleet with observations and actions of a fixed shape and arrays in host memory. Transforms are
            part of what is recorded.
        path: Folder of the dataset, which must not exist. It appears when the recording is closed; a program that is
            killed leaves a hidden folder next to it. With `MINARI_DATASETS_PATH/id` as its path,
            `minari.load_dataset(id)` finds it.
        dataset_id: Minari's id of the dataset, such as `"cartpole/random-v0"`; by default the name of the folder.
        algorithm_name: Name of the algorithm that acts.
        author: Name of the author.
        author_email: Address of the author.
        code_permalink: Address of the code.
        description: Description of the dataset.

    Returns:
        The recording. Close it, or the fleet, or use either in a `with` statement.

    Raises:
        InvalidArgument: An argument is invalid, `path` exists, the fleet is recorded already, its spaces have no fixed
            shape, its rewards are vectors, or its arrays are on a GPU.
        CallPending: Another thread is in the fleet.
        FleetClosed: The fleet is closed.
        MissingDependency: `envfleet[record]` is not installed.
        OSError: The folder cannot be written.
    """
    from envfleet.recording.dataset import Dataset, check_dataset_id

    if not isinstance(fleet, Fleet):
        raise InvalidArgument(f"fleet is of type {type(fleet).__name__}: pass a fleet, such as of envfleet.make(…)")
    engine, path = fleet.engine, Path(path).absolute()
    if isinstance(engine, RecordingEngine):
        raise InvalidArgument(f"the fleet is recorded already ({engine.recording!r}): close that recording first")
    traits = engine.traits
    traits.refuse_vector_rewards("a recording")
    if traits.device != "cpu":
        raise InvalidArgument(f"a recording requires device='cpu' (got {traits.device!r})")
    layouts = SpaceLayout(traits.single_observation_space), SpaceLayout(traits.single_action_space)
    for layout in layouts:
        if layout.num_objects:
            raise InvalidArgument(
                f"{layout.space} has no fixed shape: wrap the environment so that it returns and takes arrays"
            )
    texts = {
        "algorithm_name": algorithm_name,
        "code_permalink": code_permalink,
        "description": description,
        "author": author and {author},
        "author_email": author_email and {author_email},
    }
    metadata = {name: text for name, text in texts.items() if text is not None}
    dataset = Dataset(path, check_dataset_id(dataset_id or path.name), traits, layouts, metadata)
    cutter = EpisodeCutter(traits, layouts, dataset.write, awaiting_reset(engine))
    recording = Recording(fleet, path, dataset, cutter)
    try:
        replace_engine(fleet, RecordingEngine(engine, cutter, layouts[1], recording), "record()")
    except BaseException:
        dataset.discard()
        raise
    return recording


class Recording:
    """Recording of a fleet, made by `record`; closed by `close`, by a `with` statement, or with the fleet.

    Attributes:
        path: Folder of the dataset.
    """

    def __init__(self, fleet: Fleet, path: Path, dataset: Any, cutter: EpisodeCutter) -> None:
        self.path = path
        self._fleet, self._dataset, self._cutter = weakref.ref(fleet), dataset, cutter
        self._is_closed = False
        self._finish = weakref.finalize(self, dataset.finish)  # at the end of the program, if it is still open

    @property
    def num_episodes(self) -> int:
        """Number of finished episodes."""
        return int(self._dataset.num_episodes)

    @property
    def num_steps(self) -> int:
        """Number of steps in finished episodes."""
        return int(self._dataset.num_steps)

    def close(self) -> None:
        """Truncate unfinished episodes and complete the dataset; the fleet stays open. Idempotent.

        Raises:
            CallPending: Another thread is in the fleet.
            OSError: The dataset cannot be completed, for example because the disk is full; free some space and call
                `close` again.
        """
        if self._is_closed:
            return
        fleet = self._fleet()
        if fleet is not None and not fleet.closed:
            engine = fleet.engine
            if isinstance(engine, RecordingEngine) and engine.recording is self:  # else an earlier call got this far
                replace_engine(fleet, engine.inner, "close() of a recording")
        self._cutter.cut()
        self._dataset.finish()
        self._finish.detach()
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the recording, after an exception too: whole episodes are of use."""
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<Recording {self.path}: {self.num_episodes:,} episodes, {self.num_steps:,} steps, {state}>"
