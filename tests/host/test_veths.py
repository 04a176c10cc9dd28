"""A pod's veth is made completely, converged, checked and removed, and nothing of others is changed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.host.places import descriptors, in_child, soon
from tests.lab.runtimes.runtime import netns
from userspace_cni.attachment.drift import sentence
from userspace_cni.attachment.steps import Link, LinkRef, Shaper, SharedReads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import AlreadyAttached, ContainerGone, NameTaken, StepFailed, Unavailable, UserspaceError
from userspace_cni.base.root import HostRoot
from userspace_cni.host.pod_net.pod_links import LinkDriver, LinkRefDriver, host_ends, ifindex
from userspace_cni.host.pod_net.shapers import ShaperDriver
from userspace_cni.linux.netlink import NetlinkConnection

HOST = "uc0123456789ab"
ALIAS = "userspace-cni store c0ffee@eth0"
OWN_MAC, HOST_MAC = "02:00:00:00:00:0a", "02:00:00:00:00:0b"


@pytest.fixture
def switch() -> Iterator[str]:
    """The namespace of the switch's ports."""
    with netns() as path:
        yield path


@pytest.fixture
def step(sandbox: str, switch: str) -> Link:
    """An attachment with addresses and routes of both versions of IP."""
    return Link(
        host=HOST,
        host_mac=HOST_MAC,
        alias=ALIAS,
        name="eth0",
        mac=OWN_MAC,
        mtu=1400,
        netns=sandbox,
        netns_inode=Path(sandbox).stat().st_ino,
        switch_netns=switch,
        queue=50,
        addresses=("10.1.1.2/24", "fd00:1::2/64"),
        routes=(
            {"dst": "0.0.0.0/0", "gw": "10.1.1.1"},
            {"dst": "::/0", "gw": "fd00:1::1", "priority": 7},
            {"dst": "10.9.0.0/16", "gw": "10.1.1.254", "mtu": 1300, "advmss": 1200, "priority": 5, "table": 1000},
            {"dst": "10.8.0.0/16", "scope": 253},
        ),
    )


@pytest.fixture
def shaper(step: Link) -> Shaper:
    """A limit of 10 Mbit/s for the same pod."""
    return Shaper("eth0", step.netns, step.netns_inode, 10_000_000, 1_000_000)


def run(netns: str, *command: str) -> str:
    """Output of a command in a namespace."""
    return subprocess.run(["nsenter", f"--net={netns}", *command], check=True, capture_output=True, text=True).stdout


def shown(netns: str, *command: str) -> list[dict[str, Any]]:
    """Output of ip(8) as JSON."""
    return list(json.loads(run(netns, "ip", "-j", "-d", *command) or "[]"))


def names(netns: str) -> set[str]:
    """Names of the links, but for lo and for those that the kernel makes with a namespace."""
    return {each["ifname"] for each in shown(netns, "link") if each.get("link_type") == "ether"}


def apply_and_check(step: Link) -> list[str]:
    """Apply, and return the drifts as text."""
    LinkDriver().apply(step, soon())
    return drifts(step)


def drifts(step: Link) -> list[str]:
    return [sentence(each) for each in LinkDriver().check(step, soon())]


def test_made_whole(step: Link) -> None:
    """Both ends have their names, MAC addresses and MTU; the pod's end has addresses, usable at once, and routes.

    Offload is off.
    """
    before = descriptors()
    assert apply_and_check(step) == []
    (host,) = shown(step.switch_netns, "link", "show", HOST)
    assert (host["address"], host["mtu"], host["ifalias"], host["txqlen"]) == (HOST_MAC, 1400, ALIAS, 50)
    assert host["operstate"] == "UP"
    assert shown(step.switch_netns, "-6", "addr", "show", HOST) == []
    assert offload(step.switch_netns, HOST, GGRO) == 0
    (pod,) = [each for each in shown(step.netns, "addr") if each["ifname"] == "eth0"]
    assert (pod["address"], pod["mtu"], pod["link_index"]) == (OWN_MAC, 1400, host["ifindex"])
    found = {(each["local"], each["prefixlen"], each.get("broadcast")) for each in pod["addr_info"] if each["scope"] == "global"}
    assert found == {("10.1.1.2", 24, "10.1.1.255"), ("fd00:1::2", 64, None)}
    assert not any(each.get("tentative") for each in pod["addr_info"])
    made = {
        (each["dst"], each.get("gateway"), each.get("metric"), each.get("table"), str(each.get("metrics", [])))
        for each in shown(step.netns, "route", "show", "table", "all") + shown(step.netns, "-6", "route", "show", "table", "all")
        if each["protocol"] == "static"
    }
    assert made == {
        ("default", "10.1.1.1", None, "main", "[]"),
        ("default", "fd00:1::1", 7, "main", "[]"),
        ("10.9.0.0/16", "10.1.1.254", 5, "1000", "[{'mtu': 1300, 'advmss': 1200}]"),
        ("10.8.0.0/16", None, None, "main", "[]"),
    }
    assert "UP" in shown(step.netns, "link", "show", "lo")[0]["flags"]
    assert ifindex(HOST, step.switch_netns) == host["ifindex"]
    assert descriptors() <= before


def test_more_than_one_exchange_takes(step: Link) -> None:
    """A thousand routes are made and found, though a socket has no room for so many answers at once."""
    many = tuple({"dst": f"10.{number // 256 + 16}.{number % 256}.0/24", "gw": "10.1.1.1"} for number in range(1000))
    assert apply_and_check(replace(step, routes=many)) == []
    assert len(shown(step.netns, "route", "show", "proto", "static")) == len(many)


def test_converges(step: Link) -> None:
    """Changes are reverted in place: the pair stays the same, and nothing that the pod added is removed."""
    assert apply_and_check(step) == []
    before = ifindex(HOST, step.switch_netns)
    run(step.switch_netns, "ip", "link", "set", HOST, "down", "mtu", "1500")
    run(step.netns, "ip", "addr", "del", "10.1.1.2/24", "dev", "eth0")
    run(step.netns, "ip", "addr", "add", "10.7.7.7/24", "dev", "eth0")
    run(step.netns, "sysctl", "-w", "net.ipv6.conf.eth0.disable_ipv6=1")
    run(step.netns, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:ff", "mtu", "1300")
    subjects = {(each.subject, each.field) for each in LinkDriver().check(step, soon())}
    host, pod = f"link {HOST}", "interface eth0"
    assert subjects == {(host, "mtu"), (host, "state"), *((pod, field) for field in ("mac", "mtu", "address", "route"))}
    assert apply_and_check(step) == []
    assert ifindex(HOST, step.switch_netns) == before
    assert "10.7.7.7" in run(step.netns, "ip", "addr")


def test_undone(step: Link) -> None:
    """Both ends are removed, also when the pod has renamed its own.

    A second undo, also without the namespace, has nothing to do.
    """
    driver = LinkDriver()
    driver.apply(step, soon())
    run(step.netns, "ip", "link", "set", "eth0", "name", "other")
    driver.undo(step, soon())
    assert names(step.switch_netns) == names(step.netns) == set()
    driver.undo(step, soon())
    with netns() as path:
        there = replace(step, netns=path, netns_inode=Path(path).stat().st_ino)
        driver.apply(there, soon())
    driver.undo(there, soon())
    assert names(step.switch_netns) == set()
    driver.undo(replace(step, switch_netns=f"{Path(step.switch_netns).parent}/gone"), soon())


def test_a_name_in_use(step: Link) -> None:
    """An interface of that name in the pod is code 101, and nothing is left behind."""
    run(step.netns, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    with pytest.raises(AlreadyAttached, match="eth0"):
        LinkDriver().apply(step, soon())
    with pytest.raises(AlreadyAttached, match="interface lo"):
        LinkDriver().apply(replace(step, name="lo"), soon())
    assert names(step.switch_netns) == set()
    assert names(step.netns) == {"eth0", "other"}


@pytest.mark.parametrize("alias", ["", "userspace-cni store another"])
def test_a_host_end_that_is_not_ours(step: Link, alias: str) -> None:
    """A link with our name and another alias is refused by apply, reported by check, and left alone by undo."""
    run(step.switch_netns, "ip", "link", "add", HOST, "type", "veth", "peer", "name", "other")
    if alias:
        run(step.switch_netns, "ip", "link", "set", HOST, "alias", alias)
    with pytest.raises(NameTaken, match=HOST):
        LinkDriver().apply(step, soon())
    LinkDriver().undo(step, soon())
    LinkRefDriver().undo(LinkRef(HOST, ALIAS, step.switch_netns), soon())
    assert names(step.switch_netns) == {HOST, "other"}
    assert [each.field for each in LinkDriver().check(step, soon())] == ["alias"]


def test_a_pair_whose_other_end_is_elsewhere(step: Link) -> None:
    """A veth of ours whose other end is in a namespace other than the pod's is made anew."""
    with netns() as elsewhere:
        LinkDriver().apply(replace(step, netns=elsewhere, netns_inode=Path(elsewhere).stat().st_ino), soon())
        before = ifindex(HOST, step.switch_netns)
        assert drifts(step) == ["interface eth0: expected the other end of uc0123456789ab, found nothing"]
        assert apply_and_check(step) == []
        assert names(elsewhere) == set()
    assert ifindex(HOST, step.switch_netns) != before


def test_drifts(step: Link) -> None:
    """What others remove or change is reported by name; a Route resource's route is not part of the step, with any number."""
    assert apply_and_check(step) == []
    offload(step.netns, "eth0", STXCSUM, 1)
    run(step.netns, "ip", "route", "del", "10.9.0.0/16", "table", "1000")
    same = "via 10.1.1.254 table 1000 metric 5 mtu 1300 advmss 1200"
    run(step.netns, "ip", "route", "add", "10.9.0.0/16", *same.split(), "proto", "151")
    assert {each.field for each in LinkDriver().check(step, soon())} == {"checksum offload"}
    assert {(each.field, each.expected) for each in LinkDriver(beside=151).check(step, soon())} == {
        ("checksum offload", "off"),
        ("route", "10.9.0.0/16 via 10.1.1.254 mtu 1300 advmss 1200 priority 5 table 1000"),
    }
    run(step.netns, "ip", "link", "set", "eth0", "down")
    run(step.netns, "ip", "link", "set", "eth0", "name", "other")
    assert drifts(step) == ["interface eth0: expected the other end of uc0123456789ab, found nothing"]
    run(step.netns, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "third")
    assert drifts(step) == ["interface eth0: expected the other end of uc0123456789ab, found another link"]
    run(step.switch_netns, "ip", "link", "del", HOST)
    assert drifts(step) == ["link uc0123456789ab: expected the host end of the pod's veth, found nothing"]


def test_lost(step: Link, shaper: Shaper) -> None:
    """A pair or filter that vanished while the namespace lives is lost; without the namespace, or renamed, it is not."""
    driver, shapers = LinkDriver(), ShaperDriver()
    driver.apply(step, soon())
    assert shapers.is_lost(shaper, SharedReads(), soon())
    shapers.apply(shaper, soon())
    assert not driver.is_lost(step, SharedReads(), soon())
    assert not shapers.is_lost(shaper, SharedReads(), soon())
    run(step.netns, "ip", "link", "set", "eth0", "name", "other")
    assert not driver.is_lost(step, SharedReads(), soon())
    run(step.netns, "ip", "link", "del", "other")
    assert driver.is_lost(step, SharedReads(), soon())
    assert not driver.is_lost(replace(step, netns_inode=1), SharedReads(), soon())
    assert not driver.is_lost(replace(step, netns="/nowhere"), SharedReads(), soon())


def test_a_namespace_that_is_gone(step: Link, shaper: Shaper) -> None:
    """Another namespace at the path is code 3, and nothing is made; filters in it can be undone."""
    absent = f"{Path(step.netns).parent}/gone"
    for gone in (replace(step, netns_inode=step.netns_inode + 1), replace(step, netns=absent)):
        with pytest.raises(ContainerGone, match=r"another namespace|does not exist"):
            LinkDriver().apply(gone, soon())
    assert names(step.switch_netns) == names(step.netns) == set()
    with pytest.raises(Unavailable, match="switch_netns"):
        LinkDriver().apply(replace(step, switch_netns="/nowhere/netns"), soon())
    for undone in (replace(shaper, netns_inode=1), replace(shaper, netns=absent), replace(shaper, netns="/nowhere")):
        ShaperDriver().undo(undone, soon())
    with pytest.raises(StepFailed, match="no such interface"):
        ShaperDriver().apply(shaper, soon())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mtu": 70000}, "veth eth0 .*: Invalid argument"),
        ({"routes": ({"dst": "0.0.0.0/0", "gw": "192.0.2.1"},)}, "adding the route 0.0.0.0/0 via 192.0.2.1: .*invalid gateway"),
        ({"routes": ({"dst": "10.1.1.0/24", "scope": 253, "priority": 1}, {"dst": "10.1.1.0/24", "priority": 1})}, None),
        ({"routes": ({"dst": "10.0.0.0/8"}, {"dst": "10.0.0.0/8", "gw": "10.1.1.1"})}, "the pod has another one"),
        ({"routes": ({"dst": "10.0.0.0/8", "priority": -1},)}, "interface eth0: priority -1 is not between"),
        ({"routes": ({"dst": "10.0.0.0/8", "gw": "fd00:1::1"},)}, "interface eth0: .* not of one version"),
        ({"addresses": ("ff02::5/64",), "routes": ()}, "adding the address ff02::5/64: "),
        ({"mtu": 1000, "routes": ()}, r"adding the address fd00:1::2/64: (?s:.*)MTU is 1000, and IPv6 needs 1280"),
    ],
)
def test_what_the_kernel_refuses(step: Link, changes: dict[str, Any], message: str | None) -> None:
    """The error says what was tried, with the kernel's own words; undo removes the rest."""
    refused = replace(step, **changes)
    if message:
        with pytest.raises(StepFailed, match=message):
            LinkDriver().apply(refused, soon())
    else:
        assert apply_and_check(refused) == []
    LinkDriver().undo(refused, soon())
    assert names(step.switch_netns) == names(step.netns) == set()


def test_filter(step: Link, shaper: Shaper) -> None:
    """The filter is at the root of the pod's end, is changed in place, and is read back; another program's stays."""
    driver = ShaperDriver()
    LinkDriver().apply(step, soon())
    driver.apply(shaper, soon())
    assert driver.check(shaper, soon()) == []
    assert "tbf 7563: root" in run(step.netns, "tc", "qdisc", "show", "dev", "eth0")
    assert "rate 10Mbit burst 125000b lat 25ms" in run(step.netns, "tc", "qdisc", "show", "dev", "eth0")
    changed = replace(shaper, rate=50_000_000_000, burst=5_000_000_000)
    assert {each.field for each in driver.check(changed, soon())} == {"limit from the pod"}
    assert {each.field for each in driver.check(replace(shaper, burst=2_000_000), soon())} == {"burst from the pod"}
    driver.apply(changed, soon())
    assert driver.check(changed, soon()) == []
    assert driver.drops(changed) == 0
    driver.undo(shaper, soon())
    driver.undo(shaper, soon())
    assert "tbf" not in run(step.netns, "tc", "qdisc", "show", "dev", "eth0")
    run(step.netns, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "10kb", "latency", "1ms")
    driver.undo(shaper, soon())
    assert "tbf" in run(step.netns, "tc", "qdisc", "show", "dev", "eth0")
    assert driver.is_lost(shaper, SharedReads(), soon())
    driver.apply(shaper, soon())
    assert driver.check(shaper, soon()) == []


def test_dropped_frames_are_counted(step: Link, shaper: Shaper) -> None:
    """What the pod sends beyond its limit is dropped, and counted."""
    LinkDriver().apply(step, soon())
    slow = replace(shaper, rate=8000, burst=16000)
    ShaperDriver().apply(slow, soon())
    send = "import socket; s = socket.socket(2, 2); s.connect(('10.1.1.9', 9)); [s.send(bytes(1000)) for _ in range(99)]"
    run(step.netns, "ip", "neigh", "add", "10.1.1.9", "lladdr", HOST_MAC, "dev", "eth0")
    run(step.netns, "python3", "-c", send)
    assert ShaperDriver().drops(slow) > 50
    assert ShaperDriver().drops(replace(slow, name="other")) == 0


def test_host_ends_of_a_store(step: Link) -> None:
    """Host ends are found by the alias of their store among any other links."""
    LinkDriver().apply(step, soon())
    run(step.switch_netns, "ip", "link", "add", "foreign", "type", "veth", "peer", "name", "other")
    run(step.switch_netns, "ip", "link", "set", "foreign", "alias", "userspace-cni store2 c0ffee@eth0")
    ref = LinkRef(HOST, ALIAS, step.switch_netns)
    assert host_ends("store", step.switch_netns) == {ref: ifindex(HOST, step.switch_netns)}
    LinkRefDriver().undo(ref, soon())
    assert host_ends("store", step.switch_netns) == {}
    assert names(step.switch_netns) == {"foreign", "other"}


CALLS: dict[str, Callable[[], tuple[object, str]]] = {
    "exchange": lambda: (NetlinkConnection, "exchange"),
    "pwrite": lambda: (os, "pwrite"),
    "ioctl": lambda: (fcntl, "ioctl"),
}
POINTS = [
    pytest.param(call, nth, after, id=f"{'after' if after else 'before'} {call} {nth}")
    for call, times in {"exchange": 4, "pwrite": 3, "ioctl": 1}.items()
    for nth in range(1, times + 1)
    for after in (False, True)
]


def killed(call: str, nth: int, after: bool, work: Callable[[], object]) -> None:
    """Do `work` in a child that is killed just before or after its nth `call`, which it has to make."""

    def patched() -> None:
        holder, name = CALLS[call]()
        real, left = getattr(holder, name), [nth]

        def deadly(*args: object) -> object:
            left[0] -= 1
            if left[0] or after:
                outcome = real(*args)
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome

        setattr(holder, name, deadly)
        work()

    assert in_child(patched) == signal.SIGKILL, f"the child never came to {call} {nth}"


@pytest.mark.parametrize(("call", "nth", "after"), POINTS)
def test_killed_while_made(step: Link, call: str, nth: int, after: bool) -> None:
    """After a kill between any two messages undo removes everything, and so can apply complete it."""
    driver = LinkDriver()
    killed(call, nth, after, lambda: driver.apply(step, soon()))
    driver.undo(step, soon())
    assert names(step.switch_netns) == names(step.netns) == set()
    killed(call, nth, after, lambda: driver.apply(step, soon()))
    assert apply_and_check(step) == []


@pytest.mark.parametrize(("nth", "after"), [(1, False), (1, True), (2, False), (2, True)])
def test_killed_while_undone(step: Link, shaper: Shaper, nth: int, after: bool) -> None:
    """A second undo removes what a killed one left."""
    LinkDriver().apply(step, soon())
    ShaperDriver().apply(shaper, soon())
    killed("exchange", nth, after, lambda: ShaperDriver().undo(shaper, soon()))
    ShaperDriver().undo(shaper, soon())
    killed("exchange", nth, after, lambda: LinkDriver().undo(step, soon()))
    LinkDriver().undo(step, soon())
    assert names(step.switch_netns) == names(step.netns) == set()


def test_from_a_thread(step: Link) -> None:
    """An agent's threads make and check veths at the same time, and are in the process's namespace afterwards."""
    steps = [replace(step, host=f"uc{number}", alias=f"{ALIAS}{number}", name=f"net{number}", routes=()) for number in range(8)]
    home = Path("/proc/self/ns/net").stat().st_ino

    def work(each: Link) -> tuple[list[str], int]:
        return apply_and_check(each), Path("/proc/thread-self/ns/net").stat().st_ino

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, steps)) == [([], home)] * len(steps)
    assert names(step.switch_netns) == {each.host for each in steps}


def test_below_another_root(step: Link, shaper: Shaper) -> None:
    """Namespaces are found below the root under which the agent sees the host."""
    root = HostRoot(f"/proc/{os.getpid()}/root")
    driver, shapers = LinkDriver(root), ShaperDriver(root)
    driver.apply(step, soon())
    shapers.apply(shaper, soon())
    assert [*driver.check(step, soon()), *shapers.check(shaper, soon())] == []
    driver.undo(step, soon())
    assert names(step.switch_netns) == set()
    with pytest.raises(UserspaceError):
        LinkDriver(HostRoot("/nowhere")).apply(step, soon())


GGRO, STXCSUM = 0x2B, 0x17


def offload(netns: str, name: str, command: int, value: int = 0) -> int:
    """Read or write a setting of ethtool(8), by a process in the namespace."""
    code = (
        "import array, fcntl, socket, struct, sys; value = array.array('I', [int(sys.argv[2]), int(sys.argv[3])]);"
        "fcntl.ioctl(socket.socket(), 0x8946, struct.pack('16sP16x', sys.argv[1].encode(), value.buffer_info()[0]));"
        "print(value[1])"
    )
    return int(run(netns, "python3", "-c", code, name, str(command), str(value)))


def test_a_deadline_amid_many_routes(step: Link) -> None:
    """Sending many messages to the kernel ends at the verb's deadline, and is undone like any ADD."""
    many = tuple({"dst": f"10.{number // 256 + 16}.{number % 256}.0/24", "gw": "10.1.1.1"} for number in range(1000))

    class Ending(Deadline):
        """A deadline that has passed when it was asked so often."""

        asked = 0

        def require(self, what: str) -> float:
            self.asked += 1
            return super().require(what) if self.asked < 6 else Deadline.after(0).require(what)

    with pytest.raises(Unavailable, match="out of time"):
        LinkDriver().apply(replace(step, routes=many), Ending.after(60))
    made = len(shown(step.netns, "route", "show", "proto", "static"))
    assert 0 < made < len(many)
    LinkDriver().undo(step, soon())
    assert names(step.netns) | names(step.switch_netns) == set()


def test_a_pod_with_more_than_is_read(step: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that changes its network may have any number of routes: CHECK
    reads a limited number, and says that there are more.
    """
    monkeypatch.setattr("userspace_cni.host.pod_net.pod_links.LISTED_MAX", 30)
    assert apply_and_check(step) == []
    for number in range(40):
        run(step.netns, "ip", "route", "add", f"10.64.{number}.0/24", "dev", "eth0")
    with pytest.raises(StepFailed, match="more than 30 entries are listed"):
        LinkDriver().check(step, soon())


@pytest.mark.parametrize(("scope", "found"), [({}, True), ({"scope": 253}, True), ({"scope": 200}, False)])
def test_a_route_among_others(step: Link, scope: dict[str, int], found: bool) -> None:
    """A route is found by all attributes that it sets, and by none that it leaves to the kernel."""
    assert apply_and_check(replace(step, routes=({"dst": "10.8.0.0/16"},))) == []
    wanted = {"dst": "10.8.0.0/16", **scope}
    assert (drifts(replace(step, routes=(wanted,))) == []) is found
    for other in ({"priority": 9}, {"mtu": 1300}, {"table": 1000}, {"gw": "10.1.1.254"}):
        assert len(drifts(replace(step, routes=({**wanted, **other},)))) == 1
