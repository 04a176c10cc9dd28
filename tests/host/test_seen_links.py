"""How a pod's veth is seen when a person asks why it does not work: each end, the pod's routes, and who answers for addresses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.host.places import soon
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give, inside
from userspace_cni.attachment.steps import Link
from userspace_cni.base.settings import Settings
from userspace_cni.host.pod_net.pod_links import LinkDriver
from userspace_cni.node.installation import Installation
from userspace_cni.node.seen_link import SeenLink, see_link

HOST, ALIAS, OWN, THEIRS = "uc0123456789ab", "userspace-cni store c0ffee@net1", "02:00:00:00:00:0a", "02:00:00:00:00:0b"

Look = Callable[[], SeenLink]


@pytest.fixture
def other() -> Iterator[str]:
    """The namespace of another machine on the wire."""
    with netns() as path:
        yield path


@pytest.fixture
def step(sandbox: str, other: str) -> Link:
    """A pod's veth whose host end is on the wire of another machine, which has the gateways' addresses."""
    made = Link(
        host=HOST,
        host_mac=THEIRS,
        alias=ALIAS,
        name="net1",
        mac=OWN,
        mtu=1500,
        netns=sandbox,
        netns_inode=Path(sandbox).stat().st_ino,
        switch_netns=other,
        addresses=("10.1.0.2/24", "fd01::2/64"),
        routes=({"dst": "10.9.0.0/16", "gw": "10.1.0.1"}, {"dst": "fd09::/32", "gw": "fd01::1"}),
    )
    LinkDriver().apply(made, soon())
    give(other, HOST, "10.1.0.1/24", "fd01::1/64")
    return made


@pytest.fixture
def look(step: Link, tmp_path: Path) -> Look:
    here = Installation(Settings(state_dir=str(tmp_path), switch_netns=step.switch_netns), {})
    return lambda: see_link(step, here, soon())


def test_a_sound_link(look: Look) -> None:
    """Both ends are there, offload is off, the gateways answer, and no other machine has the addresses."""
    seen = look()
    assert (seen.host, seen.host_up, seen.foreign, seen.gone) == (HOST, True, "", "")
    assert (seen.end, seen.end_up, seen.carrier, seen.taken, seen.offload) == ("net1", True, True, False, False)
    assert (seen.failed, seen.rules, seen.without_ipv6, seen.reverse_path_drops) == ((), (), False, 0)
    assert (seen.duplicates, seen.silent) == ({}, ())
    assert {str(each) for each in seen.inside.routes if not each.dst.is_link_local} == {
        "10.1.0.0/24 dev net1",
        "10.9.0.0/16 via 10.1.0.1 dev net1",
        "fd01::/64 dev net1",
        "fd09::/32 via fd01::1 dev net1",
    }


def test_ends_that_were_renamed_moved_or_deleted(look: Look, step: Link) -> None:
    """Each is found by what belongs together, not by its name; what has taken its name is seen, too."""
    inside(step.netns, "ip", "link", "set", "net1", "down")
    assert (look().end_up, look().duplicates) == (False, None)
    inside(step.netns, "ip", "link", "set", "net1", "name", "lan7")
    inside(step.netns, "ip", "link", "add", "net1", "type", "veth", "peer", "name", "far1")
    assert (look().end, look().taken) == ("lan7", True)
    inside(step.switch_netns, "ip", "link", "set", HOST, "down")
    inside(step.switch_netns, "ip", "link", "set", HOST, "name", "eth7")
    assert (look().host, look().host_up) == ("eth7", False)
    inside(step.switch_netns, "ip", "link", "add", HOST, "type", "veth", "peer", "name", "far2")
    assert look().foreign == "no alias"
    with netns() as third:
        inside(step.netns, "ip", "link", "set", "lan7", "netns", third)
        seen = look()
        assert (seen.end, seen.host, seen.gone) == ("", "eth7", "")
    inside(step.switch_netns, "ip", "link", "delete", HOST)
    wait_until(lambda: not look().host, what="the pair to be gone with the namespace of one end")


def test_what_the_pod_has_made_of_it(look: Look, step: Link) -> None:
    """Offload that is on again, IPv6 that is off, rules of policy, and packets that rp_filter has dropped."""
    inside(step.netns, "ethtool", "-K", "net1", "tx", "on")
    inside(step.netns, "ip", "rule", "add", "from", "10.1.0.0/24", "lookup", "77", "priority", "100")
    inside(step.netns, "sysctl", "-q", "-w", "net.ipv6.conf.net1.disable_ipv6=1", "net.ipv4.conf.net1.rp_filter=1")
    give(step.switch_netns, HOST, "192.0.2.9/24")
    inside(step.switch_netns, "ip", "route", "replace", "10.1.0.2", "dev", HOST, "src", "192.0.2.9")
    made = "from socket import *; s = socket(AF_INET, SOCK_DGRAM); "
    send = "s.bind(('192.0.2.9', 0)); s.sendto(b'', ('10.1.0.2', 9))"
    inside(step.switch_netns, sys.executable, "-c", made + send)
    wait_until(lambda: look().reverse_path_drops > 0, what="the packet to come in, and be dropped")
    seen = look()
    assert (seen.offload, seen.without_ipv6, seen.rules) == (True, True, ("100: from 10.1.0.0/24 lookup 77",))
    assert seen.rp_filter == 1
    assert [str(each) for each in seen.inside.links["net1"].addresses] == ["10.1.0.2/24"]


def test_who_answers(look: Look, step: Link) -> None:
    """Another machine with the pod's address is found by its MAC, one that IPv6 found, too, and a gateway that is away."""
    inside(step.switch_netns, "ip", "address", "delete", "10.1.0.1/24", "dev", HOST)
    give(step.switch_netns, HOST, "10.1.0.2/24", "fd01::2/64")
    seen = look()
    assert seen.duplicates == {"10.1.0.2": THEIRS, "fd01::2": THEIRS}
    assert seen.silent == ("10.1.0.1",)
    inside(step.netns, "sysctl", "-q", "-w", "net.ipv6.conf.net1.accept_dad=1")
    inside(step.netns, "ip", "address", "delete", "fd01::2/64", "dev", "net1")
    inside(step.netns, "ip", "address", "add", "fd01::2/64", "dev", "net1")
    wait_until(lambda: look().failed == ("fd01::2",), what="the kernel to find that another machine has it")


def test_a_pod_of_which_nothing_is_left(step: Link, tmp_path: Path) -> None:
    """A namespace that is another one by now is gone."""
    here = Installation(Settings(state_dir=str(tmp_path), switch_netns=step.switch_netns), {})
    assert "another namespace" in see_link(replace(step, netns_inode=1), here, soon()).gone
