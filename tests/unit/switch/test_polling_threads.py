"""What ovs-vswitchd says of its polling threads, as three releases of Open vSwitch said it under load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.polling import PolledQueue, PollingReading, PollingThread, shares_by_port
from userspace_cni.switch.polling_threads import parse_polling_threads

RECORDED = Path(__file__).parents[2] / "recordings" / "polling-threads"
RELEASES = ("3.1", "3.5", "4.0")
COMMANDS = ("perf", "rxq", "stats")


def recorded(release: str) -> list[str]:
    """The answers to the three commands."""
    return [(RECORDED / f"ovs-{release}-pmd-{command}-show.txt").read_text() for command in COMMANDS]


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_is_read(release: str) -> None:
    """Each polling thread is read, with its core, NUMA node, iterations, cycles, sleep, frames and queues."""
    reading = parse_polling_threads(*recorded(release))
    assert reading.period_s == 5
    assert [(each.core, each.numa, each.isolated) for each in reading.threads] == [(0, 0, False), (1, 0, False)]
    for number, thread in enumerate(reading.threads):
        [queue] = thread.queues
        assert queue.port.startswith("probe-")
        assert queue.port.endswith(f"-{number}")
        assert (queue.number, queue.enabled) == (0, True)
        assert queue.share is not None
        assert 1 <= queue.share <= 3
        assert thread.overhead == 0
        assert 10 < thread.slept_s < thread.seconds < 15
        assert thread.iterations == thread.busy_iterations + thread.idle_iterations
        assert min(thread.busy_iterations, thread.idle_iterations, thread.sleep_iterations) > 100_000
        assert min(thread.packets_received, thread.packets_sent) > 3_000_000
        assert thread.busy_cycles > 3 * thread.idle_cycles > 0
        assert thread.exact == (release != "4.0")
        assert thread.recent_load == queue.share / 100
        load = thread.load
        assert load is not None
        assert 0.015 < load < 0.17


def test_figures_of_a_thread() -> None:
    """The figures are those of the text: cycles as they were counted, where the release says them."""
    first = parse_polling_threads(*recorded("3.1")).threads[0]
    assert (first.iterations, first.busy_iterations, first.sleep_iterations) == (635809, 167828, 467982)
    assert (first.busy_cycles, first.idle_cycles) == (1020531485, 125179950)
    assert (first.packets_received, first.packets_sent) == (5370465, 5370465)
    assert (first.seconds, first.slept_s) == (12.898, 10.984832)
    newest = parse_polling_threads(*recorded("4.0")).threads[0]
    assert newest.busy_cycles == round(945460784 * 0.831)
    assert newest.busy_cycles + newest.idle_cycles == 945460784


def test_queues_of_several_ports() -> None:
    """Isolated threads, queues that the other end does not use, and shares that are not known yet, are told as such."""
    text = """Displaying last 60 seconds pmd usage %
pmd thread numa_id -1 core_id 3:
  isolated : true
  port: dpdk0             queue-id:  0 (enabled)   pmd usage: 61 %
  port: dpdk0             queue-id:  1 (disabled)  pmd usage:  4 %
  port: 0123456789a-net1  queue-id: 12 (enabled)   pmd usage: NOT AVAIL
  a line of a later release: 7
  overhead: NOT AVAIL
pmd thread numa_id 1 core_id 9:
  isolated : false
  port: dpdk0             queue-id:  2 (enabled)   pmd usage:  9 %
  overhead:  2 %
"""
    reading = parse_polling_threads("", text, "")
    queues = (
        PolledQueue("dpdk0", 0, True, 61),
        PolledQueue("dpdk0", 1, False, 4),
        PolledQueue("0123456789a-net1", 12, True, None),
    )
    other = PollingThread(9, 1, overhead=2, queues=(PolledQueue("dpdk0", 2, True, 9),))
    assert reading == PollingReading((PollingThread(3, -1, isolated=True, queues=queues), other), 60)
    assert (reading.threads[0].recent_load, other.recent_load, other.load) == (None, 0.11, None)
    assert shares_by_port(reading.threads) == {"dpdk0": {3: 65, 9: 9}, "0123456789a-net1": {3: None}}


def test_load_between_two_readings() -> None:
    """A thread that worked half of what it was awake, and slept half of the time, has a load of a quarter; a reading that began
    anew, and one of a release without counted cycles, give none."""
    first = PollingThread(1, 0, seconds=10, busy_cycles=1000, idle_cycles=0, exact=True)
    second = replace(first, seconds=12, busy_cycles=1500, idle_cycles=500, slept_s=1.0)
    assert second.load_since(first) == 0.25
    assert first.load_since(second) is None
    assert first.load_since(first) is None
    assert replace(second, exact=False).load_since(first) is None


@pytest.mark.parametrize("text", ["", "x" * 100, "pmd thread numa_id 0 core_id 1"])
def test_other_texts(text: str) -> None:
    """A text without a thread has no threads."""
    assert parse_polling_threads(text, text, text) == PollingReading((), 0)


def test_a_text_without_end() -> None:
    """An answer that is larger than any switch's is refused, and names the command."""
    with pytest.raises(SwitchRefused, match="dpif-netdev/pmd-rxq-show: its answer has 8388609 characters"):
        parse_polling_threads("", "x" * (8 << 20 | 1), "")
