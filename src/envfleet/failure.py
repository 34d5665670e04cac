"""What went wrong in one sub-environment, as a value that travels: from a worker, over a network, into an error."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Failure:
    """What went wrong in one sub-environment, as plain values that always pickle.

    Attributes:
        env_index: The sub-environment's index in the fleet.
        worker: The worker's index.
        verb: What it was doing: `"make"`, `"reset"`, `"step"`, `"close"`, …
        type_name: Qualified name of the original exception's type.
        message: The original exception's text.
        traceback: The formatted remote traceback, from where the sub-environment's own code begins; empty if the
            fleet found out itself what is wrong with what the sub-environment returned.
        pid: Process that ran the sub-environment.
        seed: Seed that it was last reset with, in this episode or an earlier one, if there was one.
        step: Steps taken in the running episode before the failing call.
        action: `repr` of the last action, shortened, or `None`.
        pickled: The original exception, pickled, where it survives the trip.
        replay: What `envfleet replay` needs (see `envfleet.core.replay`), or `None`.
        no_replay: Why there is none, where there could be.
        is_timeout: The sub-environment was interrupted because it overran `step_timeout_s`.
        error: The original exception itself, where it was raised in this process; does not pickle along.
    """

    env_index: int
    worker: int
    verb: str
    type_name: str
    message: str
    traceback: str
    pid: int
    seed: int | None = None
    step: int | None = None
    action: str | None = None
    pickled: bytes | None = None
    replay: bytes | None = None
    no_replay: str | None = None
    is_timeout: bool = False
    error: BaseException | None = dataclasses.field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "error": None}

    @property
    def place(self) -> str:
        """What it was doing in which episode, in words."""
        episode = "" if self.step is None else f", step {self.step} of its episode"
        seed = "" if self.seed is None else f", last seeded with {self.seed}"
        action = "" if self.action is None else f", last action {self.action}"
        return f"{self.verb}{episode}{seed}{action}"

    def summary(self) -> str:
        """Say in one line what failed where."""
        where = f"sub-environment {self.env_index} (worker {self.worker}, pid {self.pid})"
        return f"{where} failed in {self.place}: {self.type_name}: {self.message}"

    def how_to_repeat(self, replay_file: str | None) -> str:
        """Say how to run it again, or why that cannot be; empty where it is not of an episode."""
        if replay_file is not None:
            return f"To run it again in this process: envfleet replay {replay_file}"
        return "" if self.no_replay is None else f"There is no file to run it again: {self.no_replay}."
