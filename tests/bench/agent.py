"""What a call costs through the shim and the agent, beside the least it could.

`python tests/bench/agent.py [--json] [--rounds N] [--ports 0,100,400] [--only PART,...]`, as root. Everything is measured in one
run on one private switch, in turns, and compared as ratios: the machine's own speed drifts between runs. One question is answered
in less than a minute: `--only resting --ports 0 --rounds 30`.

    status          spawn of the shim to its end, for a STATUS: no work but the way to the agent and back
    resting         ADD and DEL through shim and agent, each after 80 ms in which nothing happens, beside bare: one transaction
                    of ovsdbapp on an open session, for ADD until ovs-vswitchd has opened the port, for DEL until it says that
                    it is done (cur_cfg); and the same by hand, without any library. With the agent's processor time per call,
                    and where the call's time went by stage
    back-to-back    the same without the rest
    burst           so many ADDs at once; bare: one transaction with as many ports, awaited
    pod             eight interfaces of one pod at once, beside one interface, and eight pods with one each
    least           the least that Python takes for what an ADD leaves (`least_python`), in processor time per ADD
    idle            processor time and memory of an agent with 400 ports and nothing to do
    scrape          one GET of /metrics, with so many attachments whose applications are connected, on the agent's socket and
                    over TCP: wall, and processor time of agent, ovsdb-server and ovs-vswitchd's main thread
    crowd           ADD and DEL while so many GETs of /metrics, of 100 attachments, are waiting: wall until each is done
    endurance       memory, threads, descriptors, files and rows before and after 10,000 ADDs and DELs

Milliseconds. Stages are the agent's (`userspace_cni.base.stages`), medians over the calls; `other` is what the agent spent beside
them, `way` what the caller saw beside the agent: start of the binary, socket, answer.
"""

from __future__ import annotations

import argparse
import http.client
import os
import resource
import selectors
import socket
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

from tests.bench.attach import BRIDGE, existing_ports
from tests.bench.calls import Shim, Spent, memory_mib, milliseconds, processor_s
from tests.bench.floor import Floor
from tests.bench.latency import burst, calm, of_one_pod, single
from tests.bench.least_python import least
from tests.bench.report import arguments, machine, tell
from tests.lab.node.agent import Agent, running
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.cni import protocol
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions

PARTS = ("status", "resting", "back-to-back", "burst", "pod", "least", "idle", "scrape", "crowd", "endurance")
BURSTS = (40, 200)
CYCLES = 10_000
LANES = 8
INTERFACES = 8
APPLICATIONS_S = 120.0
METRICS = "127.0.0.1:19117"
TICK_S = 30
REST_PAGE_S = 0.3
"""The pause between two scrapes: after each the page rests in proportion to its cost."""


def status(shim: Shim, rounds: int) -> dict[str, Any]:
    taken = [shim.call("STATUS", 0) for _ in range(rounds + 5)][5:]
    return {"wall": milliseconds([wall for wall, _ in taken]), "shim cpu": milliseconds([cpu for _, cpu in taken])}


@contextmanager
def attached(shim: Shim, count: int) -> Iterator[None]:
    for start in range(0, count, 40):
        shim.burst("ADD", range(start, min(start + 40, count)))
    try:
        yield
    finally:
        for start in range(0, count, 40):
            shim.burst("DEL", range(start, min(start + 40, count)))


def idle(shim: Shim, agent: Agent, seconds: float) -> dict[str, Any]:
    """The cost of an idle agent with 400 attachments."""
    with attached(shim, 400):
        threading.Event().wait(TICK_S + 10)  # the first pass looks at what is new as a whole
        before = processor_s(agent.pid)
        threading.Event().wait(seconds)
        used = processor_s(agent.pid) - before
        return {"seconds": seconds, "core percent": round(100 * used / seconds, 3), "resident MiB": memory_mib(agent.pid)}


@contextmanager
def applications(switch: Switch) -> Iterator[None]:
    """Every port of ours has an application that is connected, so that ovs-vswitchd counts there."""
    paths = [row["options"]["vhost-server-path"] for row in switch.rows("Interface", "external_ids:owner=userspace-cni")]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with ExitStack() as stack:
        listeners = [stack.enter_context(FrontEndListener(path, FrontEndOptions(queue_size=64))) for path in paths]
        for listener in listeners:
            stack.enter_context(listener.accept(APPLICATIONS_S))
        yield


def scrape(node: Node, shim: Shim, agent: Agent, count: int, rounds: int) -> dict[str, Any]:
    """GET of /metrics with so many attachments."""
    assert node.switch
    ovsdb, vswitchd = node.switch.ovsdb_pid, node.switch.vswitchd_pid
    main = Path(f"/proc/{vswitchd}/task/{vswitchd}/schedstat")
    pages: dict[str, Callable[[], bytes]] = {"socket": lambda: agent.get("/metrics")[1], "tcp": _over_tcp}

    def used() -> list[float]:
        return [processor_s(agent.pid), processor_s(ovsdb), int(main.read_text().split()[0]) / 1e9]

    found = {}
    with attached(shim, count), applications(node.switch):
        for name, get in pages.items():
            spent, walls, size = [0.0] * 3, [], 0
            for _ in range(rounds):
                threading.Event().wait(REST_PAGE_S)
                before, began = used(), time.perf_counter()
                size = len(get())
                walls.append(time.perf_counter() - began)
                spent = [so_far + now - then for so_far, now, then in zip(spent, used(), before, strict=True)]
            each = dict(zip(("agent cpu", "ovsdb-server cpu", "ovs-vswitchd cpu"), spent, strict=True))
            mean = {who: round(seconds / rounds * 1000, 2) for who, seconds in each.items()}
            found[name] = {"wall": milliseconds(walls), **mean, "KiB": round(size / 1024)}
    return found


def _over_tcp() -> bytes:
    connection = http.client.HTTPConnection(METRICS)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    finally:
        connection.close()


@contextmanager
def waiting(agent: Agent, count: int) -> Iterator[None]:
    """`count` scrapes that wait for an answer; a thread reads the answers as they come, and all of them by the end."""
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
    """One ADD and one DEL while so many scrapes wait."""
    assert node.switch
    found = {}
    with attached(shim, 100):
        floor = Floor(node.switch.ovsdb, BRIDGE, node.directory)
        for count in (0, 300, 1000):
            walls: dict[str, list[float]] = {"ADD": [], "DEL": []}
            for _ in range(rounds):
                for verb, taken in walls.items():
                    calm(floor, node.switch.vswitchd_pid)
                    with waiting(agent, count):
                        taken.append(shim.call(verb, 1_000_000)[0])
            found[f"{count} scrapes"] = {verb: milliseconds(taken) for verb, taken in walls.items()}
    return found


def standing(node: Node, agent: Agent) -> dict[str, float]:
    """The figures that a leak would increase."""
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
    """Attach and detach, in lanes; the figures before, after a tenth, and after all."""

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
    switch, counts, rounds = node.switch, options.ports, options.rounds
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds}

    def part(name: str, what: str, work: Callable[[], Any]) -> None:
        if name.partition(" ")[0] not in options.only:
            return
        began = time.monotonic()
        report.setdefault(name, {})[what] = work()
        sys.stderr.write(f"{name}, {what}: {time.monotonic() - began:.0f} s\n")

    with running(node, USERSPACE_CNI_TICK_S=str(TICK_S), USERSPACE_CNI_METRICS_LISTEN=METRICS) as agent:
        shim, spent = Shim(node, [sandbox], directory), Spent(agent)
        if {"status", "resting", "back-to-back", "burst", "pod", "least"} & set(options.only):
            for count in counts:
                with existing_ports(switch, node.directory, count):
                    where = f"{count} ports"
                    part("status", where, lambda: status(shim, 10 * rounds))
                    part("resting", where, lambda: single(node, shim, spent, rounds, rest=True))
                    part("back-to-back", where, lambda: single(node, shim, spent, rounds, rest=False))
                    for size in options.bursts:
                        many = partial(burst, node, shim, spent, size, max(3, rounds // 6))
                        part("burst", f"{size} at {where}", many)
                    part("pod", where, lambda: of_one_pod(node, shim, INTERFACES, max(3, rounds // 3)))
                    model = partial(least, switch.ovsdb, node.directory, node.network(), 40, max(3, rounds // 6))
                    part("least", where, lambda: {"cpu": model()})  # noqa: B023 - called at once
        with existing_ports(switch, node.directory, 0):
            part("idle", "400 ports", lambda: idle(shim, agent, options.seconds))
            for count in counts:
                part("scrape", f"{count} ports", partial(scrape, node, shim, agent, count, 3 * rounds))
            part("crowd", "100 ports", lambda: crowd(node, shim, agent, max(3, rounds // 3)))
            part("endurance", f"{options.cycles} cycles", lambda: endurance(node, shim, agent, options.cycles))
    return report


def show(report: Mapping[str, Any]) -> None:
    """Print the report: a table of comparisons, one of the stages, and one for each other part."""
    console = Console(width=140)
    calls, stages = {}, {}
    for part in ("resting", "back-to-back", "burst"):
        for where, found in report.get(part, {}).items():
            for verb, row in found.items() if part != "burst" else [("ADD", found)]:
                calls[f"{part}, {where}, {verb}"] = {name: value for name, value in row.items() if name != "stages"}
                stages[f"{part}, {where}, {verb}"] = row["stages"]
    _table(console, "calls: ms, p50 / p95; processor time per call", calls)
    _table(console, "where a call's time goes, ms", stages)
    for part in ("status", "pod", "least", "idle", "scrape", "crowd", "endurance"):
        for where, found in report.get(part, {}).items():
            nested = all(isinstance(value, dict) and "p50" not in value for value in found.values())
            _table(console, f"{part}, {where}", found if nested else {"": found})
    console.print(report["machine"])


def _table(console: Console, title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    table = Table(title=title, title_justify="left")
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        cells = (row.get(column, "") for column in columns)
        table.add_row(str(name), *(" / ".join(map(str, c.values())) if isinstance(c, dict) else str(c) for c in cells))
    console.print(table)


def _words(text: str) -> list[str]:
    unknown = set(text.split(",")) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}")
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def leave_polling_core(switch: Switch) -> None:
    """Keep this process, what it starts from now on, and the switch's other threads off the core of the polling thread.

    Where that is left to the kernel it starts callers there, and they wait for its turns.
    """
    mask = int(switch.vsctl("get", "Open_vSwitch", ".", "other_config:pmd-cpu-mask").strip().strip('"'), 16)
    cores = {core for core in os.sched_getaffinity(0) if not mask >> core & 1}
    for pid in (switch.vswitchd_pid, switch.ovsdb_pid) if cores else ():
        for task in Path(f"/proc/{pid}/task").iterdir():
            if not (task / "comm").read_text().startswith("pmd-c"):
                os.sched_setaffinity(int(task.name), cores)
    os.sched_setaffinity(0, cores or os.sched_getaffinity(0))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ports", type=_numbers, default=[0, 100, 400], help="counts of existing ports")
    parser.add_argument("--bursts", type=_numbers, default=list(BURSTS), help="how many at once")
    parser.add_argument("--only", type=_words, default=list(PARTS), help=f"parts to measure, of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to look at the idle agent")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="ADDs and DELs of the endurance part")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        locks = stack.enter_context(TemporaryDirectory(prefix="uc-", dir="/dev/shm"))  # in memory, as /run is
        node = stack.enter_context(clean(Node(directory / "n", switch, {"USERSPACE_CNI_RUN_DIR": locks})))
        sandbox = stack.enter_context(netns())
        leave_polling_core(switch)
        report = measure(node, sandbox, directory, options)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
