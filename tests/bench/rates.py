"""Which rate a limit gives, and what each type of port carries without one, between a pod and a vhost-user port.

`python tests/bench/rates.py [--json] [--only PART,...] [--kinds KIND,...] [--mbit N] [--seconds S] [--rounds N]`, as root.
Everything is attached through binary and agent on one private switch. The other side is always a vhost-user port without a limit,
whose application is `userspace-cni tap`; iperf3 sends.

    limits        per kind of port and direction, with a limit for each direction that the kind has: UDP offered at three times
                  the limit, and one TCP connection, whose payload may not be more; bursts are the rate's in 100 ms
    throughput    per kind of port and direction, without limits: one TCP connection, medians of rounds in turns

Mbit/s of payload. A polling thread has one of the machine's cores: on two cores the programs share the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.report import arguments, machine, tell
from tests.lab.frames.taps import SECONDS, TapProcess
from tests.lab.node.agent import running
from tests.lab.node.links import inside, pings
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

BRIDGE = "br-rates"
KINDS = ("vhost-user", "system", "af_packet", "af_xdp", "afxdp")
PARTS = ("limits", "throughput")
DIRECTIONS = ("from the pod", "to the pod")
PEER, POD = "10.56.0.1", "10.56.0.2"
MBIT = 1_000_000
OFFERED = 3
PORT = 5201
DATAGRAM = 1400
TRIES = 5


@dataclass
class Pods:
    """A pod and its peer, with an iperf3 server in each."""

    pod: str
    peer: str

    def run(self, direction: str, seconds: int, *options: str) -> dict[str, Any]:
        """What iperf3 says at the end of a transfer in that direction."""
        place, address = (self.pod, PEER) if direction == "from the pod" else (self.peer, POD)
        argv = ["iperf3", "-c", address, "-p", str(PORT), "-t", str(seconds), "-J", *options]
        said: dict[str, Any] = {}
        for _ in range(TRIES):  # a server whose last transfer is not over yet refuses
            said = json.loads(inside(place, *argv, check=False, seconds=SECONDS + seconds))
            if "error" not in said:
                break
            threading.Event().wait(1)
        assert "error" not in said, said["error"]
        found: dict[str, Any] = said["end"]
        return found

    def tcp(self, direction: str, seconds: int) -> dict[str, float]:
        """Mbit/s that arrived, and segments that were sent again."""
        end = self.run(direction, seconds)
        return {
            "mbit": round(end["sum_received"]["bits_per_second"] / MBIT, 1),
            "retransmits": end["sum_sent"].get("retransmits", 0),
        }

    def udp(self, direction: str, seconds: int, mbit: int) -> dict[str, float]:
        """Mbit/s that were sent and that arrived."""
        end = self.run(direction, seconds, "-u", "-b", f"{mbit}M", "-l", str(DATAGRAM))["sum"]
        sent = end["bits_per_second"] / MBIT
        return {"sent": round(sent, 1), "mbit": round(sent * (1 - end["lost_percent"] / 100), 1)}


class Bench:
    """One node, with a switch and an agent."""

    def __init__(self, node: Node) -> None:
        assert node.switch
        self._node = node
        self._switch = node.switch
        self._count = 0

    @contextmanager
    def pods(self, kind: str, bandwidth: Mapping[str, int] | None = None) -> Iterator[Pods]:
        """A pod with a port of that kind and these limits, beside a vhost-user port."""
        with ExitStack() as stack:
            both = Pods(stack.enter_context(netns()), stack.enter_context(netns()))
            stack.enter_context(self._attached("vhost-user", both.peer, PEER, {}))
            stack.enter_context(self._attached(kind, both.pod, POD, {"bandwidth": dict(bandwidth)} if bandwidth else {}))
            for place in (both.pod, both.peer):
                stack.enter_context(serve(place))
            wait_until(lambda: pings(both.pod, PEER, 1), what=f"{kind}: the peer to answer", pause=0.1)
            yield both

    @contextmanager
    def _attached(self, kind: str, sandbox: str, address: str, keys: Mapping[str, Any]) -> Iterator[None]:
        self._count += 1
        container = f"{self._count:012x}{'c' * 52}"
        network = self._network(kind, address, keys)
        made = self._node.run("ADD", network, sandbox, container, ifname="eth0")
        assert made.status == 0, made.stdout
        try:
            with ExitStack() as stack:
                if kind == "vhost-user":
                    [row] = self._switch.rows("Interface", f"external_ids:container-id={container}")
                    options = ["--mode", "server", "--name", "eth0", "--address", f"{address}/24", "--mtu", "1500"]
                    tap = TapProcess(sandbox, row["options"]["vhost-server-path"], *options)
                    stack.enter_context(tap)
                    tap.until("ready")
                yield
        finally:
            gone = self._node.run("DEL", network, sandbox, container, ifname="eth0")
            assert gone.status == 0, gone.stdout

    def _network(self, kind: str, address: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "vhost-user":
            host: dict[str, Any] = {"iftype": "vhostuser", "vhost": {"mode": "client"}}
            more: dict[str, Any] = {}
        else:
            host = {"iftype": "veth", "port": kind}
            more = {"ipam": {"type": "static", "addresses": [{"address": f"{address}/24"}]}}
        block = {"engine": "ovs-dpdk", "bridge": {"bridgeName": BRIDGE}, "mtu": 1500, **host}
        return {"cniVersion": "1.0.0", "name": f"rates-{kind}", "type": "userspace", "host": block, **more, **keys}


@contextmanager
def serve(place: str) -> Iterator[None]:
    """An iperf3 server in the namespace, which listens."""
    argv = ["nsenter", f"--net={place}", "iperf3", "-s", "-p", str(PORT)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: inside(place, "ss", "-Hltn", f"sport = :{PORT}"), what="iperf3 to listen", pause=0.05)
        yield
    finally:
        process.kill()
        process.wait()


def limits(bench: Bench, kinds: list[str], mbit: int, seconds: int) -> list[dict[str, Any]]:
    """Wanted and got, per kind and direction."""
    rows = []
    for kind in kinds:
        directions = DIRECTIONS[:1] if kind == "afxdp" else DIRECTIONS  # the switch cannot limit what it sends there
        bandwidth = {"egressRate": mbit * MBIT, **({"ingressRate": mbit * MBIT} if len(directions) > 1 else {})}
        with bench.pods(kind, bandwidth) as pods:
            for direction in directions:
                udp = pods.udp(direction, seconds, OFFERED * mbit)
                tcp = pods.tcp(direction, seconds)
                rows.append({"kind": kind, "direction": direction, "wanted": mbit, "udp": udp, "tcp": tcp, "load": machine()})
                sys.stderr.write(f"limits: {rows[-1]}\n")
    return rows


def throughput(bench: Bench, kinds: list[str], seconds: int, rounds: int) -> list[dict[str, Any]]:
    """TCP without limits, per kind and direction."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(rounds):
        for kind in kinds:
            with bench.pods(kind) as pods:
                for direction in DIRECTIONS:
                    found.setdefault((kind, direction), []).append(pods.tcp(direction, seconds))
        sys.stderr.write(f"throughput: round {number + 1} of {rounds}; {machine()}\n")
    return [
        {
            "kind": kind,
            "direction": direction,
            "mbit": round(statistics.median(each["mbit"] for each in rates)),
            "least": round(min(each["mbit"] for each in rates)),
            "most": round(max(each["mbit"] for each in rates)),
        }
        for (kind, direction), rates in found.items()
    ]


def show(report: Mapping[str, Any]) -> None:
    console = Console(width=120)
    if report.get("limits"):
        table = Table(title="Limits: Mbit/s of payload", title_justify="left")
        for column in ("port", "direction", "wanted", "UDP offered", "UDP", "TCP", "sent again"):
            table.add_column(column, justify="right" if column not in ("port", "direction") else "left")
        for row in report["limits"]:
            udp, tcp = row["udp"], row["tcp"]
            numbers = (row["wanted"], udp["sent"], udp["mbit"], tcp["mbit"], tcp["retransmits"])
            table.add_row(row["kind"], row["direction"], *map(str, numbers))
        console.print(table)
    if report.get("throughput"):
        table = Table(title="Throughput without limits: TCP, Mbit/s; median, least, most", title_justify="left")
        for column in ("port", "direction", "median", "least", "most"):
            table.add_column(column, justify="right" if column not in ("port", "direction") else "left")
        for row in report["throughput"]:
            table.add_row(row["kind"], row["direction"], str(row["mbit"]), str(row["least"]), str(row["most"]))
        console.print(table)
    console.print(report["machine"], report["machine at the end"], sep="; at the end: ")


def _some_of(known: tuple[str, ...], text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(known):
        raise argparse.ArgumentTypeError(f"not among {', '.join(known)}: {', '.join(sorted(unknown))}")
    return text.split(",")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", type=lambda text: _some_of(PARTS, text), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--kinds", type=lambda text: _some_of(KINDS, text), default=list(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--mbit", type=int, default=100, help="the limit")
    parser.add_argument("--seconds", type=int, default=4, help="of each transfer")
    parser.add_argument("--rounds", type=int, default=3, help="of the throughput")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        stack.enter_context(running(node, USERSPACE_CNI_TICK_S="30"))
        bench = Bench(node)
        if "limits" in options.only:
            report["limits"] = limits(bench, options.kinds, options.mbit, options.seconds)
        if "throughput" in options.only:
            report["throughput"] = throughput(bench, options.kinds, options.seconds, options.rounds)
    report["machine at the end"] = machine()
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
