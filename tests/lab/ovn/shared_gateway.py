"""A gateway router of OVN that shares MAC and addresses with its node, and a machine outside; all on one switch.

The bridge `breth0` has a NIC that leads to the namespace "outside"; its own link is the node's. Rows are written by ovn-nbctl.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.lab.frames.taps import socket_in
from tests.lab.ovn.central import CHASSIS, INTEGRATION, Ovn
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.veths import give, inside, veth

BRIDGE, NIC = "breth0", "eth0"
PORT: Final = f"{BRIDGE}_{CHASSIS}"
MAC: Final = "0a:00:00:00:00:11"
NODE: Final = ("192.0.2.11", "2001:db8:2::11")
OUTSIDE: Final = ("192.0.2.1", "2001:db8:2::1")
POD: Final = ("10.1.0.5", "fd01::5")
GATEWAY: Final = ("10.1.0.1", "fd01::1")
SERVED: Final = 8080
NODE_PORT: Final = 30080
EXTERNAL: Final = "198.51.100.7"
_BALANCERS: Final = ("tcp4", "tcp6", "udp4", "udp6", "external")
_TRY_S: Final = 2.0


@dataclass(frozen=True)
class SharedWorld:
    """The switch with its chassis, and the namespaces of the node, of a machine outside, and of a pod."""

    switch: Switch
    ovn: Ovn
    outside: str
    pod: str

    @property
    def node(self) -> str:
        return self.switch.netns

    def flows(self) -> list[str]:
        """The bridge's flows, without counters."""
        return self._ofctl("--no-stats", "dump-flows", f"{self.switch.rundir}/{BRIDGE}.mgmt").splitlines()

    def ours(self) -> list[str]:
        """Those with a cookie of ours."""
        return [each for each in self.flows() if "cookie=0x55636e" in each]

    def ofctl(self, command: str, *args: str) -> str:
        """The output of a command of ovs-ofctl about the bridge; its options come first."""
        options = [each for each in args if each.startswith("--")]
        flows = [each for each in args if not each.startswith("--")]
        return self._ofctl(*options, command, f"{self.switch.rundir}/{BRIDGE}.mgmt", *flows)

    def _ofctl(self, *args: str) -> str:
        return inside(self.node, "ovs-ofctl", *args)


@contextmanager
def bridge_with_outside(switch: Switch) -> Iterator[str]:
    """Make the bridge, with its NIC and the node's addresses; the namespace of the machine outside."""
    with ExitStack() as stack:
        outside = stack.enter_context(netns())
        switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, "datapath_type=netdev", f'other_config:hwaddr="{MAC}"')
        stack.callback(switch.vsctl, "--if-exists", "del-br", BRIDGE)
        veth(switch.netns, NIC, outside, "out0", *(f"{address}/{size}" for address, size in zip(OUTSIDE, (24, 64), strict=True)))
        stack.callback(inside, switch.netns, "ip", "link", "del", NIC)
        for key in ("ipv4/conf/{}/arp_ignore=8", "ipv6/conf/{}/disable_ipv6=1"):  # the node's stack has no part in it
            inside(switch.netns, "sysctl", "-qw", f"net/{key.format(NIC)}")
        switch.vsctl("add-port", BRIDGE, NIC)
        give(switch.netns, BRIDGE, *(f"{address}/{size}" for address, size in zip(NODE, (24, 64), strict=True)))
        inside(outside, "ethtool", "-K", "out0", "tx", "off")  # else the datapath sends frames without a checksum
        inside(outside, "ip", "route", "add", f"{EXTERNAL}/32", "via", NODE[0])
        yield outside


@contextmanager
def shared_world(switch: Switch, ovn: Ovn) -> Iterator[SharedWorld]:
    """With the rows of the gateway and its load balancer, and without what the node has to make."""
    with bridge_with_outside(switch) as outside, ExitStack() as stack:
        pod = stack.enter_context(netns())
        _write_rows(ovn)
        stack.callback(_remove_rows, ovn)
        wait_until(lambda: switch.bridge(INTEGRATION), what="the controller has made its bridge")
        veth(switch.netns, "pod1", pod, "eth0")
        stack.callback(inside, switch.netns, "ip", "link", "del", "pod1")
        inside(pod, "ip", "link", "set", "eth0", "address", "0a:00:00:00:01:05")
        give(pod, "eth0", f"{POD[0]}/24", f"{POD[1]}/64")
        inside(pod, "ethtool", "-K", "eth0", "tx", "off")
        inside(pod, "ip", "route", "add", "default", "via", GATEWAY[0])
        inside(pod, "ip", "-6", "route", "add", "default", "via", GATEWAY[1])
        switch.vsctl("add-port", INTEGRATION, "pod1", "--", "set", "Interface", "pod1", "external_ids:iface-id=pod1")
        stack.callback(switch.vsctl, "--if-exists", "del-port", INTEGRATION, "pod1")
        wait_until(lambda: switch.interface("pod1")["external_ids"].get("ovn-installed") == "true", what="OVN has the pod")
        yield SharedWorld(switch, ovn, outside, pod)


def _write_rows(ovn: Ovn) -> None:
    commands = [
        "lr-add GR -- set Logical_Router GR options:chassis=" + CHASSIS,
        "ls-add pods",
        f"lrp-add GR rtos 0a:00:00:00:01:01 {GATEWAY[0]}/24 {GATEWAY[1]}/64",
        "lsp-add pods stor -- lsp-set-type stor router -- lsp-set-addresses stor router -- lsp-set-options stor router-port=rtos",
        f"lsp-add pods pod1 -- lsp-set-addresses pod1 0a:00:00:00:01:05\\ {POD[0]}\\ {POD[1]}",
        "ls-add ext",
        f"lrp-add GR rtoe {MAC} {NODE[0]}/24 {NODE[1]}/64",
        "lsp-add ext etor -- lsp-set-type etor router -- lsp-set-addresses etor router -- lsp-set-options etor router-port=rtoe",
        f"lsp-add ext {PORT} -- lsp-set-addresses {PORT} unknown",
        f"lr-nat-add GR snat {NODE[0]} 10.1.0.0/24",
        f"lr-nat-add GR snat {NODE[1]} fd01::/64",
    ]
    for protocol in ("tcp", "udp"):
        for family, vip in (("4", NODE[0]), ("6", f"[{NODE[1]}]")):
            backend = f"{POD[0]}:{SERVED}" if family == "4" else f"[{POD[1]}]:{SERVED}"
            commands.append(f"lb-add {protocol}{family} {vip}:{NODE_PORT} {backend} {protocol}")
            commands.append(f"lr-lb-add GR {protocol}{family}")
    commands.append(f"lb-add external {EXTERNAL}:80 {POD[0]}:{SERVED} tcp")
    commands.append("lr-lb-add GR external")
    for each in commands:
        ovn.nbctl(*(word.replace("\0", " ") for word in each.replace("\\ ", "\0").split()))


def _remove_rows(ovn: Ovn) -> None:
    balancers = [word for name in _BALANCERS for word in ("--", "lb-del", name)]
    ovn.nbctl("lr-del", "GR", "--", "ls-del", "pods", "--", "ls-del", "ext", *balancers)


def pings(source: str, address: str) -> bool:
    """Whether an address answers one of some requests."""
    try:
        inside(source, "ping", "-n", "-q", "-c", "1", "-i", "0.2", "-w", "3", address)
    except Exception:
        return False
    return True


@contextmanager
def serving(place: str, port: int, *, udp: bool = False) -> Iterator[list[str]]:
    """A server of both families that answers each client with what it sent; the addresses of its clients, as they come."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    clients: list[str] = []
    with socket_in(place, socket.AF_INET6, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", port))
        listener.settimeout(0.2)
        over = threading.Event()

        def answer() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    if udp:
                        data, client = listener.recvfrom(65536)
                        clients.append(client[0].removeprefix("::ffff:"))
                        listener.sendto(data, client)
                    else:
                        connection, client = listener.accept()
                        clients.append(client[0].removeprefix("::ffff:"))
                        with connection:
                            connection.settimeout(_TRY_S)
                            connection.sendall(connection.recv(65536))

        if not udp:
            listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield clients
        finally:
            over.set()
            thread.join()


def asks(source: str, address: str, port: int, *, udp: bool = False, size: int = 8) -> bool:
    """Whether a server at the address answers with what it got."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    sent = bytes(number % 251 for number in range(size))
    with socket_in(source, socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as client:
        client.settimeout(_TRY_S)
        try:
            client.connect((address, port))
            client.sendall(sent)
            return client.recv(65536) == sent
        except OSError:
            return False
