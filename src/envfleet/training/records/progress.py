"""The progress bar of a run."""

from __future__ import annotations

import datetime as dt
import time

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar as Bar
from rich.text import Text

from envfleet.training.events import LEARNER, Began, Ended, Evaluated, Evaluating, Event, Learned, Observer, Progress

_LINE_EVERY_S = 30.0  # interval of lines without a terminal


class ProgressBar(Observer):
    """Progress bar with remaining time, phase, transitions, speed, episodes, return, win rate and loss.

    Without a terminal, a line is written every half minute and at every evaluation instead.

    Args:
        console: Console to write to; `None` for stderr.
        has_head: True to print the run and its folder at the start.
    """

    def __init__(self, console: Console | None = None, *, has_head: bool = True) -> None:
        self._has_head = has_head
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._live = Live(console=self._console, refresh_per_second=1, transient=True)
        self._num_phases = 1
        self._share, self._line, self._loss, self._evaluation = 0.0, "", "", ""
        self._next_line = time.monotonic() + _LINE_EVERY_S
        self._began_at_share: float | None = None

    def on_event(self, event: Event) -> None:
        """Update the display."""
        match event:
            case Began():
                self._begin(event)
            case Learned():
                # The loss, or the critic's if there are several.
                names = [name for name in ("loss", "critic_loss", "value_loss") if name in event.figures]
                self._loss = f", loss {event.figures[names[0]]:.3g}" if names else ""
            case Evaluating():
                self._evaluation = f"evaluating at {event.transitions:,}"
                self._draw()
            case Evaluated():
                self._evaluation = _describe_evaluation(event)
                if not self._live.is_started:
                    self._console.print(self._evaluation, markup=False)
            case Progress():
                self._show(event)
            case Ended():
                self.close()

    def _begin(self, event: Began) -> None:
        self._num_phases = len(event.phases)
        if self._has_head:
            how = "continues" if event.transitions else "begins"
            head = f"[bold]{escape(event.run_name)}[/bold] {how}: {event.agent}, {escape(event.plan)}"
            self._console.print(head, soft_wrap=not self._console.is_terminal)
            if event.folder is not None:
                self._console.print(f"[dim]{escape(str(event.folder))}[/dim]", soft_wrap=True)
        if self._console.is_terminal:
            self._live.start()

    def _show(self, event: Progress) -> None:
        self._share, self._line = event.run_share, self._describe(event)
        if not self._live.is_started and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self._console.print(self._line, markup=False)
        self._draw()

    def _draw(self) -> None:
        bar = Padding(Bar(total=1.0, completed=self._share, width=40), 0)  # on its own line
        self._live.update(Group(bar, Text(self._line), Text(self._evaluation, style="dim")))

    def _describe(self, event: Progress) -> str:
        """Return the finished share, the elapsed and (once known) the remaining time, and metrics."""
        if self._began_at_share is None:
            self._began_at_share = event.run_share
        done = event.run_share - self._began_at_share
        left = f", {_duration(event.elapsed_s * (1.0 - event.run_share) / done)} left" if done > 0.002 else ""
        number = f" {event.phase + 1}/{self._num_phases}" if self._num_phases > 1 else ""
        shown = {"return": "return {:.2f}", "win_rate": "won {:.0%}"}
        means = "".join(f", {form.format(event.latest[name])}" for name, form in shown.items() if name in event.latest)
        return (
            f"{event.run_share:.0%} in {_duration(event.elapsed_s)}{left}, phase {event.phase_name}{number}, "
            f"transitions {event.transitions:,}, steps/s {event.steps_per_s:,.0f}, episodes {event.episodes:,}"
            f"{means}{self._loss}"
        )

    def close(self) -> None:
        """Remove the bar."""
        self._live.stop()


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
