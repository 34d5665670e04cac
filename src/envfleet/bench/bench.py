"""`envfleet bench`: one environment, every combination of sizes and workers, all contenders."""

from __future__ import annotations

from collections.abc import Sequence

from envfleet.bench.contenders import find_contenders
from envfleet.bench.results import Report, Settings
from envfleet.bench.rounds import Case, Progress, run_cases
from envfleet.bench.workloads import Workload
from envfleet.errors import InvalidArgument


def bench(
    workload: Workload,
    num_envs: Sequence[int],
    workers: Sequence[int | None],
    contenders: Sequence[str],
    settings: Settings,
    progress: Progress,
) -> Report:
    """Measure one environment.

    Args:
        workload: The environment.
        num_envs: Numbers of sub-environments, one run each.
        workers: Numbers of workers, one run each; `None` leaves it to each contender.
        contenders: Who takes part, by name.
        settings: How long and how often.
        progress: Told what goes on and which fraction is done.

    Raises:
        InvalidArgument: There is no contender of a given name, or none at all.
    """
    found = find_contenders(contenders)
    if not found:
        raise InvalidArgument("no contender is left to measure: name some with --backends or --peers.")
    cases = [Case(workload, count, each, found) for each in workers for count in num_envs]
    return run_cases(cases, settings, progress)
