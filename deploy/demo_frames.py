"""The demo's frames: an application in each of two pods, and a meter of what passes between them.

Nothing here promises a time: on a busy machine frames stand still for a moment, and the meter tells for how long.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from deploy.demo_node import APP_MIB, BRIDGE, WAIT_S, Demo, DemoFailed, Pod, check, execute, in_pod, raise_if_stopped, wait_for

PERIOD_S = 0.5  # between two readings of the counters
LOOKS = 4
"""Fewest readings with new frames in each phase."""
STILL = 3
"""As many readings that are alike show that no frame is on its way."""


@contextmanager
def testpmd(pod: Pod, eal: str) -> Iterator[subprocess.Popen[str]]:
    """DPDK's own test application in the pod. Both of its threads share a core: the demo has two, one is the switch's."""
    argv = [*in_pod(pod), "dpdk-testpmd", "--lcores=0@0,1@0", "--no-pci", "-m", str(APP_MIB), *eal.split()]
    argv += ["--", "--interactive", "--total-num-mbufs=4096", "--no-mlockall", "--port-topology=loop", "--forward-mode=macswap"]
    pipe = subprocess.PIPE
    raise_if_stopped()
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, process_group=0) as process:
        try:
            yield process
        finally:
            process.kill()


def type_into(process: subprocess.Popen[str], *commands: str) -> None:
    """Type commands into testpmd."""
    assert process.stdin
    try:
        process.stdin.write("".join(f"{command}\n" for command in commands))
        process.stdin.flush()
    except OSError as error:
        raise DemoFailed(f"testpmd has ended by itself: {process.communicate()[0][-1500:]}") from error


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    """End testpmd, and read its accumulated counters: RX-packets, TX-packets."""
    try:
        output, _ = process.communicate("quit\n", timeout=WAIT_S)
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"testpmd was still there {WAIT_S:.0f} s after it was told to quit") from error
    counters = {name: int(value) for name, value in re.findall(r"(RX-packets|TX-packets): (\d+)", output)}
    check(process.returncode == 0 and counters, f"testpmd ended with {process.returncode}: {output[-1500:]}")
    return counters


def port_number(demo: Demo, pod: Pod) -> str:
    """The OpenFlow number of the pod's port."""
    return demo.vsctl("get", "Interface", pod.port, "ofport")


def switch_counters(demo: Demo, number: str) -> dict[str, int]:
    """Frames that the switch took from (rx) and gave to (tx) a port, from the switch itself: its database lags by 5 s."""
    done = execute(["ovs-ofctl", "dump-ports", f"unix:{demo.directory}/ovs/{BRIDGE}.mgmt", number])
    found = {key: int(value) for key, value in re.findall(r"(rx|tx) pkts=(\d+)", done.stdout)}
    check(len(found) == 2, f"the switch counts nothing at port {number}; has its application ended? {done.stderr}{done.stdout}")
    return found


def settle(demo: Demo, pods: list[Pod]) -> list[dict[str, int]]:
    """Wait until the counters of the pods' ports stand still, and return them."""
    last: list[list[dict[str, int]]] = []

    def stand_still() -> bool:
        time.sleep(PERIOD_S)  # over which they are compared
        last.append([switch_counters(demo, port_number(demo, each)) for each in pods])
        return len(last) >= STILL and all(each == last[-1] for each in last[-STILL:])

    wait_for(stand_still, "the last frames to arrive")
    return last[-1]


@dataclass(frozen=True)
class Look:
    """A reading of the counters: when it was, monotonic seconds, and how many frames the switch had taken from each pod."""

    when: float
    counted: list[int]


class Meter:
    """Reads all the time how many frames the switch takes from the pods, on a thread of its own; `mark` begins a phase."""

    def __init__(self, demo: Demo, pods: list[Pod]) -> None:
        self._demo = demo
        self._ports = [port_number(demo, pod) for pod in pods]
        self._looks: list[Look] = []
        self._marks: list[tuple[str, Look]] = []
        self._failure: DemoFailed | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def mark(self, phase: str) -> None:
        """End the current phase, and begin this one."""
        self._marks.append((phase, self._look()))

    def watch(self) -> None:
        """Wait until frames of each pod were seen anew LOOKS times in this phase. Raises DemoFailed when they stand still."""
        began = self._marks[-1][1]

        def seen() -> bool:
            if self._failure:
                raise self._failure
            inside = [began, *(look for look in list(self._looks) if look.when > began.when)]
            return len(list(advances(inside))) >= LOOKS

        wait_for(seen, "frames of both pods that pass")

    def phases(self) -> Iterator[tuple[str, float, list[int], float]]:
        """Yield of each phase: name, seconds, frames taken from each pod, and the longest time, in seconds, between two readings
        of which the later one had new frames of each pod."""
        for (name, first), (_, last) in pairwise(self._marks):
            inside = [first, *(look for look in self._looks if first.when < look.when < last.when), last]
            yield name, last.when - first.when, risen(first.counted, last.counted), longest_pause(inside)

    def _look(self) -> Look:
        return Look(time.monotonic(), [switch_counters(self._demo, number)["rx"] for number in self._ports])

    def _watch(self) -> None:
        try:
            while not self._ending.wait(PERIOD_S):
                self._looks.append(self._look())
        except DemoFailed as failure:
            self._failure = failure


def advances(looks: list[Look]) -> Iterator[tuple[Look, Look]]:
    """Yield each reading since which every pod has sent, from the first one on, and the next one that shows it."""
    before = looks[0]
    for look in looks[1:]:
        if all(risen(before.counted, look.counted)):
            yield before, look
            before = look


def longest_pause(looks: list[Look]) -> float:
    """The longest time, in seconds, for which one of the pods may have sent nothing, as far as readings tell."""
    pauses = [(before.when, after.when) for before, after in advances(looks)]
    open_since = pauses[-1][1] if pauses else looks[0].when
    return max([after - before for before, after in pauses] + [looks[-1].when - open_since])


def risen(before: list[int], after: list[int]) -> list[int]:
    """Return how much each number has risen."""
    return [last - first for first, last in zip(before, after, strict=True)]
