"""What a logical port of OVN adds to an ADD, on a node that has so many logical ports already.

`python tests/bench/ovn_adds.py [--json] [--rounds N] [--ports 0,100,400]`, as root. Everything is measured in one run on one
private switch with OVN, in turns, each 80 ms after the last has ended, and compared as ratios. The logical ports are made before,
as the controller makes them before the pod starts.

    without     ADD through shim and agent of a vhost-user port on a bridge without OVN
    port        the same on OVN's bridge, with `"wait": "port"`: the names are written, and nothing of OVN is awaited
    installed   the same until OVN has installed the port, which is the default
    by hand     one transaction for such a port, without a library, until OVN has installed it, and what of that is after
                ovs-vswitchd has opened the port. No plugin can be quicker

Milliseconds, p50 / p95.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.attach import BRIDGE
from tests.bench.calls import Shim, milliseconds
from tests.bench.floor import Floor
from tests.bench.latency import REST_S, WARM, calm
from tests.bench.report import arguments, machine, tell
from tests.lab.node.agent import running
from tests.lab.node.node import Node, clean
from tests.lab.ovn.central import Ovn
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

INTEGRATION, LOGICAL_SWITCH, NAMESPACE = "br-int", "pods", "bench"
BY_HAND, AFTER_OPEN = "by hand", "by hand, since open"
KINDS = ("without", "port", "installed")
LIMIT_S = 300.0
RULE = f"""
[[rule]]
namespaces = ["{NAMESPACE}"]
bridges = ["{BRIDGE}"]
without_port_security = ["node"]
"""
"""What the administrator allows: ports whose addresses only their pods know."""


class NamedShim(Shim):
    """Calls for pods that have names, and so logical ports: number N is that of the pod pN."""

    namespace = NAMESPACE


def networks(node: Node) -> dict[str, Mapping[str, Any]]:
    """The network of each kind of ADD."""
    plain = node.network()
    host = {key: value for key, value in plain["host"].items() if key != "bridge"}
    logical = {**plain, "host": host, "addresses": "unknown"}
    return {
        "without": plain,
        "port": {**logical, "ovn": {"wait": "port"}},
        "installed": {**logical, "ovn": {"wait": "installed"}},
    }


def add_logical(ovn: Ovn, names: list[str]) -> None:
    """These logical ports in one transaction, until the chassis knows them."""
    words: list[str] = []
    for name in names:
        words += ["--", "lsp-add", LOGICAL_SWITCH, name, "--", "lsp-set-addresses", name, "unknown"]
    ovn.nbctl("--timeout=120", "--wait=hv", *words[1:])


@contextmanager
def logical_ports(ovn: Ovn, switch: Switch, directory: Path, count: int) -> Iterator[None]:
    """So many ports on OVN's bridge, each a logical port that OVN has installed, and their peers are not there."""
    names = [f"old{number}" for number in range(count)]
    if names:
        add_logical(ovn, names)
    commands: list[str] = []
    for name in names:
        row = ["type=dpdkvhostuserclient", f"options:vhost-server-path={directory}/{name}", f"external_ids:iface-id={name}"]
        commands += ["--", "add-port", INTEGRATION, name, "--", "set", "Interface", name, *row]
    commands += ["--", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"]
    switch.vsctl("--timeout=120", *commands)
    wait_until(lambda: len(switch.rows("Interface", "external_ids:ovn-installed=true")) == count, LIMIT_S, "OVN has all ports")
    try:
        yield
    finally:
        gone = [word for name in names for word in ("--", "del-port", INTEGRATION, name)]
        switch.vsctl("--timeout=120", "del-br", BRIDGE, *gone)
        if names:
            ovn.nbctl("--timeout=120", *[word for name in names for word in ("--", "lsp-del", name)][1:])


def take_turns(node: Node, shims: Mapping[str, Shim], ovn: Ovn, rounds: int) -> dict[str, list[float]]:
    """Wall seconds of ADDs of each kind, and of the port by hand, whose order changes from round to round."""
    assert node.switch
    floor = Floor(node.switch.ovsdb, INTEGRATION, node.directory)
    calm(floor, node.switch.vswitchd_pid)
    found: dict[str, list[float]] = {name: [] for name in (*KINDS, BY_HAND, AFTER_OPEN)}
    for number in range(rounds + WARM):
        kinds = [*KINDS, "by hand"]
        for kind in (*kinds[number % 4 :], *kinds[: number % 4]):
            name = f"{NAMESPACE}_p{number}"
            add_logical(ovn, [name])  # of each turn its own: what OVN still has of the last one is not this one's
            floor.settle()
            threading.Event().wait(REST_S)
            if kind == "by hand":
                opened, since = floor.add_logical(name)
                taken = {BY_HAND: opened + since, AFTER_OPEN: since}
                floor.delete([name])
            else:
                taken = {kind: shims[kind].call("ADD", number)[0]}
                shims[kind].call("DEL", number)
            ovn.nbctl("--wait=hv", "lsp-del", name)
            for part, seconds in taken.items() if number >= WARM else ():
                found[part].append(seconds)
    floor.close()
    return found


def measure(node: Node, ovn: Ovn, sandbox: str, counts: list[int], rounds: int) -> dict[str, Any]:
    """All kinds at each count of existing ports."""
    assert node.switch
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds, "ADD": {}}
    ovn.nbctl("ls-add", LOGICAL_SWITCH)
    with running(node, USERSPACE_CNI_TICK_S="30"):
        shims = {kind: NamedShim(node, [sandbox], node.directory / kind, network) for kind, network in networks(node).items()}
        for count in counts:
            with logical_ports(ovn, node.switch, node.directory, count):
                found = {name: milliseconds(taken) for name, taken in take_turns(node, shims, ovn, rounds).items()}
            ours, without, by_hand = (found[name]["p50"] for name in ("installed", "without", BY_HAND))
            report["ADD"][f"{count} ports"] = {
                **found,
                "installed / without": round(ours / without, 2),
                "port / without": round(found["port"]["p50"] / without, 2),
                "installed / by hand": round(ours / by_hand, 2),
            }
    return report


def show(report: Mapping[str, Any]) -> None:
    """Print the report as a table."""
    rows = report["ADD"]
    table = Table(title="ADD: ms, p50 / p95", title_justify="left")
    for column in ("", *rows):
        table.add_column(column, justify="right" if column else "left")
    for name in next(iter(rows.values())):
        cells = (row[name] for row in rows.values())
        table.add_row(name, *(" / ".join(map(str, each.values())) if isinstance(each, dict) else str(each) for each in cells))
    console = Console(width=140)
    console.print(table)
    console.print(f"{report['rounds']} rounds; {report['machine']}")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ports", type=_numbers, default=[0, 100, 400], help="counts of existing logical ports")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        ovn = stack.enter_context(Ovn(switch, Path(stack.enter_context(TemporaryDirectory(prefix="ovn-")))))
        wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made its bridge")
        locks = stack.enter_context(TemporaryDirectory(prefix="uc-", dir="/dev/shm"))  # in memory, as /run is
        node = stack.enter_context(clean(Node(directory / "n", switch, {"USERSPACE_CNI_RUN_DIR": locks})))
        Path(node.environ["USERSPACE_CNI_CONFIG"]).write_text(RULE)
        report = measure(node, ovn, stack.enter_context(netns()), options.ports, options.rounds)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
