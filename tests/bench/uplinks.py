"""How long a node is silent while the addresses of its NIC move to the bridge, and back: by our order, and by the usual one.

`python tests/bench/uplinks.py [--json] [--rounds N]`, as root. In namespaces only: the switch's is the node, a veth is the NIC,
and from beyond it come a ping every 10 ms and a TCP stream of 20 Mbit/s. Both orders in turns on one private switch.

    ours    there: bridge, port, and AddressMove (the driver itself: bridge's link, addresses and routes; the cut; the NIC's
            addresses away); back: the driver's undo, then the port
    usual   there: bridge, each address away from the NIC and onto the bridge, the routes, and then the port; back: the port away,
            each address back, the routes: by ip(8) and ovs-vsctl(8), one command after the other

Longest time between two answered pings in ms, median and maximum over the rounds; pings without an answer, answers that came
twice, and segments sent again, sums over the rounds; streams that broke.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.network.outside import NIC, Noticed, Wire, traffic, wired
from tests.lab.node.links import links
from tests.lab.switch.switch import Switch
from userspace_cni.attachment.steps import AddressMove
from userspace_cni.base.deadline import Deadline
from userspace_cni.host.node_net.address_moves import AddressMoveDriver
from userspace_cni.host.node_net.nics import find_answering, look, plan_move
from userspace_cni.linux.boot import boot_id

BRIDGE: Final = "br-bench"
ADDRESS: Final = "192.0.2.11"
ROUTER: Final = "192.0.2.1"
AROUND_S = 1.0
"""Traffic before and after what is measured."""
EVERY_S = 0.01
MOVES_S = 30.0


def bridge(switch: Switch, wire: Wire) -> None:
    """Make the bridge, whose link has the NIC's MAC address."""
    mac = f'other_config:hwaddr="{links(wire.node)[NIC]["address"]}"'
    switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev", mac)


def port(switch: Switch) -> None:
    switch.vsctl("add-port", BRIDGE, NIC)


class Ours:
    """The order of this project."""

    def __init__(self, switch: Switch, wire: Wire) -> None:
        self._switch, self._wire = switch, wire
        self._driver = AddressMoveDriver()
        self._step: AddressMove | None = None

    def there(self) -> None:
        """Bridge and port, then the move."""
        netns = self._switch.netns
        nic = look(NIC, netns)
        assert nic
        planned = plan_move(nic, BRIDGE, store="bench", boot_id=boot_id(), switch_netns=netns)
        self._step = replace(planned, next_hops=find_answering(nic, netns))
        bridge(self._switch, self._wire)
        port(self._switch)
        self._driver.apply(self._step, Deadline.after(MOVES_S))

    def back(self) -> None:
        """The move undone, then bridge and port."""
        assert self._step
        self._driver.undo(self._step, Deadline.after(MOVES_S))
        self._switch.vsctl("del-br", BRIDGE)


class Usual:
    """The order of others: each address on its way alone, and the port last."""

    def __init__(self, switch: Switch, wire: Wire) -> None:
        self._switch, self._wire = switch, wire

    def there(self) -> None:
        """Bridge, addresses, routes, port."""
        bridge(self._switch, self._wire)
        self._move(NIC, BRIDGE)
        port(self._switch)

    def back(self) -> None:
        """Port, addresses, routes, bridge."""
        self._switch.vsctl("del-port", BRIDGE, NIC)
        self._move(BRIDGE, NIC)
        self._switch.vsctl("del-br", BRIDGE)

    def _move(self, whence: str, whither: str) -> None:
        ip = self._wire.on_node
        ip("ip", "address", "delete", f"{ADDRESS}/24", "dev", whence)
        ip("ip", "address", "add", f"{ADDRESS}/24", "dev", whither)
        ip("ip", "link", "set", whither, "up")
        ip("ip", "route", "replace", "default", "via", ROUTER, "dev", whither)


def measured(wire: Wire, work: Callable[[], None]) -> Noticed:
    with traffic(wire, ADDRESS, every_s=EVERY_S) as noticed:
        threading.Event().wait(AROUND_S)
        work()
        threading.Event().wait(AROUND_S)
    return noticed[ADDRESS]


def summary(found: list[Noticed]) -> dict[str, Any]:
    gaps = [each.longest_gap_s * 1000 for each in found]
    return {
        "gap p50 ms": round(statistics.median(gaps)),
        "gap max ms": round(max(gaps)),
        "pings": sum(each.sent for each in found),
        "no answer": sum(each.sent - each.answered for each in found),
        "twice": sum(each.duplicates for each in found),
        "sent again": sum(each.retransmits for each in found),
        "broken": sum(bool(each.broken) or each.received != each.sent_bytes for each in found),
    }


def show(report: dict[str, Any]) -> None:
    table = Table("order", "direction", *next(iter(next(iter(report["orders"].values())).values())))
    for order, directions in report["orders"].items():
        for direction, figures in directions.items():
            table.add_row(order, direction, *map(str, figures.values()))
    console = Console()
    console.print(report["machine"])
    console.print(table)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    progress = Console(stderr=True)
    found: dict[str, dict[str, list[Noticed]]] = {each: {"there": [], "back": []} for each in ("ours", "usual")}
    with Switch() as switch, wired(switch.netns, (f"{ADDRESS}/24",), (f"{ROUTER}/24",)) as wire:
        wire.on_node("ip", "route", "add", "default", "via", ROUTER)
        orders: dict[str, Ours | Usual] = {"ours": Ours(switch, wire), "usual": Usual(switch, wire)}
        for number in range(options.rounds):
            for name, order in orders.items():
                progress.print(f"round {number + 1} of {options.rounds}: {name}")
                found[name]["there"].append(measured(wire, order.there))
                found[name]["back"].append(measured(wire, order.back))
    orders_told = {name: {way: summary(each) for way, each in ways.items()} for name, ways in found.items()}
    return tell({"machine": machine(), "rounds": options.rounds, "orders": orders_told}, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
