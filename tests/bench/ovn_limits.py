"""What a limit gives that is a row of OVN, beside the same limit of the node's switch.

`python tests/bench/ovn_limits.py [--json] [--rate MBITS] [--rounds N]`: two vhost-user pods of one chassis. In each direction of
the first one: UDP offered at four times the rate, and one TCP connection, as a part of the rate; the node's switch and OVN in
turns. The median of the rounds, with the least and the most.

It needs root, OVS-DPDK and OVN (Debian: ovn-central, ovn-host).
"""

from __future__ import annotations

import socket
import statistics
import sys
import threading
import time
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.frames.taps import socket_in
from tests.lab.frames.udp_rates import UdpFlow, offer
from tests.ovn.test_two_chassis import RunningPod, World, two_nodes

_M: Final = 1_000_000
_KBIT_S: Final = 0.1
"""A burst is what the rate is in so long."""
_SECONDS: Final = 3.0
_PORT: Final = 5400
_WAYS: Final = (("to the pod", "to-lport", "outport"), ("from the pod", "from-lport", "inport"))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rate", type=int, default=20, metavar="MBITS", help="the limit, 20 by default")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds in turns, 3 by default")
    given = parser.parse_args()
    found: dict[str, list[float]] = {}
    with two_nodes((("n1", True), ("n1", True))) as world:
        for _ in range(given.rounds):
            for way, direction, side in _WAYS:
                for who, limit in (("node", _by_node), ("OVN", _by_ovn)):
                    limit(world, direction, side, given.rate)
                    limited, other = world.pods
                    ends = (other, limited) if direction == "to-lport" else (limited, other)
                    (udp,) = offer([UdpFlow(ends[0].netns, ends[1].netns, ends[1].address, 4 * given.rate * _M)], _SECONDS)
                    found.setdefault(f"UDP {way}, {who}", []).append(udp.received / given.rate / _M)
                    found.setdefault(f"TCP {way}, {who}", []).append(_tcp(*ends) / given.rate / _M)
                    limit(world, direction, side, 0)
    rows = {name: [statistics.median(each), min(each), max(each)] for name, each in found.items()}
    return tell({"machine": machine(), "rate_mbits": given.rate, "of_the_rate": rows}, given.json, _show)


def _by_ovn(world: World, direction: str, side: str, rate: int) -> None:
    world.ovn.nbctl("qos-del", "n1")
    if rate:
        bandwidth = (f"rate={rate * 1000}", f"burst={int(rate * 1000 * _KBIT_S)}")
        world.ovn.nbctl("qos-add", "n1", direction, "2000", f'{side} == "default_p0"', *bandwidth)
    world.ovn.nbctl("--timeout=60", "--wait=hv", "sync")


def _by_node(world: World, direction: str, side: str, rate: int) -> None:
    vsctl, port = world.ovn.switches["n1"].vsctl, "fault_p0"
    if direction == "from-lport":
        kbits = (f"ingress_policing_rate={rate * 1000}", f"ingress_policing_burst={int(rate * 1000 * _KBIT_S)}")
        vsctl("set", "Interface", port, *kbits)
        return
    vsctl("clear", "Port", port, "qos")
    if rate:
        qos = ("type=egress-policer", f"other_config:cir={rate * _M // 8}", f"other_config:cbs={int(rate * _M * _KBIT_S) // 8}")
        vsctl("set", "Port", port, "qos=@q", "--", "--id=@q", "create", "QoS", *qos)


def _tcp(source: RunningPod, target: RunningPod) -> float:
    """Bits of payload a second that one connection carries, after its first second."""
    received, until = 0, time.monotonic() + 1 + _SECONDS

    def send() -> None:
        with socket_in(source.netns) as client:
            client.connect((target.address, _PORT))
            while time.monotonic() < until:
                client.sendall(bytes(1 << 16))

    with socket_in(target.netns) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((target.address, _PORT))
        server.listen()
        thread = threading.Thread(target=send)
        thread.start()
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(1 << 16):
                received += len(data) if until - _SECONDS <= time.monotonic() < until else 0
        thread.join()
    return received * 8 / _SECONDS


def _show(report: dict[str, Any]) -> None:
    table = Table(title=f"part of a limit of {report['rate_mbits']} Mbit/s; {report['machine']}")
    for heading in ("", "median", "least", "most"):
        table.add_column(heading)
    for name, numbers in report["of_the_rate"].items():
        table.add_row(name, *(f"{number:.2f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
