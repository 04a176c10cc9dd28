"""The registry in which rooms declare their metrics: it costs no import where nothing is counted, and can always be read."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from userspace_cni.base.metrics import Registry


def samples(registry: Registry) -> dict[str, float]:
    """The samples of ours by name and labels, as Prometheus reads them."""
    families = text_string_to_metric_families(registry.render().decode())
    found = {f"{each.name}{each.labels or ''}": each.value for family in families for each in family.samples}
    return {name.removeprefix("userspace_cni_"): value for name, value in found.items() if name.startswith("userspace_cni_")}


def test_importing_it_imports_no_library() -> None:
    """Processes that serve one verb import rooms with metrics: the library is imported only when a registry is made."""
    code = "import sys, userspace_cni.base.metrics as m; print('prometheus_client' in sys.modules, bool(m.Registry().render()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False True\n"


def test_every_kind_of_series() -> None:
    """Counters, histograms, constants and numbers that are read at a scrape have our prefix."""
    registry = Registry()
    registry.counter("events", "Events", "kind").labels("new").inc()
    registry.histogram("sizes", "Sizes", buckets=(1, 10)).observe(7)
    registry.constant("about", "Always 1", version='1"\n2')
    registry.gauge("waiting", "Things that wait", lambda: 2.5)
    found = {name: value for name, value in samples(registry).items() if "_created" not in name}
    assert found == {
        "events_total{'kind': 'new'}": 1,
        "sizes_bucket{'le': '1.0'}": 0,
        "sizes_bucket{'le': '10.0'}": 1,
        "sizes_bucket{'le': '+Inf'}": 1,
        "sizes_count": 1,
        "sizes_sum": 7,
        "about{'version': '1\"\\n2'}": 1,
        "waiting": 2.5,
    }


def test_what_cannot_be_looked_up_is_left_out() -> None:
    """A number whose function fails is missing from the scrape, and is back when it works again."""
    registry, seen = Registry(), [1.0]
    registry.gauge("broken", "Breaks", lambda: seen[0])
    registry.gauge("whole", "Stays", lambda: 3)
    assert samples(registry) == {"broken": 1, "whole": 3}
    seen.clear()
    assert samples(registry) == {"whole": 3}
    seen.append(2.0)
    assert samples(registry) == {"broken": 2, "whole": 3}
