"""What ADD and DEL cost, beside the least they could and beside the plugin that this one replaces.

`python tests/bench/attach.py [--json] [--rounds N] [--ports 0,100,400]`, as root. Everything is measured in one run on one
private switch, in turns, and compared as ratios: the machine's own speed drifts between runs.

    bare        one ovsdbapp transaction with read-back, on a session that is open already: the floor, set by ovs-vswitchd
    upstream    the former plugin's sequence of ovs-vsctl processes for the same port, without its other work
    process     the plugin as a runtime executes it: a Python process that starts, attaches, ends
    inside      the same call in a process that has started already, with a new OVSDB session each time
"""

from __future__ import annotations

import json
import logging
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.kube.apiserver import ApiServer
from tests.lab.node.calls import call_plugin
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import Call, netns
from tests.lab.switch.switch import Switch
from userspace_cni.base.settings import load
from userspace_cni.node.local_node import LocalNode

BRIDGE = "br-test"
UID = "7d1a2c00-0000-4000-8000-000000000001"
CALLERS = ("bare", "upstream", "process", "inside")


class Caller(Protocol):
    """Attaches and detaches one numbered port."""

    def add(self, number: int) -> None: ...

    def delete(self, number: int) -> None: ...


@dataclass
class Samples:
    """Wall and processor seconds of one kind of call."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, wall: float, cpu: float) -> None:
        self.wall.append(wall)
        self.cpu.append(cpu)

    def summary(self) -> dict[str, float]:
        """Milliseconds: median and 95th percentile of the wall time, median of the processor time."""
        ordered = sorted(self.wall)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        numbers = {"p50": statistics.median(ordered), "p95": p95, "cpu": statistics.median(self.cpu)}
        return {name: round(seconds * 1000, 1) for name, seconds in numbers.items()}


class Bare:
    """The same rows in one ovsdbapp transaction on an open session, awaited by the IDL's own events.

    Without `directory` the ports are of type system, of links that are there.
    """

    def __init__(self, ovsdb: str, directory: Path | None) -> None:
        from ovs import vlog
        from ovsdbapp.backend.ovs_idl import command, connection, idlutils, transaction
        from ovsdbapp.schema.open_vswitch import impl_idl

        vlog.Vlog.init()
        logging.disable(logging.CRITICAL)
        opened = threading.Event()

        class Idl(connection.OvsdbIdl):  # type: ignore[misc]
            def notify(self, what: str, row: Any, updates: Any = None) -> None:
                if row._table.name == "Interface" and row.name.startswith("bare") and what != "delete" and row.ofport:
                    opened.set()

        class Api(impl_idl.OvsdbIdl):  # type: ignore[misc]
            def create_transaction(self, *_: Any, **__: Any) -> Any:
                return transaction.Transaction(self, self.ovsdb_connection, 30, check_error=True)

        class AddPort(command.BaseCommand):  # type: ignore[misc]
            def __init__(self, api: Any, name: str, path: str) -> None:
                super().__init__(api)
                self._name = name
                self._path = path

            def run_idl(self, txn: Any) -> None:
                interface, port = txn.insert(self.api.idl.tables["Interface"]), txn.insert(self.api.idl.tables["Port"])
                interface.name = port.name = self._name
                interface.type = "dpdkvhostuserclient" if self._path else "system"
                interface.options = {"vhost-server-path": self._path} if self._path else {}
                port.interfaces = [interface]
                idlutils.row_by_value(self.api.idl, "Bridge", "name", BRIDGE).addvalue("ports", port)

        helper = idlutils.get_schema_helper(ovsdb, "Open_vSwitch")
        helper.register_columns("Open_vSwitch", ["bridges"])
        helper.register_columns("Bridge", ["name", "ports"])
        helper.register_columns("Port", ["name", "interfaces", "qos"])
        helper.register_columns("Interface", ["name", "type", "options", "ofport", "error"])
        self._opened = opened
        self._directory = directory
        self._command = AddPort
        self._api = Api(connection.Connection(Idl(ovsdb, helper), 30))

    def add(self, number: int) -> None:
        """The port `bare<number>`, and wait until ovs-vswitchd has opened it."""
        name = f"bare{number}"
        self._opened.clear()
        self._command(self._api, name, self._path(name)).execute(check_error=True)
        assert self._opened.wait(30), f"{name} was not opened"

    def delete(self, number: int) -> None:
        """Delete the port, and wait until ovs-vswitchd has done it (cur_cfg)."""
        self._api.del_port(f"bare{number}", BRIDGE).execute(check_error=True)

    def together(self, numbers: range) -> None:
        """These ports in one transaction, until ovs-vswitchd has opened the last."""
        from ovsdbapp.backend.ovs_idl import idlutils

        left = {f"bare{number}" for number in numbers}
        with self._api.transaction(check_error=True) as txn:
            for name in left:
                txn.add(self._command(self._api, name, self._path(name)))
        while left:
            self._opened.wait(0.05)
            self._opened.clear()
            rows = (idlutils.row_by_value(self._api.idl, "Interface", "name", name, None) for name in list(left))
            left -= {row.name for row in rows if row is not None and row.ofport}

    def clear(self, numbers: range) -> None:
        """Delete these ports in one transaction."""
        with self._api.transaction(check_error=True) as txn:
            for number in numbers:
                txn.add(self._api.del_port(f"bare{number}", BRIDGE))

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}" if self._directory else ""

    def close(self) -> None:
        """End the session: its replica is work for the processor that the others share."""
        self._api.ovsdb_connection.stop()


class Upstream:
    """The ovs-vsctl processes of the former plugin, one after the other."""

    def __init__(self, ovsdb: str, directory: Path) -> None:
        self._vsctl = ("ovs-vsctl", f"--db={ovsdb}")
        self._directory = directory

    def _run(self, *args: str) -> None:
        subprocess.run([*self._vsctl, *args], check=True, capture_output=True)

    def add(self, number: int) -> None:
        """Look for the bridge, add the port, read its (never set) MAC."""
        name = f"up{number}"
        self._run("--bare", "--columns=name", "find", "bridge", f"name={BRIDGE}")
        path = f"options:vhost-server-path={self._directory}/{name}"
        self._run("add-port", BRIDGE, name, "--", "set", "Interface", name, "type=dpdkvhostuserclient", path)
        self._run("--bare", "--columns=mac", "find", "port", f"name={name}")

    def delete(self, number: int) -> None:
        """Delete the port, list the bridge's ports."""
        self._run("--if-exists", "del-port", BRIDGE, f"up{number}")
        self._run("list-ports", BRIDGE)


class Process:
    """The plugin as a runtime executes it."""

    def __init__(self, node: Node, sandbox: str, network: Mapping[str, Any] | None = None, args: str = "") -> None:
        self._node = node
        self._sandbox = sandbox
        self._network = network or node.network()
        self._args = args or f"IgnoreUnknown=1;K8S_POD_UID={UID}"

    def call(self, command: str, number: int) -> Call:
        container = f"{number:012x}{'c' * 52}"
        done = self._node.run(command, self._network, self._sandbox, container, CNI_ARGS=self._args)
        assert done.status == 0, (done.stdout, done.stderr)
        return done

    def add(self, number: int) -> None:
        self.call("ADD", number)

    def delete(self, number: int) -> None:
        self.call("DEL", number)


class Inside:
    """verbs.answer in this process, which has everything imported."""

    def __init__(self, node: Node, sandbox: str) -> None:
        self._environ = node.environ
        self._sandbox = sandbox
        self._stdin = json.dumps(node.network()).encode()

    def _call(self, command: str, number: int) -> None:
        environ = {
            **self._environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": f"{number:012x}{'d' * 52}",
            "CNI_NETNS": self._sandbox,
            "CNI_IFNAME": "net1",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_UID={UID}",
        }
        node = LocalNode(load(environ), environ)
        answer = call_plugin(environ, lambda: self._stdin, lambda: node)
        node.switch.close()
        assert answer.code == 0, answer.output

    def add(self, number: int) -> None:
        self._call("ADD", number)

    def delete(self, number: int) -> None:
        self._call("DEL", number)


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds, those of awaited children included."""

    def used() -> float:
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in spent)

    before, began = used(), time.monotonic()
    work()
    return time.monotonic() - began, used() - before


def settle(switch: Switch) -> None:
    """Wait until ovs-vswitchd has done the work of the call before: a DEL does not wait for it, and the next call would."""
    switch.vsctl("--timeout=30", "set", "Open_vSwitch", ".", "external_ids:settled=true")


@contextmanager
def existing_ports(switch: Switch, directory: Path, count: int) -> Iterator[None]:
    """A bridge with so many client ports whose peers are not there, as on a node whose pods are starting."""
    commands = ["--", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"]
    for number in range(count):
        name = f"old{number}"
        path = f"options:vhost-server-path={directory}/{name}"
        commands += ["--", "add-port", BRIDGE, name, "--", "set", "Interface", name, "type=dpdkvhostuserclient", path]
    switch.vsctl("--timeout=120", *commands)
    try:
        yield
    finally:
        switch.vsctl("--timeout=120", "del-br", BRIDGE)


def compare(node: Node, sandbox: str, counts: list[int], rounds: int) -> list[dict[str, Any]]:
    """Every caller at every count of existing ports, in turns."""
    assert node.switch
    rows = []
    for count in counts:
        with existing_ports(node.switch, node.directory, count):
            callers: dict[str, Caller] = {
                "bare": Bare(node.switch.ovsdb, node.directory),
                "upstream": Upstream(node.switch.ovsdb, node.directory),
                "process": Process(node, sandbox),
                "inside": Inside(node, sandbox),
            }
            samples = {(name, verb): Samples() for name in callers for verb in ("ADD", "DEL")}
            for number in range(-1, rounds):
                for name, caller in callers.items():
                    for verb, work in (("ADD", caller.add), ("DEL", caller.delete)):
                        settle(node.switch)
                        taken = measured(partial(work, number + 1))
                        if number >= 0:  # the first round warms up
                            samples[name, verb].add(*taken)
            rows += [
                {"ports": count, "verb": verb, **{name: samples[name, verb].summary() for name in callers}}
                for verb in ("ADD", "DEL")
            ]
    return rows


def start_up(node: Node, sandbox: str, rounds: int) -> dict[str, dict[str, float]]:
    """Whole processes by what they do, for what a start costs."""
    bad = node.network(host={"engine": "vpp"})
    with ApiServer() as api, TemporaryDirectory(dir=node.directory) as directory:
        api.add_pod({"metadata": {"namespace": "default", "name": "p", "uid": UID}, "spec": {"containers": [{"name": "c"}]}})
        noted = node.network(kubeconfig=api.kubeconfig(Path(directory)))
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_UID={UID}"
        works: dict[str, Callable[[int], Call]] = {
            "VERSION": lambda _: node.run("VERSION", {"cniVersion": "1.1.0"}),
            "refusal (engine vpp)": lambda _: node.run("ADD", bad, sandbox),
            "ADD": lambda number: Process(node, sandbox).call("ADD", number),
            "DEL": lambda number: Process(node, sandbox).call("DEL", number),
            "ADD with an API server": lambda number: Process(node, sandbox, noted, args).call("ADD", number),
            "DEL with an API server": lambda number: Process(node, sandbox, noted, args).call("DEL", number),
        }
        samples = {name: Samples() for name in works}
        for number in range(-1, rounds):
            for name, work in works.items():
                done = work(number + 1)
                if number >= 0:
                    samples[name].add(done.wall, done.cpu)
    return {name: each.summary() for name, each in samples.items()}


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=120)
    for verb in ("ADD", "DEL"):
        table = Table(title=f"{verb}: p50 / p95 / CPU, milliseconds; in brackets p50 as a multiple of bare", title_justify="left")
        for column in ("ports", *CALLERS):
            table.add_column(column, justify="right")
        for row in (row for row in report["compared"] if row["verb"] == verb):
            cells = [
                f"{row[name]['p50']:.1f} / {row[name]['p95']:.1f} / {row[name]['cpu']:.1f} "
                f"[{row[name]['p50'] / row['bare']['p50']:.1f}x]".replace("[", "\\[")
                for name in CALLERS
            ]
            table.add_row(str(row["ports"]), *cells)
        console.print(table)
    table = Table(title="Whole processes, milliseconds", title_justify="left")
    for column in ("call", "p50", "p95", "CPU"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for name, row in report["processes"].items():
        table.add_row(name, f"{row['p50']:.1f}", f"{row['p95']:.1f}", f"{row['cpu']:.1f}")
    console.print(table)
    console.print(report["machine"])


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ports", default="0,100,400", help="counts of existing ports")
    options = parser.parse_args()
    counts = [int(count) for count in options.ports.split(",")]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        node.empty_dir(UID)
        sandbox = stack.enter_context(netns())
        report = {
            "machine": machine(),
            "rounds": options.rounds,
            "compared": compare(node, sandbox, counts, options.rounds),
            "processes": start_up(node, sandbox, options.rounds),
        }
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
