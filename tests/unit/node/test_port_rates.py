"""What ports carry per second, from two readings of their counters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.node.port_rates import UNKNOWN, CountersReading, RateMeter, TrafficRates, compare, total

NAMES = ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped")


def counted(number: int) -> dict[str, int]:
    """Counters of a vhost-user port, which counts no errors."""
    return dict.fromkeys(NAMES, number)


def of_database(at: float, number: int) -> CountersReading:
    return CountersReading(at, {"a": counted(number)}, "p", of_now=False, written_s=5.0)


def test_rates_are_those_of_the_pod() -> None:
    """What the switch sends goes to the pod; bytes are bits; an absent counter gives no rate."""
    before, now = counted(100) | {"rx_errors": 0, "tx_errors": 1}, counted(300) | {"rx_errors": 4, "tx_errors": 1}
    now["tx_packets"], now["tx_bytes"] = 200, 600
    assert compare(before, now, 2.0) == TrafficRates(50.0, 100.0, 2000.0, 800.0, 100.0, 100.0, 2.0)
    assert compare({"rx_packets": 1}, {"rx_packets": 3}, 1.0) == TrafficRates(frames_from_pod=2.0)
    assert TrafficRates(1.0, 2.0, None, 4.0).frames == 3.0
    assert TrafficRates(1.0, 2.0, None, 4.0).bits == 4.0
    assert UNKNOWN.drops is None


def test_only_readings_of_one_daemon_are_compared() -> None:
    """There is no rate after the first reading, of a new port, after a restart, or where counters began anew."""
    meter = RateMeter()
    assert meter.take(CountersReading(10.0, {"a": counted(5)}, "p")) == {"a": UNKNOWN}
    assert meter.seconds == 0
    found = meter.take(CountersReading(12.0, {"a": counted(25), "b": counted(9)}, "p"))
    assert (found["a"].frames_to_pod, found["b"], meter.seconds) == (10.0, UNKNOWN, 2.0)
    found = meter.take(CountersReading(13.0, {"a": counted(3), "b": counted(10)}, "p"))
    assert (found["a"], found["b"].frames_to_pod) == (UNKNOWN, 1.0)
    assert meter.take(CountersReading(14.0, {"b": counted(11)}, "p"))["b"].frames_to_pod == 1.0
    assert meter.take(CountersReading(15.0, {"b": counted(99)}, "another")) == {"b": UNKNOWN}
    meter.lose()
    assert meter.take(CountersReading(16.0, {"b": counted(100)}, "another")) == {"b": UNKNOWN}


def test_a_look_soon_after_another_keeps_its_rates() -> None:
    """Readings that are too close to each other are not compared: the next rate is over the whole time."""
    meter = RateMeter()
    meter.take(CountersReading(0.0, {"a": counted(0)}))
    assert meter.take(CountersReading(1.0, {"a": counted(10)}))["a"].frames_to_pod == 10.0
    assert meter.take(CountersReading(1.1, {"a": counted(10)}))["a"].frames_to_pod == 10.0
    assert meter.take(CountersReading(2.0, {"a": counted(30)}))["a"].frames_to_pod == 20.0


def test_counters_of_the_database_change_when_they_are_written() -> None:
    """Between two writes the rate stays; it is over the time between writes, however often they are read."""
    meter = RateMeter()
    meter.take(of_database(0.0, 100))
    assert [meter.take(of_database(float(at), 100))["a"].frames_to_pod for at in (1, 2, 3)] == [None] * 3
    rates = [meter.take(of_database(float(at), 600))["a"].frames_to_pod for at in range(4, 9)]
    assert rates == [100.0] * 5
    assert meter.seconds == 5.0
    assert meter.take(of_database(9.0, 1600))["a"].frames_to_pod == 200.0
    assert meter.take(of_database(19.2, 3600))["a"].frames_to_pod == 200.0
    idle = [meter.take(of_database(19.2 + at, 3600))["a"].frames_to_pod for at in (6, 12, 13)]
    assert idle == [200.0, 200.0, 0.0]


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=20))
def test_rates_sum_up_to_what_was_counted(increments: list[int]) -> None:
    """The rates of equal times add up to all that was counted, and none is negative."""
    meter, at, number, seen = RateMeter(), 0.0, 0, 0.0
    meter.take(CountersReading(at, {"a": counted(0)}))
    for increment in increments:
        at, number = at + 1.0, number + increment
        rate = meter.take(CountersReading(at, {"a": counted(number)}))["a"].frames_from_pod
        assert rate is not None
        assert rate >= 0
        seen += rate
    assert seen == number


def test_a_sum_leaves_out_what_is_not_known() -> None:
    """The sum of what ports carry has what any of them counts."""
    assert total([TrafficRates(frames_to_pod=1.0), UNKNOWN, TrafficRates(2.0, 5.0)]) == TrafficRates(3.0, 5.0)
    assert total([]) == UNKNOWN
