"""What a run is told beside its configuration: what may change without changing what is learned, and when to stop."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_choice, check_whole

Backend = Literal["auto", "serial", "thread", "process", "ray", "kernel"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run.

    Attributes:
        num_envs: Sub-environments.
        engine: Of a game that has several; `None` for the first of them.
        backend: Of the fleet; `None` chooses: `"kernel"` for what is compiled, `"serial"` for one sub-environment of
            anything else, and `"auto"`, which measures, for several.
        workers: Threads or processes of the fleet; `None` for its own choice.
        device: Where networks live and the replay buffer with them: `"cpu"`, `"cuda"`, `"cuda:1"`, …
        on_failure: `"raise"`, or `"restart"`: a sub-environment that fails ends its episode as truncated and is
            rebuilt.
        max_minutes: The run stops after so many, evaluations included; `None` for never.
        max_transitions: The run stops after so many; `None` for never.

    Raises:
        InvalidArgument: One of them cannot be.
    """

    num_envs: int = 1
    engine: str | None = None
    backend: Backend | None = None
    workers: int | None = None
    device: str = "cpu"
    on_failure: Literal["raise", "restart"] = "raise"
    max_minutes: float | None = None
    max_transitions: int | None = None

    def __post_init__(self) -> None:
        check_whole("num_envs", self.num_envs, 1)
        check_choice("on_failure", self.on_failure, ("raise", "restart"))
        for name in ("max_minutes", "max_transitions"):
            value: Any = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidArgument(f"{name}={value!r}: pass a number above 0, or leave it out")
