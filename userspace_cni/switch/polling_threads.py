"""Asks ovs-vswitchd what its polling threads (PMD threads) do: three commands of ovs-appctl, whose text is read here.

The text is for people, and each release changes it: lines that are not known are passed over, and what a release does not say has
its default. It must never read more than `_TEXT_MAX`, and reads that in linear time: hundreds of ports with many queues each are
some hundred kilobytes. Source: dpif-netdev-perf.c and dpif-netdev.c of Open vSwitch 3.1 to 4.0, ovs-vswitchd(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.polling import PolledQueue, PollingReading, PollingThread
from userspace_cni.switch.vswitchd import Daemon

_TEXT_MAX: Final = 8 << 20
"""Characters of an answer."""
_PERIODS: Final = (5, 60)
"""Seconds for which ovs-vswitchd can say the shares of queues: the shortest, and its default."""
_NO_DATAPATH: Final = "existing datapath"
"""In its refusal while no bridge has the userspace datapath."""
_THREAD: Final = re.compile(r"(?m)^pmd thread numa_id (-?[0-9]{1,9}) core_id ([0-9]{1,9}):$|^main thread:$")
_PERIOD: Final = re.compile(r"(?m)^Displaying last ([0-9]{1,6}) seconds")
_DURATION: Final = re.compile(r"(?m)^Measurement duration: ([0-9]{1,12}(?:\.[0-9]{1,6})?) s$")
_QUEUE: Final = re.compile(
    r"(?m)^ +port: (\S+) +queue-id: +([0-9]{1,6}) \((en|dis)abled\) +pmd usage: +(?:([0-9]{1,3}) %|NOT AVAIL)"
)
_FIGURE: Final = re.compile(r"(?m)^ *(?:- )?([A-Za-z][A-Za-z ()]{0,40}): +([0-9]{1,20})\b(?: +\( *([0-9]{1,3}\.[0-9]) %)?")
_Key = tuple[int, int]
_Facts = dict[str, Any]


def read_polling_threads(daemon: Daemon, deadline: Deadline, *, lately: bool = False) -> PollingReading:
    """The threads of the userspace datapath. `lately`: shares of queues of the last 5 s, else of the last minute.

    Raises Unavailable without an answer by the deadline, SwitchRefused for ovs-vswitchd's own error.
    """
    period = str(_PERIODS[0 if lately else 1])
    asked = (("pmd-perf-show", "-nh"), ("pmd-rxq-show", "-secs", period), ("pmd-stats-show",))
    try:
        answers = [daemon.run_command(f"dpif-netdev/{method}", *options, deadline=deadline) for method, *options in asked]
    except SwitchRefused as error:
        if _NO_DATAPATH in error.message:
            return PollingReading((), 0)
        raise
    return parse_polling_threads(*answers)


def parse_polling_threads(performance: str, queues: str, statistics: str) -> PollingReading:
    """The answers to pmd-perf-show, pmd-rxq-show and pmd-stats-show. A thread is in it that one of the first two names."""
    for name, text in (("pmd-perf-show", performance), ("pmd-rxq-show", queues), ("pmd-stats-show", statistics)):
        if len(text) > _TEXT_MAX:
            raise SwitchRefused(
                f"ovs-vswitchd, dpif-netdev/{name}: its answer has {len(text)} characters", f"{_TEXT_MAX} at most"
            )
    found: dict[_Key, _Facts] = {}
    for key, before, text in _sections(performance):
        found.setdefault(key, {}).update(_performance(text), seconds=_last_duration(before))
    for key, _, text in _sections(queues):
        found.setdefault(key, {}).update(_queues(text))
    for key, _, text in _sections(statistics):
        figures = {name: int(number) for name, number, _ in _FIGURE.findall(text)}
        if key in found and {"idle cycles", "processing cycles"} <= figures.keys():
            found[key].update(idle_cycles=figures["idle cycles"], busy_cycles=figures["processing cycles"], exact=True)
    period = _PERIOD.search(queues)
    threads = tuple(PollingThread(core=core, numa=numa, **found[numa, core]) for numa, core in sorted(found))
    return PollingReading(threads, int(period[1]) if period else 0)


def _sections(text: str) -> Iterator[tuple[_Key, str, str]]:
    """NUMA node and core of each polling thread, with the text before its heading, back to the last one, and after it."""
    heads = list(_THREAD.finditer(text))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(text)
        begin = heads[number - 1].end() if number else 0
        if head[1] is not None:
            yield (int(head[1]), int(head[2])), text[begin : head.start()], text[head.end() : end]


def _last_duration(text: str) -> float:
    found = _DURATION.findall(text)
    return float(found[-1]) if found else 0.0


def _performance(text: str) -> _Facts:
    figures = {name: (int(number), float(share or 0)) for name, number, share in _FIGURE.findall(text)}

    def of(name: str) -> int:
        return figures.get(name, (0, 0.0))[0]

    used = of("Used TSC cycles")
    busy = round(used * figures.get("busy iterations", (0, 0.0))[1] / 100)
    return {
        "iterations": of("Iterations"),
        "busy_iterations": of("busy iterations"),
        "sleep_iterations": of("sleep iterations"),
        "slept_s": of("Sleep time (us)") / 1e6,
        "busy_cycles": busy,
        "idle_cycles": used - busy,
        "packets_received": of("Rx packets"),
        "packets_sent": of("Tx packets"),
    }


def _queues(text: str) -> _Facts:
    overhead = re.search(r"(?m)^ +overhead: +([0-9]{1,3}) %", text)
    return {
        "isolated": re.search(r"(?m)^ +isolated *: *true", text) is not None,
        "overhead": int(overhead[1]) if overhead else None,
        "queues": tuple(
            PolledQueue(port, int(number), enabled == "en", int(share) if share else None)
            for port, number, enabled, share in _QUEUE.findall(text)
        ),
    }
