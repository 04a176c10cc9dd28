"""Calls through the shim as a runtime makes them, their cost for the agent, and their time by stage.

Times of a stage are the agent's own (`base.stages`), read from its metrics after a call has ended, never while one
is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.node.agent import Agent, value_of
from tests.lab.node.node import Node
from tests.lab.switch.switch import wait_until
from userspace_cni.base.stages import STAGES

Seconds = dict[str, float]
"""Seconds by stage; `total` is the agent's time for a call, `count` the number of calls."""


class Shim:
    """Calls of the shim, or of another plugin, with the network on stdin from a file; number N is in the N-th sandbox."""

    namespace = ""
    """That of the pods; "" for pods of which only the UID is told."""
    interfaces = 1
    """Interfaces of each pod: so many calls with successive numbers are of one."""

    def __init__(
        self, node: Node, sandboxes: Sequence[str], directory: Path, network: Mapping[str, Any] | None = None, plugin: str = ""
    ) -> None:
        directory.mkdir(exist_ok=True)
        self._node = node
        self._sandboxes = sandboxes
        self._plugin = plugin or node.plugin
        self._stdin = directory / "network.json"
        self._stdin.write_text(json.dumps(network or node.network()))
        self._output = directory / "output"
        self._environ = node.variables("ADD")

    def spawn(self, command: str, number: int) -> int:
        pod, interface = divmod(number, self.interfaces)
        environ = self._environ | {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"{pod:012x}{'c' * 52}",
            "CNI_IFNAME": f"net{interface + 1}",
            "CNI_NETNS": self._sandboxes[pod % len(self._sandboxes)],
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_UID={self._uid(pod)}{self._named(pod)}",
        }
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, str(self._stdin), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{self._output}.{number % 1024}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        ]
        return os.posix_spawn(self._plugin, [self._plugin], environ, file_actions=actions)

    def prepare(self, numbers: range) -> None:
        """The pods' volumes, as the kubelet has made them before."""
        for number in numbers:
            self._node.empty_dir(self._uid(number // self.interfaces))

    @staticmethod
    def _uid(number: int) -> str:
        return f"7d1a2c00-0000-4000-8000-{number:012x}"

    def _named(self, number: int) -> str:
        return f";K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME=p{number}" if self.namespace else ""

    def reap(self, pid: int, number: int) -> float:
        """Wait for it; its processor seconds. AssertionError unless it succeeded."""
        _, status, used = os.wait4(pid, 0)
        assert status == 0, Path(f"{self._output}.{number % 1024}").read_text()
        return used.ru_utime + used.ru_stime

    def call(self, command: str, number: int) -> tuple[float, float]:
        """One call: wall and processor seconds of the shim."""
        self.prepare(range(number, number + 1))
        began = time.perf_counter()
        spent = self.reap(self.spawn(command, number), number)
        return time.perf_counter() - began, spent

    def burst(self, command: str, numbers: range) -> tuple[float, float]:
        """All at once: wall seconds until the last has ended, processor seconds of all shims."""
        self.prepare(numbers)
        began = time.perf_counter()
        pids = {self.spawn(command, number): number for number in numbers}
        spent = sum(self.reap(pid, number) for pid, number in pids.items())
        return time.perf_counter() - began, spent


class Spent:
    """What the agent has spent on calls: seconds by stage, and processor time."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def processor_s(self) -> float:
        """User and system seconds of all its threads so far, exact to the nanosecond."""
        return processor_s(self._agent.pid)

    def seconds(self, verb: str, count: float = 0.0) -> Seconds:
        """Sums since it started, of calls that succeeded, when it has counted so many of them."""

        def counted() -> Seconds | None:
            page = self._agent.get("/metrics")[1].decode()

            def value(name: str, stage: str) -> float:
                return value_of(page, f"userspace_cni_verb_seconds_{name}", verb=verb, stage=stage, outcome="ok")

            found = {"count": value("count", "total")}
            return found | {stage: value("sum", stage) for stage in ("total", *STAGES)} if found["count"] >= count else None

        seconds: Seconds = wait_until(counted, what=f"the agent to count {verb} {count:.0f}")
        return seconds


def processor_s(pid: int) -> float:
    """User and system seconds that a process has used so far, by its clock (CLOCK_PROCESS_CPUTIME_ID of another process)."""
    return time.clock_gettime((~pid << 3) | 2)


def memory_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


def milliseconds(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered) * 1000, 2), "p95": round(p95 * 1000, 2)}


def stages_of(calls: list[Seconds], walls: list[float]) -> dict[str, float]:
    """Median milliseconds of each stage over the calls, and of the rest: `other` in the agent, `way` outside it.

    A call may be the mean of several. Medians of parts do not add up to the median of the whole.
    """
    found: dict[str, list[float]] = {name: [call[name] for call in calls] for name in STAGES}
    found["other"] = [call["total"] - sum(call[name] for name in STAGES) for call in calls]
    found["way"] = [wall - call["total"] for wall, call in zip(walls, calls, strict=True)]
    found["wall"] = walls
    return {name: round(statistics.median(values) * 1000, 2) for name, values in found.items()}


def difference(before: Seconds, after: Seconds) -> Seconds:
    """Mean seconds of the calls between two readings."""
    count = after["count"] - before["count"]
    return {name: (after[name] - before[name]) / count for name in before if name != "count"}
