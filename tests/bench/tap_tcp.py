"""TCP between two pods on one OVS-DPDK: taps with and without offloads, beside kernel links and a veth pair without a switch.

`python tests/bench/tap_tcp.py [--json] [--seconds S] [--only KIND,...]`, as root. One iperf3 connection for each kind and MTU,
one after the other in one run. Both ends of a kind are the same:

    no offloads   `userspace-cni tap --no-offloads`: each segment is a frame of its own
    cut here      `userspace-cni tap`, whose pump cuts and merges
    switch's TSO  the same at a switch that was started with userspace-tso-enable
    system, af_packet, afxdp
                  veths of our plugin, by the way in which the switch opens their host ends; at an MTU of 1500 alone
    veth pair     no switch at all: what iperf3 and the kernel's TCP cost, on one core

CPU is what all processes and the kernel use, without the switch's polling thread, in seconds of a core for a Gbit; of that thread
the share of cycles in which it had frames. On two cores everything but that thread shares one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.bench.rates import PEER, POD, Bench, Pods, serve
from tests.bench.report import arguments, machine, tell
from tests.lab.frames.taps import SECONDS, TapProcess, echoes
from tests.lab.node.agent import running
from tests.lab.node.links import inside, pings
from tests.lab.node.node import Node, clean
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until

TAPS: Final = {"no offloads": ("--no-offloads",), "cut here": (), "switch's TSO": ()}
LINKS: Final = ("system", "af_packet", "afxdp")
PAIR: Final = "veth pair"
KINDS: Final = (PAIR, *LINKS, *TAPS)
TSO: Final = "switch's TSO"
BRIDGE: Final = "br-taps"
_TICK: Final = os.sysconf("SC_CLK_TCK")
_SHARE: Final = re.compile(r"processing cycles: \d+ \((\d+\.\d+)%\)")


class Links(Bench):
    """Pods whose both ends are kernel links of one kind."""

    @contextmanager
    def alike(self, kind: str) -> Iterator[Pods]:
        with ExitStack() as stack:
            both = Pods(stack.enter_context(netns()), stack.enter_context(netns()))
            stack.enter_context(self._attached(kind, both.peer, PEER, {}))
            stack.enter_context(self._attached(kind, both.pod, POD, {}))
            yield both


@dataclass
class Meter:
    """Processor time of the machine and of the polling threads of a switch."""

    switch: Switch

    def used(self) -> tuple[float, float]:
        """Seconds of everything but the polling threads, and of these."""
        fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]))
        busy = (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / _TICK
        polling = 0.0
        for task in Path(f"/proc/{self.switch.vswitchd_pid}/task").iterdir():
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            if name.startswith("pmd"):
                polling += sum(map(int, rest.split()[11:13])) / _TICK
        return busy - polling, polling

    def share(self) -> float:
        """Percent of the polling threads' cycles that had frames, since the last call."""
        shown = self.switch.appctl("dpif-netdev/pmd-stats-show")
        self.switch.appctl("dpif-netdev/pmd-stats-clear")
        found = [float(each) for each in _SHARE.findall(shown)]
        return max(found, default=0.0)


@contextmanager
def taps(switch: Switch, options: tuple[str, ...], mtu: int) -> Iterator[Pods]:
    """Two taps at two ports of the switch."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        both = Pods(stack.enter_context(netns()), stack.enter_context(netns()))
        for name, place, address in (("tap-pod", both.pod, POD), ("tap-peer", both.peer, PEER)):
            path = directory / name
            arguments = ["--mode", "server", "--name", "eth0", "--address", f"{address}/24", "--mtu", str(mtu)]
            tap = stack.enter_context(TapProcess(place, str(path), *arguments, *options))
            wait_until(path.exists, SECONDS, "a socket")
            row = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}", f"mtu_request={mtu}"]
            switch.vsctl("add-port", BRIDGE, name, "--", "set", "Interface", name, *row)
            stack.callback(switch.vsctl, "del-port", name)
            tap.until("ready")
        wait_until(lambda: echoes(both.pod, PEER), SECONDS, "an echo")
        yield both


@contextmanager
def veth_pair(mtu: int) -> Iterator[Pods]:
    """Two namespaces with a veth between them."""
    with netns() as pod, netns() as peer:
        other = ["peer", "name", "eth0", "mtu", str(mtu), "netns", peer]
        inside(pod, "ip", "link", "add", "eth0", "mtu", str(mtu), "type", "veth", *other)
        for place, address in ((pod, POD), (peer, PEER)):
            inside(place, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            inside(place, "ip", "link", "set", "eth0", "up")
        yield Pods(pod, peer)


def measured(pods: AbstractContextManager[Pods], meter: Meter, seconds: int) -> dict[str, Any]:
    """One transfer from the pod to its peer, and what it cost."""
    with pods as both, ExitStack() as stack:
        stack.enter_context(serve(both.peer))
        wait_until(lambda: pings(both.pod, PEER, 1), what="the peer to answer", pause=0.1)
        meter.share()
        before = meter.used()
        end = both.run("from the pod", seconds)
        used = meter.used()[0] - before[0]
        gbit = end["sum_received"]["bits_per_second"] / 1e9
        return {
            "gbit_s": round(gbit, 2),
            "cpu_s_per_gbit": round(used / (gbit * seconds), 3),
            "pmd_percent": round(meter.share(), 1),
            "sent_again": end["sum_sent"].get("retransmits", 0),
        }


def restart_with(switch: Switch, *, tso: bool) -> None:
    """Start ovs-vswitchd anew: it reads this at its start alone."""
    switch.vsctl("set", "Open_vSwitch", ".", f"other_config:userspace-tso-enable={str(tso).lower()}")
    switch.kill_vswitchd()
    switch.restart_vswitchd()


def measure(switch: Switch, links: Links, wanted: list[str], seconds: int) -> list[dict[str, Any]]:
    """A row for each kind and MTU."""
    rows, meter = [], Meter(switch)
    switch.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev")
    for kind in (kind for kind in KINDS if kind in wanted):
        if kind == TSO:
            restart_with(switch, tso=True)
        for mtu in (1500,) if kind in LINKS else (1500, 9000):
            pods = taps(switch, TAPS[kind], mtu) if kind in TAPS else veth_pair(mtu) if kind == PAIR else links.alike(kind)
            rows.append({"kind": kind, "mtu": mtu, **measured(pods, meter, seconds)})
            sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    return rows


def show(report: dict[str, Any]) -> None:
    console = Console(width=120)
    table = Table(title="TCP between two pods, one connection", title_justify="left")
    for column in ("kind", "MTU", "Gbit/s", "CPU s for a Gbit", "PMD %", "sent again"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for row in report["rows"]:
        table.add_row(*map(str, row.values()))
    console.print(table)
    console.print(report["machine"])


def _kinds(text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(KINDS):
        raise argparse.ArgumentTypeError(f"not among {', '.join(KINDS)}: {', '.join(sorted(unknown))}")
    return text.split(",")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=int, default=3, help="of each transfer")
    parser.add_argument("--only", type=_kinds, default=list(KINDS), help=f"of {', '.join(KINDS)}")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="uc-")))
        switch = stack.enter_context(Switch(environment={"PRIVATE_SWITCH_PMD_SLEEP": "0"}))
        node = stack.enter_context(clean(Node(directory / "n", switch)))
        stack.enter_context(running(node, USERSPACE_CNI_TICK_S="30"))
        report["rows"] = measure(switch, Links(node), options.only, options.seconds)
    return tell(report, options.json, show)


if __name__ == "__main__":
    sys.exit(main())
