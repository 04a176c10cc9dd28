"""A datagram in each direction shows whether the node forwards for a gateway; the node's own rules carry it, and none leaves the
node.

Each rule in these tests is one that real firewalls have, in the namespace that stands for the node.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cni.spec import switch_of
from tests.lab.frames.taps import socket_in
from tests.lab.network.gateways import BOTH_HOLD, GATEWAY, OUTSIDE, Site, everything, kept, routed
from tests.lab.network.outside import Wire
from tests.lab.node.links import inside
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.proxy import Proxy
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import veth
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.gateways import EgressGateway, Gateway
from userspace_cni.host.node_net import legacy_rules
from userspace_cni.host.node_net.udp_frames import read
from userspace_cni.host.pod_net.neighbour_frames import claim
from userspace_cni.network import concerns
from userspace_cni.network.passages import passages

NIC = "nic0"
PORT = GATEWAY.port
PASSES = {4: ("passes", ""), 6: ("passes", "")}
SECONDS = 60.0
EGRESS = EgressGateway(OUTSIDE[0], 1042, 1042)
CLEAN = (
    *(f"nft delete table {family} theirs" for family in ("ip", "ip6", "inet", "netdev")),
    *(f"nft delete table {family} {table}" for family in ("ip", "ip6") for table in ("filter", "nat")),
    *(f"{program}-legacy -P FORWARD ACCEPT" for program in ("iptables", "ip6tables")),
    *(f"{program}-legacy -t {each} -F" for program in ("iptables", "ip6tables") for each in ("raw", "filter", "nat")),
    "echo 1 > /proc/sys/net/ipv4/ip_forward",
    "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
    "ip rule delete priority 50",
    "ip -6 rule delete priority 50",
    "ip route flush table 77",
)


@pytest.fixture
def wire(node: Node) -> Iterator[Wire]:
    """A NIC of the node, which forwards, with the default routes, and what lies beyond."""
    with routed(switch_of(node).netns) as made:
        inside(made.node, "ip", "route", "add", "default", "via", OUTSIDE[0])
        inside(made.node, "ip", "-6", "route", "add", "default", "via", OUTSIDE[1])
        yield made


@pytest.fixture
def site(node: Node, wire: Wire) -> Iterator[Site]:
    """The node's own network, with a gateway; rules that a test adds are removed afterwards."""
    with kept(node, wire.node) as made:
        assert made.keep(GATEWAY) == BOTH_HOLD
        try:
            yield made
        finally:
            inside(made.place, "sh", "-c", "".join(f"{each} 2> /dev/null; " for each in CLEAN) + "true")


def told(site: Site, gateway: Gateway = GATEWAY) -> dict[int, tuple[str, str]]:
    """What became of the datagrams, by IP version."""
    uplinks = {gateway.port: {4: NIC, 6: NIC}}
    found = passages([gateway], site.local.installation, site.local.switch.ports, uplinks, Deadline.after(SECONDS))
    return {each.version: (each.state, each.reason) for each in found}


def uncounted(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """The rules without the values of their counters."""
    return {name: [re.sub(r"counter packets \d+ bytes \d+", "counter", line) for line in lines] for name, lines in found.items()}


def nft(*rules: str, family: str = "inet", hook: str = "forward", priority: int = 0, policy: str = "accept") -> str:
    """The shell command that makes a table with these rules in a base chain."""
    kind = "nat" if hook == "postrouting" else "filter"
    head = f"add chain {family} theirs sub; add chain {family} theirs C {{ type {kind} hook {hook} priority {priority}; "
    body = "".join(f"add rule {family} theirs {each if each.startswith('sub ') else 'C ' + each}; " for each in rules)
    return f"nft '{'add table ' + family + ' theirs; '}{head}policy {policy}; }}; {body}'"


class Case(NamedTuple):
    """A command on the node, an IP version, and the expected finding."""

    done: str
    version: int
    state: str
    why: str


ZONES = (
    'iifname "nic0" oifname "nic0" accept; add rule inet theirs sub iifname "nic0" drop; '
    'add rule inet theirs sub oifname "nic0" accept'
)
"""Rules as firewalld makes them: chains by the link's zone, and a reject for links in no zone."""
LOST: Sequence[Case] = (
    Case(
        nft("ct state { established, related } accept", "jump sub", f"sub {ZONES}", "reject with icmpx admin-prohibited"),
        4,
        "unknown",
        "rule 'reject with icmpx admin-prohibited'; but chain inet theirs sub asks for the link nic0",
    ),
    Case(nft(family="ip", policy="drop"), 4, "lost", "on the way out: at chain ip theirs C, by its policy"),
    Case(
        nft("iifname br-test-gw accept", family="ip", policy="drop"),
        4,
        "lost",
        "on the way back: at chain ip theirs C, by its policy",
    ),
    Case(
        nft("ip daddr 198.18.0.0/15 counter drop"),
        4,
        "lost",
        "on the way out: at chain inet theirs C, rule 'ip daddr 198.18.0.0/15 counter drop'",
    ),
    Case(
        nft("ip6 saddr fd00:56::/64 reject"),
        6,
        "lost",
        "on the way out: at chain inet theirs C, rule 'ip6 saddr fd00:56::/64 reject",
    ),
    Case(
        nft("jump sub", "sub meta l4proto udp oifname br-test-gw drop"),
        4,
        "lost",
        "on the way back: at chain inet theirs sub, rule",
    ),
    Case(nft("ct state invalid drop", hook="prerouting", priority=-150), 4, "passes", ""),
    Case(
        nft("meta l4proto udp drop", hook="prerouting", priority=-300), 6, "lost", "on the way out: at chain inet theirs C, rule"
    ),
    Case(nft("ip saddr 10.56.0.0/24 notrack", hook="prerouting", priority=-300), 4, "lost", "masquerade has no effect"),
    Case(
        "iptables-nft -A FORWARD -i br-test-gw -j REJECT", 4, "lost", "on the way out: at chain ip filter FORWARD, rule 'iifname"
    ),
    Case("iptables-nft -P FORWARD DROP", 4, "lost", "on the way out: at chain ip filter FORWARD, by its policy"),
    Case(
        "iptables-legacy -P FORWARD DROP",
        4,
        "lost",
        "on the way out: by legacy iptables, table filter: the policy DROP of chain FORWARD",
    ),
    Case(
        "iptables-legacy -A FORWARD -o br-test-gw -j REJECT",
        4,
        "lost",
        "on the way back: by legacy iptables, table filter: -A FORWARD -o br-test-gw -j REJECT",
    ),
    Case(
        "ip6tables-legacy -t raw -A PREROUTING -i br-test-gw -p udp -j DROP",
        6,
        "lost",
        "on the way out: by legacy iptables, table raw: -A PREROUTING -i br-test-gw -p udp -j DROP",
    ),
    Case(
        "echo 0 > /proc/sys/net/ipv4/ip_forward",
        4,
        "lost",
        "on the way out: after prerouting and before forward, by routing (net.ipv4.ip_forward",
    ),
    Case(
        "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding", 6, "lost", "before forward, by routing (net.ipv6.conf.all.forwarding"
    ),
    Case("ip rule add from 10.56.0.0/24 prohibit priority 50", 4, "lost", "on the way out: after prerouting and before forward"),
    Case(
        f"ip rule add from 10.56.0.0/24 lookup 77 priority 50; ip route add default via {OUTSIDE[0]} table 77",
        4,
        "unknown",
        "on the way out, a routing rule or a mark leads the datagram to link nic0, where it was stopped",
    ),
    Case(
        nft("iifname br-test-gw oifname nic0 accept", "ct state established accept", policy="drop"),
        4,
        "unknown",
        "a datagram is lost at chain inet theirs C, by its policy; but chain inet theirs C asks for the link nic0",
    ),
    Case(nft("oifname nic0 drop"), 4, "unknown", "chain inet theirs C asks for the link nic0"),
    Case(nft('oifname { "nic0", "other" } drop'), 6, "unknown", "chain inet theirs C asks for the link nic0"),
    Case(nft('oifname vmap { "nic0" : drop, "other" : accept }'), 6, "unknown", "chain inet theirs C asks for the link nic0"),
    Case(nft('oifname "ni*" jump sub', "sub drop"), 4, "unknown", "chain inet theirs C asks for the link nic0"),
    Case(nft('oifname { "ni*", "other" } drop'), 4, "unknown", "chain inet theirs C asks for the link nic0"),
    Case(nft('oifname { "nj*", "nic" } drop'), 4, "passes", ""),
    Case(nft('iifname . oifname { "br-test-gw" . "nic0" } drop'), 4, "unknown", "chain inet theirs C asks for the link nic0"),
    Case("ip rule add iif nic0 prohibit priority 50", 4, "unknown", "routing rule 50 asks for the link nic0"),
    Case("ip -6 rule add iif nic0 prohibit priority 50", 6, "unknown", "routing rule 50 asks for the link nic0"),
    Case(nft("oif nic0 drop"), 4, "unknown", "chain inet theirs C asks for the link nic0"),
    Case(nft("oifname nic0 masquerade", hook="postrouting"), 4, "passes", ""),
    Case(nft("oifname other drop"), 4, "passes", ""),
    Case("iptables-nft -A FORWARD -o nic0 -j DROP", 4, "unknown", "chain ip filter FORWARD asks for the link nic0"),
    Case("iptables-legacy -A FORWARD -o nic+ -j DROP", 4, "unknown", "legacy iptables asks for the link nic0"),
    Case("iptables-legacy -t nat -A POSTROUTING -o nic0 -j MASQUERADE", 4, "passes", ""),
    Case(
        "nft add table netdev theirs; "
        "nft 'add chain netdev theirs I { type filter hook ingress device br-test-gw priority 0; policy drop; }'",
        4,
        "unknown",
        "on the way out, a datagram is lost before the hooks of IP",
    ),
)


@pytest.mark.parametrize("case", LOST, ids=[f"{each.state}: {each.done[-50:]}" for each in LOST])
def test_what_rules_do_is_told(site: Site, case: Case) -> None:
    """A lost datagram is reported as lost at its rule, one that cannot be judged as unknown; the node is unchanged."""
    inside(site.place, "sh", "-c", case.done)
    before = uncounted(everything(site.place))
    state, why = told(site)[case.version]
    assert (state, case.why) == (case.state, case.why if case.why in why else why)
    assert uncounted(everything(site.place)) == before


def test_it_passes(site: Site) -> None:
    """With nothing in the way both versions pass, with and without a VLAN and masquerade; nothing is left."""
    before = everything(site.place)
    assert told(site) == PASSES
    assert everything(site.place) == before
    other = replace(GATEWAY, vlan=7, masquerade=False)
    assert site.keep(other) == {PORT: ""}
    assert told(site, other) == PASSES


@pytest.mark.parametrize("strict", ["0", "1", "2"])
def test_an_egress_gateway(site: Site, strict: str) -> None:
    """The datagrams of a gateway with an egress gateway go by its own routing table, whatever the uplink's rp_filter."""
    assert site.keep(replace(GATEWAY, egress_gateway=EGRESS)) == BOTH_HOLD
    inside(site.place, "sh", "-c", f"echo {strict} > /proc/sys/net/ipv4/conf/{NIC}/rp_filter")
    before = everything(site.place)
    assert told(site, replace(GATEWAY, egress_gateway=EGRESS)) == PASSES
    assert everything(site.place) == before


@pytest.mark.parametrize(
    ("protocol", "state"),
    [
        ("OpenFlow10", "passes"),
        ("OpenFlow12", "passes"),
        ("OpenFlow13", "passes"),
        ("OpenFlow14", "passes"),
        ("OpenFlow15", "unknown"),
    ],
)
def test_versions_of_openflow(node: Node, site: Site, protocol: str, state: str) -> None:
    """It works with any OpenFlow version that the administrator allows the
    bridge, except 1.5, where it says why nothing is known.
    """
    switch_of(node).vsctl("set", "Bridge", "br-test", f"protocols={protocol}")
    found = told(site)
    assert {each for each, _ in found.values()} == {state}
    assert all("OpenFlow: the bridge speaks 1.5" in why for _, why in found.values() if state == "unknown")


@pytest.mark.parametrize("protocol", ["OpenFlow10", "OpenFlow13"])
def test_another_controller_of_the_bridge(node: Node, site: Site, protocol: str, tmp_path: Path) -> None:
    """It gets no frame of the trial: an ovn-controller 23.03 aborts at one."""
    switch = switch_of(node)
    switch.vsctl("set", "Bridge", "br-test", f"protocols={protocol}")
    ofctl, at, log = ("ovs-ofctl", "-O", protocol), f"{switch.rundir}/br-test.mgmt", tmp_path / "log"

    def hears(octet: str) -> bool:
        frame = f"in_port=LOCAL packet={octet * 60} actions=controller"
        subprocess.run((*ofctl, "packet-out", at, frame), check=True)
        return f"dl_dst={':'.join([octet] * 6)}" in log.read_text()

    monitor = ("env", f"OVS_RUNDIR={tmp_path}", *ofctl, "monitor", at, "65534")
    with log.open("w") as file, subprocess.Popen(monitor, stdout=file, stderr=file) as other:
        try:
            wait_until(lambda: hears("ff"), what=f"the other controller's frames: {log.read_text()}")
            assert told(site) == PASSES
            wait_until(lambda: hears("ee"), what="its next frame")
        finally:
            other.terminate()
    assert "udp" not in log.read_text()


@contextmanager
def heard(*at: tuple[str, str]) -> Iterator[list[bytes]]:
    """All frames on these links, each a namespace and a name, once it has ended."""
    frames: list[bytes] = []
    with ExitStack() as stack:
        opened = []
        for place, link in at:
            made = stack.enter_context(closing(socket_in(place, socket.AF_PACKET, socket.SOCK_RAW)))
            made.bind((link, 3))
            made.setblocking(False)
            opened.append(made)
        yield frames
        for each in opened:
            while True:
                try:
                    frames.append(each.recv(2048))
                except BlockingIOError:
                    break


def test_nothing_leaves(node: Node, site: Site, wire: Wire) -> None:
    """No datagram reaches another port of the bridge or the wire, whatever rules and routes do with it."""
    switch = switch_of(node)
    with netns() as machine:
        veth(site.place, "beside0", machine, "m0", "10.56.0.7/24")
        switch.vsctl("add-port", "br-test", "beside0")
        try:
            with heard((wire.outside, wire.beyond), (machine, "m0")) as frames:
                assert told(site) == PASSES
                inside(machine, "ping", "-c", "1", "-w", "20", "10.56.0.1")  # which is heard
                for done in (nft(family="ip", policy="drop"), "ip rule add from 10.56.0.0/24 lookup 77 priority 50"):
                    inside(site.place, "sh", "-c", done)
                inside(site.place, "ip", "route", "add", "default", "via", OUTSIDE[0], "table", "77")
                assert told(site)[4][0] != "passes"
                inside(site.place, "nft", "delete", "table", "ip", "theirs")
                assert told(site)[4][0] == "unknown"
        finally:
            switch.vsctl("del-port", "br-test", "beside0")
    assert frames
    assert [each for each in frames if read(each)] == []


def test_nothing_of_it_on_a_bridge_that_leads_out(node: Node, site: Site, wire: Wire) -> None:
    """When a gateway's bridge has a NIC, not even the ARP question for a free address reaches the wire."""
    switch = switch_of(node)
    sole = replace(GATEWAY, sole=True)
    switch.vsctl("add-port", "br-test", wire.nic)
    try:
        require_nothing_on_the_wire(site, wire, sole)
    finally:
        switch.vsctl("del-port", "br-test", wire.nic)


def require_nothing_on_the_wire(site: Site, wire: Wire, gateway: Gateway) -> None:
    """The datagrams of this gateway pass, and no frame of theirs reaches the wire."""
    with heard((wire.outside, wire.beyond)) as frames:
        assert told(site, gateway) == PASSES
    # the gateway's own address is announced by others, and again a moment later
    assert [each for each in frames if read(each)] == []
    asked = {each[38:42] for each in frames if each[12:14] == b"\x08\x06" and each[38:41] == bytes((10, 56, 0))}
    assert asked <= {bytes((10, 56, 0, 1))}
    senders = {str(each.address) for each in map(claim, frames) if each}
    assert {each for each in senders if each.startswith("10.56.0.")} <= {"10.56.0.1"}


def test_a_nic_that_was_added_a_moment_ago(node: Node, wire: Wire, tmp_path: Path) -> None:
    """No question reaches the wire of a NIC of which the replica does not know yet: the server is asked whether there is one."""
    switch = switch_of(node)
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        node.settings["USERSPACE_CNI_OVSDB"] = proxy.remote
        with kept(node, wire.node) as site:
            assert site.keep(GATEWAY) == BOTH_HOLD
            proxy.lag()
            switch.vsctl("add-port", "br-test", wire.nic)
            try:
                require_nothing_on_the_wire(site, wire, replace(GATEWAY, sole=True))
            finally:
                proxy.prompt.set()
                switch.vsctl("del-port", "br-test", wire.nic)


def test_an_address_that_a_machine_has(node: Node, site: Site) -> None:
    """When machines have all addresses of the subnet, none is used and the answer is unknown; it passes once one is free."""
    small = replace(GATEWAY, addresses=("10.57.0.1/30",))
    assert site.keep(small) == BOTH_HOLD
    switch = switch_of(node)
    with netns() as machine:
        switch.vsctl("add-port", "br-test", "beside0", "--", "set", "Interface", "beside0", "type=internal")
        try:
            inside(site.place, "ip", "link", "set", "beside0", "netns", machine)
            inside(machine, "sh", "-c", "ip address add 10.57.0.2/30 dev beside0; ip link set beside0 up")
            wait_until(lambda: told(site, small)[4][0] == "unknown", what="the machine answers")
            assert "no address of 10.57.0.0/30 was found that no machine has" in told(site, small)[4][1]
            inside(machine, "ping", "-c", "1", "-w", "20", "10.57.0.1")
            inside(machine, "sh", "-c", "echo 8 > /proc/sys/net/ipv4/conf/beside0/arp_ignore")
            assert told(site, small)[4][0] == "unknown"  # it answers no question, but the node knows it
        finally:
            switch.vsctl("del-port", "br-test", "beside0")
    inside(site.place, "ip", "neigh", "flush", "dev", PORT)
    assert told(site, small) == {4: ("passes", "")}


def test_several_at_once(site: Site) -> None:
    """Trials of an agent and of commands at the same time do not disturb each other."""
    before = everything(site.place)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: told(site), range(8))) == [PASSES] * 8
    assert everything(site.place) == before


def test_a_switch_that_is_away(node: Node, site: Site) -> None:
    """For a port that the switch lacks, and with a switch that does not answer, the result is unknown; the node is unchanged."""
    before = everything(site.place)
    found = told(site, replace(GATEWAY, port="other-gw"))
    assert {each[0] for each in found.values()} == {"unknown"}
    switch_of(node).pause_vswitchd()
    try:
        found = told(site)
    finally:
        switch_of(node).resume_vswitchd()
    assert {state for state, _ in found.values()} == {"unknown"}
    assert all("OpenFlow" in why for _, why in found.values())
    assert everything(site.place) == before
    assert told(site) == PASSES


def test_when_it_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial's own changes of tables do not cause another trial; another program's change does, and so does a sysctl."""
    monkeypatch.setattr(concerns, "APART_S", 0.0)
    # a namespace in which the legacy iptables was once used has its tables for good, and other tests have used it
    monkeypatch.setattr(legacy_rules, "has_tables", lambda *_: False)
    trials = concerns._Trials(site.local.installation, site.local.switch)
    assert trials.are_due([GATEWAY])
    assert {each.state for each in trials.made([GATEWAY])} == {"passes"}
    assert not trials.are_due([GATEWAY])
    inside(site.place, "sh", "-c", nft())
    assert trials.are_due([GATEWAY])
    trials.made([GATEWAY])
    assert not trials.are_due([GATEWAY])
    inside(site.place, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
    assert trials.are_due([GATEWAY])
    assert [each.state for each in trials.made([GATEWAY])] == ["lost", "passes"]
    assert trials.are_due([GATEWAY])
    inside(site.place, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    trials.made([GATEWAY])
    assert not trials.are_due([GATEWAY])
    monkeypatch.setattr(concerns, "APART_S", 3600.0)
    inside(site.place, "nft", "delete", "table", "inet", "theirs")
    assert not trials.are_due([GATEWAY])
    assert trials.are_due([])
