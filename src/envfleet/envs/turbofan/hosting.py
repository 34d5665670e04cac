"""Turbofan engines on a service: options and attributes of participants, and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.envs.hosting import CountedStep, EpisodeProtocol, Hosting
from envfleet.envs.turbofan.engines import LONG_BLOCK, make_engines
from envfleet.envs.turbofan.kernel import FAILURE, REPAIR, SOLD
from envfleet.envs.turbofan.plots import EngineLog


class EngineHosting(Hosting):
    """Hosting that counts flights and repairs, because a step is a block of flights."""

    limits: ClassVar[Mapping[str, int | None]] = {"step_size": LONG_BLOCK, "return_all_states": None, "logbook": None}
    ranked_options: ClassVar[tuple[str, ...]] = ("step_size", "return_all_states", "logbook", "render_mode")
    readable: ClassVar[tuple[str, ...]] = ("profit", "repair_cost", "failure_cost", "sale_value")
    warm_options: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"step_size": LONG_BLOCK})
    columns: ClassVar[Mapping[str, Any]] = {"flights": np.int64, "repairs": np.int64}
    unit: ClassVar[str] = "flights"
    glance: ClassVar[tuple[str, ...]] = ("HPC_Tout", "HPC_Pout_st", "LPT_Tin")  # they show wear best
    abandon_penalty: ClassVar[float | None] = 150.0  # the most that a sale brings: selling always counts for more
    episodes: ClassVar[EpisodeProtocol | None] = EpisodeProtocol(
        names=("DegradationEnv",),
        option="step_size",
        span="flights",
        longest=LONG_BLOCK,
        actions=("fly", "repair", "sell"),
        reasons={SOLD: "sold", FAILURE: "failure"},
    )

    def make(self, spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, options: Mapping[str, Any]) -> Any:
        """Make a fleet on one of the programs that all blocks share."""
        return make_engines(spec, num_envs, autoreset_mode, options)

    def count(self, columns: Mapping[str, NDArray[Any]], step: CountedStep) -> NDArray[Any] | None:
        """Count flights and repairs; see `Hosting.count`."""
        final = step.infos.get("final_info", step.infos) if step.ended.any() else step.infos
        flights = np.where(step.ended, final["num_rows"], step.infos["num_rows"])
        who = step.rows[step.counted]
        columns["flights"][who] += flights[step.counted]
        columns["repairs"][who] += np.asarray(step.actions)[step.counted] == REPAIR
        reasons: NDArray[Any] = final["reason"]
        return reasons

    def details(self, columns: Mapping[str, NDArray[Any]], row: int, reason: Any) -> dict[str, Any]:
        """Return flights, repairs, and whether the engine failed."""
        return {
            "flights": int(columns["flights"][row]),
            "repairs": int(columns["repairs"][row]),
            "is_failure": reason is not None and int(reason) == FAILURE,
        }

    def ending(self, outcome: str, details: Mapping[str, Any]) -> tuple[str, str]:
        """Distinguish sales from failures; see `Hosting.ending`."""
        if outcome != "terminated" or "is_failure" not in details:
            return super().ending(outcome, details)
        return ("failure", "bad") if details["is_failure"] else ("sold", "good")

    def metrics(self, episodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return means of repairs, flights and failures; see `Hosting.metrics`."""
        details = [episode["details"] for episode in episodes]
        flights = [each.get("flights", episode["length"]) for each, episode in zip(details, episodes, strict=True)]
        return {
            "total_maintenance": sum(each.get("repairs", 0) for each in details),
            "avg_steps": sum(flights) / len(flights),
            "failure_rate": sum(bool(each.get("is_failure")) for each in details) / len(details),
        }

    def log(self) -> EngineLog:
        """Return a recorder of the sensors."""
        return EngineLog()
