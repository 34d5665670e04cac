"""Figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


class Metrics:
    """Metrics of one process, in a separate registry."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("envfleet_requests", "Requests answered.", labels, registry=registry)
        self.env_steps = Counter("envfleet_env_steps", "Steps of sub-environments.", ("env",), registry=registry)
        self.call_s = Histogram(
            "envfleet_call_seconds", "From a call's turn to its reply.", ("call",), buckets=_SECONDS, registry=registry
        )
        self.wait_s = Histogram(
            "envfleet_queue_wait_seconds", "Waiting for a turn.", buckets=_SECONDS, registry=registry
        )
        self._counted: dict[tuple[str, str, str], Counter] = {}  # finding one in `requests` takes longer
        self.denials = Counter("envfleet_refusals", "Calls refused.", ("code",), registry=registry)

    def count(self, method: str, route: str, status: str) -> None:
        """Count a request that was answered."""
        labels = method, route, status
        if labels not in self._counted:
            self._counted[labels] = self.requests.labels(*labels)
        self._counted[labels].inc()

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a figure that is read when it is asked for."""
        Gauge(f"envfleet_{name}", text, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        """Return all figures in the format of Prometheus."""
        return generate_latest(self._registry)
