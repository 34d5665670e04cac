"""Results of an evaluation: one row per episode, means with confidence intervals, and a table."""

from __future__ import annotations

import dataclasses
import html
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envfleet.evaluation.intervals import student, wilson

_WIDTH, _NAME_WIDTH = 80, 12


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Episodes of a policy, in the order of their numbers; `print` shows a table.

    Attributes:
        env: Name of the environment.
        policy: Name of the policy.
        seeds: Seed of each episode.
        returns: Sum of rewards of each episode, float64 `(E,)`.
        lengths: Number of steps of each episode, int64 `(E,)`.
        truncated: Episodes that a limit ended, bool `(E,)`.
        successes: Successful episodes, bool `(E,)`; `None` if the environment does not report success.
        tasks: Task of each episode, int64 `(E,)`.
        task_names: Name of each task.
        films: Films of the worst and of the best episode, if asked for.
    """

    env: str
    policy: str
    seeds: tuple[int, ...]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    successes: NDArray[np.bool_] | None
    tasks: NDArray[np.int64]
    task_names: tuple[str, ...]
    films: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def return_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the mean return by Student's t distribution; NaN of a single episode."""
        return student(self.returns)

    @property
    def mean_length(self) -> float:
        """Mean number of steps of an episode."""
        return float(self.lengths.mean())

    @property
    def success_rate(self) -> float:
        """Share of successful episodes; NaN if the environment does not report success."""
        return math.nan if self.successes is None else float(self.successes.mean())

    @property
    def success_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the success rate (Wilson 1927)."""
        if self.successes is None:
            return math.nan, math.nan
        return wilson(int(self.successes.sum()), len(self))

    @property
    def worst(self) -> int:
        """Number of the episode with the lowest return, the first of several."""
        return int(self.returns.argmin())

    @property
    def best(self) -> int:
        """Number of the episode with the highest return, the first of several."""
        return int(self.returns.argmax())

    def of_task(self, task: int) -> EvaluationResult:
        """Return the episodes of one task."""
        chosen = self.tasks == task
        return dataclasses.replace(
            self,
            env=self.task_names[task],
            seeds=tuple(seed for seed, is_chosen in zip(self.seeds, chosen.tolist(), strict=True) if is_chosen),
            returns=self.returns[chosen],
            lengths=self.lengths[chosen],
            truncated=self.truncated[chosen],
            successes=None if self.successes is None else self.successes[chosen],
            tasks=self.tasks[chosen],
            films=(),
        )

    def figures(self) -> dict[str, float]:
        """Return all metrics by name, for records; those of success only if the environment reports it."""
        low, high = self.return_interval
        figures = {
            "episodes": float(len(self)),
            "mean_return": self.mean_return,
            "mean_return_low": low,
            "mean_return_high": high,
            "min_return": float(self.returns.min()),
            "max_return": float(self.returns.max()),
            "mean_length": self.mean_length,
        }
        if self.successes is not None:
            low, high = self.success_interval
            figures |= {"success_rate": self.success_rate, "success_rate_low": low, "success_rate_high": high}
        return figures

    def _cells(self) -> list[list[str]]:
        """Return the cells of the table, headings first."""
        has_success = self.successes is not None
        names = ["", "episodes", *(["success"] if has_success else []), "return", "worst", "best", "steps"]
        parts = [("", self)]
        if len(self.task_names) > 1:
            parts = [(name, self.of_task(task)) for task, name in enumerate(self.task_names)] + [("all", self)]
        rows = [names]
        for name, part in parts:
            rows.append([name, f"{len(part):,}"])
            if has_success:
                low, high = part.success_interval
                rows[-1].append(f"{part.success_rate:.1%} ({100 * low:.1f} to {100 * high:.1f})")
            low, high = part.return_interval
            interval = "" if math.isnan(low) else f" ({_number(low)} to {_number(high)})"
            rows[-1].append(_number(part.mean_return) + interval)
            rows[-1] += [_number(float(part.returns.min())), _number(float(part.returns.max()))]
            rows[-1].append(f"{part.mean_length:,.0f}")
        return rows

    @property
    def _title(self) -> str:
        return f"{self.policy} in {self.env}, seeds {_describe_seeds(self.seeds)}; 95 % intervals in parentheses"

    def __str__(self) -> str:
        rows = self._cells()
        widths = _widths(rows)
        if sum(widths[1:]) + 2 * len(widths) > _WIDTH - _NAME_WIDTH:  # without the worst and the best return
            rows = [[*row[:-3], row[-1]] for row in rows]
            widths = _widths(rows)
        room = max(_WIDTH - sum(widths[1:]) - 2 * len(widths[1:]), _NAME_WIDTH)  # for names
        names = [row[0] if len(row[0]) <= room else f"{row[0][: room - 1]}…" for row in rows]
        widths[0] = min(widths[0], room)
        lines = [
            "  ".join([name.ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for name, row in zip(names, rows, strict=True)
        ]
        if not widths[0]:  # a single row has no name
            lines = [line[2:] for line in lines]
        return "\n".join([textwrap.fill(self._title, _WIDTH), *lines])

    def __repr__(self) -> str:
        low, high = self.return_interval
        success = "" if self.successes is None else f", success {self.success_rate:.1%}"
        return (
            f"<EvaluationResult {self.policy} in {self.env}: {len(self)} episodes, return {_number(self.mean_return)} "
            f"({_number(low)} to {_number(high)}){success}>"
        )

    def _repr_html_(self) -> str:
        head, *rows = (
            [f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row]
            for tag, row in zip(["th", *["td"] * len(self._cells())], self._cells(), strict=False)
        )
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
        caption = f"<caption>{html.escape(self._title)}</caption>"
        return f"<table>{caption}<thead><tr>{''.join(head)}</tr></thead><tbody>{body}</tbody></table>"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _number(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 10_000 else f"{value:,.0f}"


def _describe_seeds(seeds: Sequence[int]) -> str:
    first, last = seeds[0], seeds[-1]
    is_range = all(seed == first + k for k, seed in enumerate(seeds))
    return (
        f"{first} to {last}"
        if is_range and len(seeds) > 1
        else ", ".join(map(str, dict.fromkeys(seeds[:3]))) + (", …" if len(seeds) > 3 else "")
    )
