"""The metrics of a process in Prometheus' text form: a registry in which agent and controller declare their series.

Only this module knows prometheus_client. It uses a registry of its own, without the library's default series, and imports the
library when a registry is made: a process that serves one verb counts nothing and must not pay for the import. `exposition`
writes the series that grow with the ports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from userspace_cni.base.exposition import family, labels
from userspace_cni.base.log import say

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "userspace_cni_"
"""Begins the names of all series but the process's (`process_…`). Methods take names without it."""

T = TypeVar("T")


class Registry:
    """The series of one process. Its methods, and what they return, may be used from any thread."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauges: dict[str, tuple[str, Callable[[], float | None]]] = {}
        self._constants: list[str] = []
        self._failing: set[str] = set()

    def counter(self, name: str, text: str, *labelled: str) -> Counter:
        """Declare a count of events; `_total` is added to its name."""
        from prometheus_client import Counter

        return Counter(PREFIX + name, text, labelled, registry=self._registry)

    def histogram(self, name: str, text: str, *labelled: str, buckets: Sequence[float]) -> Histogram:
        """Declare a histogram: how many values were at most as large as each of `buckets`, and their sum."""
        from prometheus_client import Histogram

        return Histogram(PREFIX + name, text, labelled, buckets=buckets, registry=self._registry)

    def constant(self, name: str, text: str, **values: str) -> None:
        """Add a series that is always 1 and has facts in its labels."""
        self._constants.append(family(PREFIX + name, "gauge", text, [(labels(values), 1)]))

    def gauge(self, name: str, text: str, look: Callable[[], float | None]) -> None:
        """Add a number that `look` gives at each scrape, a bool as 1 or 0; it is left out while `look` fails, or does not know it
        and gives None."""
        self._gauges[name] = text, look

    def ask(self, name: str, look: Callable[[], T]) -> T | None:
        """Return what `look` gives, None when it fails. A failure is logged once, as the metric `name`, until it works again."""
        try:
            value = look()
        except Exception as error:  # noqa: BLE001 -- whatever it is, the other numbers are wanted all the more
            if name not in self._failing:
                say("warning", "a metric cannot be read", metric=name, error=error)
            self._failing.add(name)
            return None
        self._failing.discard(name)
        return value

    def render(self) -> bytes:
        """Return all series, as CONTENT_TYPE."""
        from prometheus_client import generate_latest

        asked = [(name, text, self.ask(name, look)) for name, (text, look) in self._gauges.items()]
        gauges = [family(PREFIX + name, "gauge", text, [("", +value)]) for name, text, value in asked if value is not None]
        return generate_latest(self._registry) + "".join((*self._constants, *gauges)).encode(errors="replace")
