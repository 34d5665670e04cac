"""The progress bar of a run."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar as Bar
from rich.text import Text

from envfleet.training.events import Began, Ended, Evaluated, Event, Learned, Observer, Progress
from envfleet.training.opponents.standing import LEARNER

_LINE_EVERY_S = 30.0  # where nothing can be redrawn


class ProgressBar(Observer):
    """Shows the time that is left, phase, transitions, speed, episodes, return, win rate and loss.

    Where the output is no terminal, a line is written every half minute and at every evaluation instead.

    Args:
        console: Where to; `None` for standard error.
        has_head: Whether the run and its folder are named when it begins.
    """

    def __init__(self, console: Console | None = None, *, has_head: bool = True) -> None:
        self._has_head = has_head
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._live: Live | None = None
        self._num_phases = 1
        self._loss = self._evaluation = ""
        self._next_line = time.monotonic() + _LINE_EVERY_S
        self._began_at_share: float | None = None

    def on_event(self, event: Event) -> None:
        """Take notice, and show how far the run is."""
        match event:
            case Began():
                self._begin(event)
            case Learned():
                self._loss = _loss_of(event.figures)
            case Evaluated():
                self._evaluation = _describe_evaluation(event)
                if self._live is None:
                    self._console.print(self._evaluation, markup=False)
            case Progress():
                self._show(event)
            case Ended():
                self.close()

    def _begin(self, event: Began) -> None:
        self._num_phases = len(event.phases)
        if self._has_head:
            how = "goes on" if event.transitions else "begins"
            name, plan = escape(event.run_name), escape(event.plan)
            is_log = not self._console.is_terminal
            self._console.print(f"[bold]{name}[/bold] {how}: {event.agent}, {plan}", soft_wrap=is_log)
            if event.folder is not None:
                self._console.print(f"[dim]{escape(str(event.folder))}[/dim]", soft_wrap=True)
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def _show(self, event: Progress) -> None:
        if self._began_at_share is None:
            self._began_at_share = event.run_share
        line = ", ".join([self._head(event), *self._figures(event)])
        if self._live is not None:
            bar = Bar(total=1.0, completed=event.run_share, width=40)
            self._live.update(Group(bar, Text(line), Text(self._evaluation, style="dim")))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self._console.print(line, markup=False)

    def _head(self, event: Progress) -> str:
        """Return the share that is done, the time it took and, once it can be told, the time that is left."""
        done = event.run_share - (self._began_at_share or 0.0)
        left = f", {_duration(event.elapsed_s * (1.0 - event.run_share) / done)} left" if done > 0.002 else ""
        return f"{event.run_share:.0%} in {_duration(event.elapsed_s)}{left}"

    def _figures(self, event: Progress) -> list[str]:
        number = f" {event.phase + 1}/{self._num_phases}" if self._num_phases > 1 else ""
        figures = [f"phase {event.phase_name}{number}", f"transitions {event.transitions:,}"]
        figures += [f"steps/s {event.steps_per_s:,.0f}", f"episodes {event.episodes:,}"]
        if "return" in event.latest:
            figures.append(f"return {event.latest['return']:.2f}")
        if "win_rate" in event.latest:
            figures.append(f"won {event.latest['win_rate']:.0%}")
        return figures + ([f"loss {self._loss}"] if self._loss else [])

    def close(self) -> None:
        """Take the bar away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _loss_of(figures: Mapping[str, float]) -> str:
    """Return the figure that is called a loss, the critic's if there are several."""
    names = [name for name in ("loss", "critic_loss", "value_loss") if name in figures]
    return f"{figures[names[0]]:.3g}" if names else ""


def _describe_evaluation(event: Evaluated) -> str:
    results = event.results.items()
    won = [f"{figures['win_rate']:.1%} against {opponent}" for opponent, figures in results if "win_rate" in figures]
    parts = [f"return {figures['mean_return']:.2f}" for _, figures in results if "win_rate" not in figures]
    if won:
        parts.append(f"won {', '.join(won)}")
    if LEARNER in event.ratings:
        parts.append(f"rating {event.ratings[LEARNER]['rating']:.1f}")
    return f"evaluated at {event.transitions:,}: {', '.join(parts)}"


def _duration(seconds: float) -> str:
    return str(dt.timedelta(seconds=round(seconds)))
