"""How the lab reads the agent's metrics: a missing metric does not count as zero."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.lab.node.agent import value_of


@pytest.fixture
def exposition() -> str:
    """The metrics of a program with a gauge, and a counter and a histogram without any event."""
    registry = CollectorRegistry()
    gauge = Gauge("ports", "Ports", ("bridge", "kind"), registry=registry)
    gauge.labels("br0", "veth").set(2)
    gauge.labels("br1", "veth").set(3)
    Counter("calls", "Calls", ("verb",), registry=registry)
    Histogram("seconds", "Seconds", ("verb",), registry=registry)
    return generate_latest(registry).decode() + "bare 4\n"


def test_series_are_summed(exposition: str) -> None:
    """Those that have the labels, in any order, also of a metric without a line about it."""
    assert value_of(exposition, "ports") == 5
    assert value_of(exposition, "ports", kind="veth", bridge="br1") == 3
    assert value_of(exposition, "bare") == 4


@pytest.mark.parametrize("name", ["calls_total", "seconds_bucket", "seconds_count", "seconds_sum", "ports"])
def test_a_metric_without_such_a_series(exposition: str, name: str) -> None:
    """It is 0: nothing with these labels has happened."""
    assert value_of(exposition, name, verb="ADD") == 0


@pytest.mark.parametrize("name", ["port", "calls", "seconds", "ports_total", "ports_count", "calls_total_sum"])
def test_a_metric_that_is_not_there(exposition: str, name: str) -> None:
    """It is an error that names it, with labels and without."""
    with pytest.raises(AssertionError, match=f"there is no metric {name}$"):
        value_of(exposition, name)
    with pytest.raises(AssertionError, match=name):
        value_of(exposition, name, verb="ADD")
