"""The controller's metrics: whether it leads, what it knows, and what it has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from userspace_cni.base.metrics import Registry


class ControllerMetrics:
    """The series. `leading`: whether this process leads; `known`: how many objects are known, a function by resource."""

    def __init__(self, leading: Callable[[], bool], known: Mapping[str, Callable[[], float]]) -> None:
        self._registry = registry = Registry()
        self._writes = registry.counter("controller_writes", "Writes of objects, by resource and outcome", "resource", "outcome")
        self._events = registry.counter("controller_events_dropped", "Notices for which no Event on the object could be made")
        registry.gauge("controller_leader", "1 for the controller that acts", lambda: float(leading()))
        for resource, count in known.items():
            name = f"controller_{resource.replace('-', '_')}"
            registry.gauge(name, f"Objects of {resource} that the controller knows", count)

    def add(self, name: str, text: str, look: Callable[[], float | None]) -> None:
        """Add a number that is read at a scrape, None while it is not known."""
        self._registry.gauge(f"controller_{name}", text, look)

    def count_write(self, resource: str, outcome: str) -> None:
        """Count a write: "written", "deleted", "conflict" or "failed"."""
        self._writes.labels(resource, outcome).inc()

    def count_row(self, resource: str, change: str) -> None:
        """Count a row of a database that was written: "insert", "update" or "delete"."""
        self.count_write(resource, "deleted" if change == "delete" else "written")

    def count_dropped_events(self, number: int) -> None:
        """Count notices of which no Event could be made."""
        self._events.inc(number)

    def render(self) -> bytes:
        return self._registry.render()
