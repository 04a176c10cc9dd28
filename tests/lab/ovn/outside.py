"""A network outside of OVN's: a network namespace that each chassis of `TwoChassis` reaches by a bridge with a NIC of its own."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import click
from click.testing import CliRunner, Result

from tests.lab.frames.taps import SECONDS, socket_in
from tests.lab.ovn.two_chassis import NODES, TwoChassis
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.veths import give, inside, veth
from userspace_cni.cli.main import userspace_cni

BRIDGE: Final = "br-ex"
ROUTER4, ROUTER6 = "192.0.2.1", "2001:db8::1"
"""The addresses of the machine outside, by version of IP."""
NIC: Final = "ext0"
_LAN: Final = "lan"
_PORT: Final = 8080


@contextmanager
def outside_of(ovn: TwoChassis) -> Iterator[str]:
    """The path of its network namespace. Both nodes are on one Ethernet with it."""
    with ExitStack() as stack:
        made = stack.enter_context(netns())
        inside(made, "ip", "link", "add", _LAN, "type", "bridge")
        give(made, _LAN, f"{ROUTER4}/24", f"{ROUTER6}/64")
        for number, node in enumerate(NODES, 1):
            switch, end = ovn.switches[node], f"to-{node}"
            veth(switch.netns, NIC, made, end)
            inside(made, "ip", "link", "set", end, "master", _LAN)
            inside(made, "ethtool", "-K", end, "tx", "off")  # else the datapath sends frames without a checksum of TCP
            pinned = f'other_config:hwaddr="0a:ee:00:00:00:0{number}"'
            row = ("datapath_type=netdev", "fail-mode=standalone", pinned)
            switch.vsctl("add-br", BRIDGE, "--", "set", "Bridge", BRIDGE, *row, "--", "add-port", BRIDGE, NIC)
            stack.callback(switch.vsctl, "--if-exists", "del-br", BRIDGE)
        inside(made, "ethtool", "-K", _LAN, "tx", "off")
        yield made


def run_on(ovn: TwoChassis, node: str, environment: dict[str, str], *arguments: str, code: int = 0) -> Result:
    """Run a command of `ovn` as on the node; it has to end with `code`."""
    return run_program_on(ovn, node, environment, userspace_cni, "ovn", *arguments, code=code)


def run_program_on(
    ovn: TwoChassis, node: str, environment: dict[str, str], program: click.Command, *arguments: str, code: int = 0
) -> Result:
    """The same of another program."""
    switch = ovn.switches[node]
    there = {
        "USERSPACE_CNI_OVN_NB": ovn.remote("nb"),
        "USERSPACE_CNI_OVN_SB": ovn.remote("sb"),
        "USERSPACE_CNI_OVSDB": switch.ovsdb,
        "USERSPACE_CNI_SWITCH_NETNS": switch.netns,
        "OVS_RUNDIR": switch.rundir,
    }
    done = CliRunner(env={**environment, **there}).invoke(program, arguments)
    assert done.exit_code == code, done.output
    return done


def answers(netns: str, address: str) -> bool:
    """Whether one echo request from the network namespace is answered, of either version of IP."""
    ping = ["nsenter", f"--net={netns}", "ping", "-n", "-c", "1", "-W", "1", address]
    return not subprocess.run(ping, check=False, stdout=subprocess.DEVNULL, timeout=60).returncode


def connect(client: str, server: str, address: str, dialled: tuple[str, int] | None = None, *, seconds: float = SECONDS) -> str:
    """The address from which a server, listening in one network namespace, sees a client of another one.

    `dialled`: where the client connects, if something translates it. `seconds`: for each step. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket_in(server, family) as listening, socket_in(client, family) as calling:
        for each in (listening, calling):
            each.settimeout(seconds)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, _PORT))
        listening.listen()
        calling.connect(dialled or (address, _PORT))
        calling.sendall(b"hello")
        accepted, (peer, *_) = listening.accept()
        with accepted:
            accepted.settimeout(calling.gettimeout())
            assert accepted.recv(16) == b"hello"
            accepted.sendall(b"there")
            assert calling.recv(16) == b"there"
        return str(peer)
