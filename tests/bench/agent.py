"""What a call costs through the shim and the agent, beside the least it could.

`python tests/bench/agent.py [--json] [--rounds N] [--ports 0,100,400] [--only PART,...]`, as root. Everything is measured in one
run on one private switch, in turns, and compared as ratios: the machine's own speed drifts between runs.

    status      spawn of the shim to its end, for a STATUS: no work but the way to the agent and back
    single      ADD and DEL through shim and agent; bare: one ovsdbapp transaction with read-back on an open session; record: one
                durable record of the size of an ADD's. The budget of an ADD is 1.5 bare + 3 records
    burst       so many ADDs at once; bare: one transaction with as many ports, awaited
    idle        processor time and memory of an agent with 400 ports and nothing to do
    scrape      one GET of /metrics, with so many attachments whose applications are connected as far as counters go: wall, and
                processor time of agent and ovsdb-server
    crowd       ADD and DEL while so many GETs of /metrics, of 100 attachments, are waiting: wall until each is done
    endurance   memory, threads, descriptors, files and rows before and after 10,000 ADDs and DELs
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from localdb import Store
from tests.bench.attach import BRIDGE, Bare, Samples, existing_ports, machine, settle
from tests.lab.agent import Agent, running
from tests.lab.node import Node, clean
from tests.lab.runtime import netns
from tests.lab.switch import Switch, wait_until
from userspace_cni import protocol

TIMED = ("status", "single", "burst", "crowd")
PARTS = ("status", "single", "burst", "idle", "scrape", "crowd", "endurance")
COUNTED = (
    *(f"{way}_{what}" for way in ("rx", "tx") for what in ("packets", "bytes", "dropped")),
    *(f"tx_q0_size_{size}_packets" for size in range(66)),
)
"""Columns of Interface.statistics of a port in use: as many as OVS 3.1 has, of which six are ours."""
CYCLES = 10_000
LANES = 8
REST_S = 12
REST_PAGE_S = 0.3
"""Between two scrapes: the page rests after each in proportion to its cost."""
TICKS = os.sysconf("SC_CLK_TCK")


class Shim:
    """Calls of the shim as a runtime makes them, with the network on stdin from a file."""

    def __init__(self, node: Node, sandbox: str, directory: Path) -> None:
        self._node = node
        self._sandbox = sandbox
        self._stdin = directory / "network.json"
        self._stdin.write_text(json.dumps(node.network()))
        self._output = directory / "output"
        self._environ = node.variables("ADD", sandbox)

    def spawn(self, command: str, number: int) -> int:
        """Begin a call; its process."""
        environ = self._environ | {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"{number:012x}{'c' * 52}",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_UID={self._uid(number)}",
        }
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, str(self._stdin), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{self._output}.{number % 1024}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        ]
        return os.posix_spawn(self._node.plugin, [self._node.plugin], environ, file_actions=actions)

    def _prepare(self, numbers: range) -> None:
        """The pods' volumes, as the kubelet has made them before."""
        for number in numbers:
            self._node.empty_dir(self._uid(number))

    @staticmethod
    def _uid(number: int) -> str:
        return f"7d1a2c00-0000-4000-8000-{number:012x}"

    def reap(self, pid: int, number: int) -> float:
        """Await it; its processor seconds. AssertionError unless it succeeded."""
        _, status, used = os.wait4(pid, 0)
        assert status == 0, Path(f"{self._output}.{number % 1024}").read_text()
        return used.ru_utime + used.ru_stime

    def call(self, command: str, number: int) -> tuple[float, float]:
        """One call: wall and processor seconds of the shim."""
        self._prepare(range(number, number + 1))
        began = time.perf_counter()
        spent = self.reap(self.spawn(command, number), number)
        return time.perf_counter() - began, spent

    def burst(self, command: str, numbers: range) -> tuple[float, float]:
        """All at once: wall seconds until the last has ended, processor seconds of all shims."""
        self._prepare(numbers)
        began = time.perf_counter()
        pids = {self.spawn(command, number): number for number in numbers}
        spent = sum(self.reap(pid, number) for pid, number in pids.items())
        return time.perf_counter() - began, spent


class Together(Bare):
    """Many ports in one transaction on a session that is open already."""

    def burst(self, count: int, tag: str) -> float:
        """So many ports in one commit, awaited until ovs-vswitchd has opened the last; wall seconds."""
        from ovsdbapp.backend.ovs_idl import idlutils

        names = {f"bare{tag}{number}" for number in range(count)}
        began = time.perf_counter()
        with self._api.transaction(check_error=True) as txn:
            for name in names:
                txn.add(self._command(self._api, name, f"{self._directory}/{name}"))
        left = set(names)
        while left:
            self._opened.wait(0.05)
            self._opened.clear()
            rows = (idlutils.row_by_value(self._api.idl, "Interface", "name", name, None) for name in list(left))
            left -= {row.name for row in rows if row is not None and row.ofport}
        return time.perf_counter() - began

    def clear(self, count: int, tag: str) -> None:
        """They go, in one commit."""
        with self._api.transaction(check_error=True) as txn:
            for number in range(count):
                txn.add(self._api.del_port(f"bare{tag}{number}", BRIDGE))


def processor_s(pid: int | str) -> float:
    """Processor seconds that a process, or a thread as `PID/task/TID`, has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


def milliseconds(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered) * 1000, 2), "p95": round(p95 * 1000, 2)}


def rest(switch: Switch) -> None:
    """Until ovs-vswitchd's main thread has nothing to do any more: after many deletions it is busy for seconds."""
    settle(switch)
    main = f"{switch.vswitchd_pid}/task/{switch.vswitchd_pid}"
    end, before = time.monotonic() + REST_S, processor_s(main)
    while time.monotonic() < end:
        threading.Event().wait(0.5)
        now = processor_s(main)
        if now - before <= 0.02:
            return
        before = now


def status(shim: Shim, rounds: int) -> dict[str, Any]:
    """STATUS, again and again."""
    taken = [shim.call("STATUS", 0) for _ in range(rounds + 5)][5:]
    return {"wall": milliseconds([wall for wall, _ in taken]), "shim cpu": milliseconds([cpu for _, cpu in taken])}


class Records:
    """Durable records as an ADD writes them, one after the other."""

    def __init__(self, node: Node) -> None:
        self._store = Store(node.directory / "bench-state", node.directory / "bench-locks")
        path = next((node.state / "attachments").iterdir())
        self._value = json.loads(path.read_bytes())["value"]

    def write(self) -> None:
        """One."""
        self._store.put("attachments", "bench@net1", self._value)


def single(node: Node, shim: Shim, rounds: int) -> dict[str, Any]:
    """ADD and DEL in turns with the bare transaction and one record."""
    assert node.switch
    bare = Bare(node.switch.ovsdb, node.directory)
    samples: dict[str, Samples] = {name: Samples() for name in ("bare", "ADD", "DEL", "record")}
    shim.call("ADD", 1_000_000)
    records = Records(node)
    for number in range(-2, rounds):
        works: dict[str, Callable[[], object]] = {
            "bare": partial(bare.add, number + 2),
            "bare DEL": partial(bare.delete, number + 2),
            "record": records.write,
            "ADD": partial(shim.call, "ADD", number + 2),
            "DEL": partial(shim.call, "DEL", number + 2),
        }
        for name, work in works.items():
            settle(node.switch)
            began = time.perf_counter()
            work()
            if number >= 0 and name in samples:
                samples[name].add(time.perf_counter() - began, 0.0)
    shim.call("DEL", 1_000_000)
    found: dict[str, Any] = {name: milliseconds(each.wall) for name, each in samples.items()}
    budget = 1.5 * found["bare"]["p50"] + 3 * found["record"]["p50"]
    return found | {"budget": round(budget, 2), "of budget": round(found["ADD"]["p50"] / budget, 2)}


def burst(node: Node, shim: Shim, agent: Agent, count: int, rounds: int) -> dict[str, Any]:
    """So many ADDs at once, in turns with one transaction of as many ports."""
    assert node.switch
    together = Together(node.switch.ovsdb, node.directory)
    walls: list[float] = []
    bares: list[float] = []
    spent: list[float] = []
    for number in range(-1, rounds):
        rest(node.switch)
        bare = together.burst(count, f"{number + 1}x")
        together.clear(count, f"{number + 1}x")
        rest(node.switch)
        before = processor_s(agent.pid)
        wall, cpu = shim.burst("ADD", range(count))
        cpu += processor_s(agent.pid) - before
        shim.burst("DEL", range(count))
        if number >= 0:
            walls.append(wall)
            bares.append(bare)
            spent.append(cpu)
    found = {"bare": milliseconds(bares), "ADD": milliseconds(walls), "cpu": milliseconds(spent)}
    return found | {"ratio": round(found["ADD"]["p50"] / found["bare"]["p50"], 2)}


@contextmanager
def attached(shim: Shim, count: int) -> Iterator[None]:
    """So many attachments of ours."""
    for start in range(0, count, 40):
        shim.burst("ADD", range(start, min(start + 40, count)))
    try:
        yield
    finally:
        for start in range(0, count, 40):
            shim.burst("DEL", range(start, min(start + 40, count)))


def idle(shim: Shim, agent: Agent, seconds: float) -> dict[str, Any]:
    """Nothing to do, with 400 attachments."""
    with attached(shim, 400):
        threading.Event().wait(5)
        before = processor_s(agent.pid)
        threading.Event().wait(seconds)
        used = processor_s(agent.pid) - before
        return {"seconds": seconds, "core percent": round(100 * used / seconds, 3), "resident MiB": memory_mib(agent.pid)}


@contextmanager
def counters(switch: Switch) -> Iterator[None]:
    """Every port of ours has counters, as if its application were connected; ovs-vswitchd would take them away again."""
    names = [name for name in switch.ports(BRIDGE) if not name.startswith("old")]
    switch.pause_vswitchd()
    try:
        values = [f"statistics:{key}=123456789" for key in COUNTED]
        for start in range(0, len(names), 40):
            commands = [word for name in names[start : start + 40] for word in ("--", "set", "Interface", name, *values)]
            switch.vsctl("--no-wait", *commands)
        yield
    finally:
        switch.resume_vswitchd()


def scrape(node: Node, shim: Shim, agent: Agent, counts: list[int], rounds: int) -> dict[str, Any]:
    """GET of /metrics at every count of attachments."""
    assert node.switch
    found = {}
    for count in counts:
        with existing_ports(node.switch, node.directory, 0), attached(shim, count), counters(node.switch):
            pids = agent.pid, node.switch.ovsdb_pid
            before, walls, size = [processor_s(pid) for pid in pids], [], 0
            for _ in range(rounds):
                threading.Event().wait(REST_PAGE_S)
                began = time.perf_counter()
                size = len(agent.get("/metrics")[1])
                walls.append(time.perf_counter() - began)
            spent = [round((processor_s(pid) - used) / rounds * 1000, 2) for pid, used in zip(pids, before, strict=True)]
            found[f"{count} ports"] = {
                **milliseconds(walls),
                "agent cpu": spent[0],
                "ovsdb-server cpu": spent[1],
                "KiB": round(size / 1024),
            }
    return found


@contextmanager
def waiting(agent: Agent, count: int) -> Iterator[None]:
    """So many scrapes that were asked for and are not answered yet; read by a thread as they come, and all of them at the end."""
    scrape = protocol.request_bytes("/metrics", {}, method="GET")
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(count):
            peer = stack.enter_context(socket.socket(socket.AF_UNIX))
            peer.connect(agent.socket)
            peer.sendall(scrape)
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ)

        def read() -> None:
            while selector.get_map():
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    if not key.fileobj.recv(1 << 20):
                        selector.unregister(key.fileobj)

        reader = threading.Thread(target=read)
        reader.start()
        yield
        reader.join()


def crowd(node: Node, shim: Shim, agent: Agent, rounds: int) -> dict[str, Any]:
    """One ADD and one DEL behind every number of scrapes."""
    assert node.switch
    found = {}
    with existing_ports(node.switch, node.directory, 0), attached(shim, 100):
        for count in (0, 300, 1000):
            walls: dict[str, list[float]] = {"ADD": [], "DEL": []}
            for _ in range(rounds):
                for verb, taken in walls.items():
                    rest(node.switch)
                    with waiting(agent, count):
                        taken.append(shim.call(verb, 1_000_000)[0])
            found[f"{count} scrapes"] = {verb: milliseconds(taken) for verb, taken in walls.items()}
    return found


def standing(node: Node, agent: Agent) -> dict[str, float]:
    """What could grow."""
    assert node.switch
    proc = Path(f"/proc/{agent.pid}")
    return {
        "resident MiB": memory_mib(agent.pid),
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "files": sum(1 for path in node.directory.rglob("*") if path.is_file() and "output" not in path.name),
        "rows": len(node.switch.rows("Interface")) + len(node.switch.rows("Port")) + len(node.switch.rows("Bridge")),
        "mounts": Path("/proc/self/mountinfo").read_text().count(str(node.directory)),
    }


def endurance(node: Node, shim: Shim, agent: Agent, cycles: int) -> dict[str, Any]:
    """Attach and detach, in lanes; what stands before, after a tenth, and after all."""

    def lanes(first: int, last: int, tick: Callable[[], object]) -> None:
        for _ in range(first, last, LANES):
            numbers = range(LANES)
            shim.burst("ADD", numbers)
            shim.burst("DEL", numbers)
            tick()

    found = {"before": standing(node, agent)}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("endurance", total=cycles // LANES)
        lanes(0, cycles // 10, lambda: progress.advance(task))
        found["a tenth"] = standing(node, agent)
        lanes(cycles // 10, cycles, lambda: progress.advance(task))
    wait_until(lambda: agent.metric("userspace_cni_workers_busy") <= 1, what="the agent to rest")
    found["all"] = standing(node, agent)
    return found | {"cycles": {"count": cycles}}


def measure(node: Node, sandbox: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The parts that were asked for."""
    assert node.switch
    parts = options.only.split(",")
    counts = [int(count) for count in options.ports.split(",")]
    report: dict[str, Any] = {"machine": machine(), "rounds": options.rounds}
    with running(node, USERSPACE_CNI_TICK_S="30") as agent:
        shim = Shim(node, sandbox, directory)
        if "status" in parts:
            with existing_ports(node.switch, node.directory, 0):
                report["status"] = status(shim, 10 * options.rounds)
        for count in counts if {"single", "burst"} & set(parts) else []:
            with existing_ports(node.switch, node.directory, count):
                if "single" in parts:
                    report.setdefault("single", {})[count] = single(node, shim, options.rounds)
                if "burst" in parts:
                    for size in (40, 200):
                        rounds = max(3, options.rounds // 6)
                        report.setdefault("burst", {})[f"{size} at {count}"] = burst(node, shim, agent, size, rounds)
        if "idle" in parts:
            with existing_ports(node.switch, node.directory, 0):
                report["idle"] = idle(shim, agent, options.seconds)
        if "scrape" in parts:
            report["scrape"] = scrape(node, shim, agent, counts, 3 * options.rounds)
        if "crowd" in parts:
            report["crowd"] = crowd(node, shim, agent, max(3, options.rounds // 3))
        if "endurance" in parts:
            with existing_ports(node.switch, node.directory, 0):
                report["endurance"] = endurance(node, shim, agent, options.cycles)
    return report


def show(report: Mapping[str, Any]) -> None:
    """The report for people: one table per part."""
    console = Console(width=140)
    for part in PARTS:
        found = report.get(part)
        if not found:
            continue
        rows = found if all(isinstance(value, dict) for value in found.values()) else {"": found}
        columns = list(dict.fromkeys(name for row in rows.values() for name in row))
        table = Table(title=f"{part}{' (ms, p50 / p95)' if part in TIMED else ''}", title_justify="left")
        for column in ("", *columns):
            table.add_column(column, justify="right")
        for name, row in rows.items():
            cells = (row.get(column, "") for column in columns)
            table.add_row(str(name), *(" / ".join(map(str, c.values())) if isinstance(c, dict) else str(c) for c in cells))
        console.print(table)
    console.print(report["machine"])


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ports", default="0,100,400", help="counts of existing ports")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to measure, of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to look at the idle agent")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="ADDs and DELs of the endurance part")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        locks = stack.enter_context(TemporaryDirectory(prefix="uc-", dir="/dev/shm"))  # in memory, as /run is
        node = stack.enter_context(clean(Node(directory / "n", switch, {"USERSPACE_CNI_RUN_DIR": locks})))
        sandbox = stack.enter_context(netns())
        report = measure(node, sandbox, directory, options)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
