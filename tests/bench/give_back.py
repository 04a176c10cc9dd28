"""How long a node is silent when ovs-vswitchd dies under its moved addresses and stays away, with an agent that gives them back.

`python tests/bench/give_back.py [--json] [--away SECONDS] [--rounds N] [--database]`, as root. In namespaces only: the switch's
is the node, a veth is the NIC, and from beyond it come 50 pings a second and a TCP stream of 20 Mbit/s. The agent has the default
settings (`give_back_after_s` is 10); ovs-vswitchd is killed, and started again after SECONDS (20). With --database it is
ovsdb-server that ends, while ovs-vswitchd lives on.

Longest time between two answered pings in ms; pings without an answer; segments sent again; whether the stream broke, and lost
nothing.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.agent.living import LiveNode
from tests.bench.report import arguments, machine, tell
from tests.lab.network.outside import NIC, Wire, traffic, wired
from tests.lab.node.links import addresses, links
from tests.lab.switch.switch import Switch, wait_until

ADDRESS: Final = "192.0.2.11"
TABLE: Final = f"""
[[provider_network]]
name = "net1"
interface = "{NIC}"
move_addresses = true
"""
AROUND_S: Final = 2.0


def at(wire: Wire, link: str) -> bool:
    """Whether the address is at that link."""
    return link in links(wire.node) and f"{ADDRESS}/24" in addresses(wire.node, link)


def measured(live: LiveNode, wire: Wire, away_s: float, *, database: bool) -> dict[str, Any]:
    """What traffic notices of a daemon that is away for so long: of ovs-vswitchd, or of the `database`."""
    assert live.switch
    with traffic(wire, ADDRESS) as noticed:
        threading.Event().wait(AROUND_S)
        (live.switch.stop_ovsdb if database else live.switch.kill_vswitchd)()
        threading.Event().wait(away_s)
        given_back = at(wire, NIC)
        (live.switch.restart_ovsdb if database else live.switch.restart_vswitchd)()
        wait_until(lambda: at(wire, "br-net1"), what="the address is on the bridge again")
        threading.Event().wait(AROUND_S)
    found = noticed[ADDRESS]
    return {
        "given back": given_back,
        "gap ms": round(found.longest_gap_s * 1000),
        "pings": found.sent,
        "no answer": found.sent - found.answered,
        "sent again": found.retransmits,
        "stream": found.broken or ("whole" if found.received == found.sent_bytes else "lost bytes"),
    }


def show(report: dict[str, Any]) -> None:
    rounds = report["rounds"]
    table = Table(*rounds[0])
    for each in rounds:
        table.add_row(*map(str, each.values()))
    console = Console()
    console.print(report["machine"])
    console.print(table)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--away", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", action="store_true")
    options = parser.parse_args()
    progress = Console(stderr=True)
    found = []
    with TemporaryDirectory(prefix="uc-") as directory, Switch() as switch, wired(switch.netns) as wire:
        live = LiveNode(Path(directory) / "n", switch)
        settings = live.directory / "network.toml"
        settings.write_text(TABLE)
        live.settings["USERSPACE_CNI_CONFIG"] = str(settings)
        try:
            live.start()
            wait_until(lambda: at(wire, "br-net1"), what="the address has moved")
            for number in range(options.rounds):
                progress.print(f"round {number + 1} of {options.rounds}, {options.away + 2 * AROUND_S:g} s and more")
                found.append(measured(live, wire, options.away, database=options.database))
        finally:
            live.close()
    return tell({"machine": machine(), "away_s": options.away, "rounds": found}, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
