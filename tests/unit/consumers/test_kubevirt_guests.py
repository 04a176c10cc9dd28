"""What keeps VMs from their network, judged by what was seen of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubevirt.kubevirt_traps import TRAPS
from tests.lab.node.ports import changed
from userspace_cni.attachment.drift import Absent, Dead, Drift, Other, Value
from userspace_cni.attachment.steps import Directory, OvsPort, PodMount, SocketFile, VhostUserClient
from userspace_cni.base.findings import Finding
from userspace_cni.base.process_users import ProcessUser, read_user
from userspace_cni.consumers.kubevirt.drifts import DirectoryAccess
from userspace_cni.consumers.kubevirt.guests import (
    Guest,
    Party,
    SeenSocket,
    is_guest,
    is_named,
    judge_guest,
    machine_of,
    not_looked_at,
    rivals,
    verdict_on,
)
from userspace_cni.consumers.kubevirt.node_faults import SeenSwitch, judge_hugepages, judge_switch, may_connect
from userspace_cni.fastpath.memory.hugepages import HugepagePool
from userspace_cni.pod import launcher

IFNAME = launcher.interface_name("dpdk")
PORT = OvsPort(
    "br0",
    f"c0ffee012345-{IFNAME}",
    VhostUserClient(f"/short/0123456789abcdef/{IFNAME}.sock", 9000),
    marks={"vm-name": "vm"},
)
PLACE = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/public/vhostuser"
STEPS = (
    Directory(PLACE, "/var/lib/kubelet"),
    SocketFile(PLACE, "/var/lib/kubelet", f"{IFNAME}.sock"),
    PodMount(PLACE, "/var/lib/kubelet", "/short/0123456789abcdef"),
    PORT,
)
SEEN = SeenSocket("socket", launcher.QEMU_ID, True, "connected")
GUEST = Guest("ns/vm", IFNAME, "ready", STEPS, vhost="connected", error="", socket=SEEN, mtu=9000, age_s=600.0)
WAITING = replace(GUEST, vhost="disconnected")
DRIFT = Drift(f"port {PORT.name}", "state", "an open interface", "not opened by ovs-vswitchd", joint=", ")
MOUNT = Drift("mount /short/0123456789abcdef", "", PLACE, Absent("no mount"))
DIRECTORY = Drift("directory /d", "", "a directory", "that /d does not exist")


def names(found: Any) -> list[tuple[str, str]]:
    """Name and severity of each; all are in the catalogue and have a remedy."""
    found = list(found)
    assert all(isinstance(each, Finding) and each.name in TRAPS and each.remedy for each in found)
    return [(each.name, each.severity) for each in found]


def at_socket(party: Party) -> SeenSocket:
    return SeenSocket("socket", launcher.QEMU_ID, is_seen=True, party=party)


def with_port(guest: Guest, **changes: Any) -> Guest:
    """The same with another port in its record."""
    port = changed(PORT, **changes)
    return replace(guest, steps=(*guest.steps[:-1], port))


def drifted(step: str, *drifts: Drift) -> Guest:
    """A connected guest of which something is not as ADD made it."""
    return replace(GUEST, drifts={step: drifts})


def columns(*fields: str, **changes: Any) -> Guest:
    """A guest whose port differs in these columns."""
    return drifted("port", *(replace(DRIFT, field=each, **changes) for each in fields))


def ownership(*fields: str) -> Guest:
    """A guest whose directory differs in these fields."""
    return drifted("directory", *(replace(DIRECTORY, field=each) for each in fields))


def owned(guest: Guest, uid: int, gid: int, mode: int) -> Guest:
    """The same with this owner and mode of its directory."""
    return replace(guest, socket=replace(guest.socket, access=DirectoryAccess(uid, gid, mode)))


def test_what_ovn_alone_writes_is_not_to_be_written() -> None:
    """Of a port that OVN has let go no command of ovs-vsctl is the remedy."""
    [found] = judge_guest(columns("external_ids:ovn-installed", found=Absent()))
    assert ("ovs-vsctl" in found.remedy, "ovn-sbctl" in found.remedy) == (False, True)


def test_a_connected_guest_is_good() -> None:
    """Nothing is found of an interface whose QEMU is connected, whether the kernel was asked or not."""
    assert judge_guest(GUEST) == []
    assert judge_guest(replace(GUEST, socket=at_socket(""))) == []
    assert judge_guest(replace(GUEST, socket=SeenSocket(None))) == []


GUESTS = {
    "no socket yet": (replace(WAITING, socket=SeenSocket(""), age_s=5.0), "no-listener", "note"),
    "no socket for long": (replace(WAITING, socket=SeenSocket("")), "no-listener", "warning"),
    "the guest is not up": (replace(WAITING, socket=at_socket("connected")), "guest-not-up", "note"),
    "no connection": (replace(WAITING, socket=at_socket("listening")), "no-listener", "warning"),
    "no process listens": (replace(WAITING, socket=at_socket("none")), "no-listener", "warning"),
    "connected without a name": (replace(GUEST, socket=SeenSocket("")), "no-listener", "warning"),
    "connected and another's name": (replace(GUEST, socket=at_socket("none")), "no-listener", "warning"),
    "a socket of another user": (replace(WAITING, socket=SeenSocket("socket", 1000)), "no-listener", "warning"),
    "not seen by the switch": (replace(WAITING, socket=SeenSocket("", is_seen=False)), "short-mount", "error"),
    "error of the port": (replace(GUEST, error="could not open"), "port-down", "error"),
    "another MTU": (replace(GUEST, mtu=1500), "mtu-mismatch", "warning"),
    "server mode": (with_port(GUEST, interface_type="dpdkvhostuser", server_path=""), "server-mode", "error"),
    "long path": (with_port(GUEST, server_path=f"/{'a' * 120}"), "path-too-long", "error"),
    "being attached": (replace(GUEST, state="applying"), "port-down", "warning"),
    "port differs": (columns("state"), "port-down", "error"),
    "port is gone": (columns(""), "port-down", "error"),
    "MTU asked for differs": (columns("mtu_request"), "mtu-mismatch", "error"),
    "MTU that it has differs": (columns("MTU"), "mtu-mismatch", "error"),
    "MTU differs in all ways": (
        replace(columns("mtu_request", "MTU"), mtu=1500),
        "mtu-mismatch",
        "error",
    ),
    "type differs": (columns("Interface.type", found="dpdkvhostuser"), "server-mode", "error"),
    "type is a kernel's": (columns("Interface.type", "state", found="tap"), "port-changed", "error"),
    "VLAN differs": (columns("tag", "vlan_mode"), "port-changed", "error"),
    "marks differ": (columns("Interface external_ids:owner"), "port-changed", "warning"),
    "another logical port": (columns("external_ids:iface-id"), "port-changed", "error"),
    "OVN has let the port go": (columns("external_ids:ovn-installed", found=Absent()), "port-down", "error"),
    "open port is not": (replace(columns("state"), error="could not open"), "port-down", "error"),
    "directory is gone": (drifted("directory", DIRECTORY), "no-vhost-directory", "error"),
    "directory and mount are": (
        replace(GUEST, drifts={"directory": [DIRECTORY], "pod-mount": [MOUNT]}),
        "no-vhost-directory",
        "error",
    ),
    "directory is root's": (
        owned(ownership("uid", "gid", "mode"), 0, 0, 0o700),
        "no-vhost-directory",
        "error",
    ),
    "directory is open to all": (
        owned(ownership("mode"), launcher.QEMU_ID, launcher.QEMU_ID, 0o777),
        "directory-changed",
        "warning",
    ),
    "directory not for QEMU, as asked": (owned(GUEST, 1000, launcher.QEMU_ID, 0o755), "no-vhost-directory", "warning"),
    "directory closed to QEMU, as asked": (owned(GUEST, launcher.QEMU_ID, launcher.QEMU_ID, 0), "no-vhost-directory", "warning"),
    "another VM's MAC": (replace(GUEST, rivals=("ns/other, interface net1",)), "mac-conflict", "warning"),
    "device-info differs": (
        drifted("device-info", Drift("device-info /i", "", "a file", Absent("none"))),
        "no-device-info",
        "warning",
    ),
    "record and state of it": (
        replace(GUEST, state="deleting", drifts={"": [Drift("state of the record", "", "ready", "deleting")]}),
        "port-down",
        "warning",
    ),
    "mount differs": (drifted("pod-mount", MOUNT), "short-mount", "error"),
    "something else in place of the socket": (
        drifted("socket-file", Drift("socket /s", "", "a socket or nothing", Other("a directory"))),
        "no-listener",
        "error",
    ),
}


@pytest.mark.parametrize("case", GUESTS)
def test_traps_of_a_guest(case: str) -> None:
    """Each fault is one finding, by name, about the VM and its interface."""
    guest, name, severity = GUESTS[case]
    found = judge_guest(guest)
    assert names(found) == [(name, severity)]
    assert found[0].subject == f"VM ns/vm, interface {IFNAME}"


def test_what_could_not_be_seen_is_not_judged() -> None:
    """There is no finding about a socket that could not be looked at, or about a port while the switch was away."""
    assert judge_guest(replace(WAITING, socket=SeenSocket(None))) == []
    assert judge_guest(replace(GUEST, vhost="unknown", error=None, socket=SeenSocket(None))) == []


def test_a_socket_without_a_visible_process_is_unknown() -> None:
    """When the kernel cannot be asked who is at the socket, a line says so, and the verdict is neither good nor bad."""
    guest = replace(WAITING, socket=at_socket(""))
    assert judge_guest(guest) == []
    [line] = not_looked_at(guest)
    assert line.startswith(f"VM ns/vm, interface {IFNAME}: who is at its socket is unknown")
    assert verdict_on(guest, []) == "unknown"
    assert [verdict_on(each, []) for each in (GUEST, replace(GUEST, socket=at_socket("")))] == ["good", "good"]


def test_a_dead_socket_is_judged_by_its_connection() -> None:
    """A dead socket of QEMU is no finding of its own, and hides no finding about QEMU's connection."""
    dead = {"socket-file": [Drift("socket /s", "", "an application that listens, or nothing", Dead("a dead socket"))]}
    assert judge_guest(replace(GUEST, drifts=dead)) == []
    assert names(judge_guest(replace(WAITING, socket=at_socket("none"), drifts=dead))) == [("no-listener", "warning")]


def test_remedies_of_a_mount() -> None:
    """gc makes a missing mount again; a mount that shows something else must be unmounted first."""

    def remedy(found: Value) -> str:
        return judge_guest(drifted("pod-mount", replace(MOUNT, found=found)))[0].remedy

    assert remedy(Absent("no mount")) == "run userspace-cni gc, which mounts it again"
    off = "umount -l /short/0123456789abcdef, and run userspace-cni gc, which mounts it again"
    assert remedy("a mount without it") == off
    assert remedy(Other("another directory")) == f"{off}; then restart or migrate the VM if QEMU's socket is not in the directory"


def test_names_of_a_guest() -> None:
    """A VM with and without its namespace and interface, and the interface alone."""
    names = ("vm", "ns/vm", f"vm/{IFNAME}", f"ns/vm/{IFNAME}", IFNAME)
    assert all(is_named(GUEST, name) for name in names)
    assert not any(is_named(GUEST, name) for name in ("", "ns", "v", "other/vm", "vm/net1", f"ns/{IFNAME}", "ns/vm/"))


def test_a_server_mode_port_has_no_socket_of_qemu_s() -> None:
    """A port that makes the socket itself gives no finding about QEMU's."""
    guest = with_port(replace(WAITING, socket=SeenSocket("")), interface_type="dpdkvhostuser")
    assert names(judge_guest(guest)) == [("server-mode", "error")]


SWITCH = SeenSwitch(short_dir="/var/lib/vhost_sockets", user=ProcessUser(0, frozenset(), 0))
SWITCHES = {
    "dead": (replace(SWITCH, problem="ovs-vswitchd is dead"), "port-down", "error"),
    "another user": (replace(SWITCH, user=ProcessUser(996, frozenset({995}), 0)), "ovs-user", "error"),
    "SELinux": (replace(SWITCH, enforcing=True), "selinux", "note"),
    "no mounts": (replace(SWITCH, mounts_always=False), "short-mount", "warning"),
    "long short_dir": (replace(SWITCH, short_dir=f"/{'a' * 70}"), "path-too-long", "error"),
}


@pytest.mark.parametrize("case", SWITCHES)
def test_traps_of_a_switch(case: str) -> None:
    """Each is one finding where no VM is attached."""
    switch, name, severity = SWITCHES[case]
    assert names(judge_switch(SWITCH, guests=False)) == []
    assert names(judge_switch(switch, guests=False)) == [(name, severity)]


def test_the_longest_short_dir() -> None:
    """A directory that just leaves room is good, one byte more is not."""
    assert names(judge_switch(replace(SWITCH, short_dir=f"/{'a' * 69}"), guests=False)) == []
    path = f"/{'a' * 69}/0123456789abcdef/{launcher.socket_file(IFNAME)}"
    assert len(path) == 107


def test_settings_that_guests_may_need() -> None:
    """With VMs on the node, a missing setting is a note; one that is set is not."""
    assert names(judge_switch(SWITCH, guests=True)) == [("post-copy", "note"), ("iommu", "note")]
    config = {"vhost-postcopy-support": "true", "vhost-iommu-support": "true"}
    assert names(judge_switch(replace(SWITCH, other_config=config), guests=True)) == []


def test_users_who_may_connect() -> None:
    """Root, QEMU's user and group, and who may override; a process is read from proc(5)'s status."""
    status = "Name:\tovs-vswitchd\nUid:\t0\t0\t0\t996\nGid:\t0\t0\t0\t995\nGroups:\t107 42 \nCapEff:\t0000000000000002\n"
    user = read_user(status)
    assert user == ProcessUser(996, frozenset({995, 107, 42}), 2)
    assert [
        may_connect(each)
        for each in (ProcessUser(0, frozenset(), 0), ProcessUser(107, frozenset(), 0), ProcessUser(5, frozenset({107}), 0))
    ] == [True] * 3
    assert may_connect(ProcessUser(5, frozenset(), 2))
    assert not may_connect(ProcessUser(5, frozenset({6}), 1))
    assert read_user("") is None
    assert read_user("Uid:\t1\nGid:\tx\n") is None


def pool(free: int, total: int = 512, node: int | None = 0, page: int = 2 << 20) -> HugepagePool:
    return HugepagePool(page, node, total, free, None, 0)


def test_huge_pages() -> None:
    """No pages, none free, too few beside the switch's own, too few for a guest: each has the same name."""
    assert names(judge_hugepages([pool(512)], "1024", None)) == []
    assert names(judge_hugepages([pool(0, 0)], "", None)) == [("hugepages-short", "note")]
    assert names(judge_hugepages([pool(0), pool(9, node=1)], "", None)) == [("hugepages-short", "note")]
    assert names(judge_hugepages([pool(0), pool(9, node=1)], "", None, failing=True)) == [("hugepages-short", "warning")]
    assert names(judge_hugepages([pool(0), pool(9, node=1)], "", 1 << 20)) == []
    told = [next(iter(judge_hugepages([pool(0, total)], "", None))).message for total in (1, 2)]
    assert [each.split(":")[0] for each in told] == [
        "the only page of 2 MiB on node 0 is taken",
        "all 2 pages of 2 MiB on node 0 are taken",
    ]
    assert names(judge_hugepages([pool(100), pool(512, node=1)], "1024,1024", None)) == [("hugepages-short", "note")]
    assert names(judge_hugepages([pool(512), pool(512, node=1)], "", 1 << 30)) == []
    assert names(judge_hugepages([pool(300), pool(300, node=1)], "", 1 << 30)) == [("hugepages-short", "error")]
    assert names(judge_hugepages([], "", 1)) == [("hugepages-short", "error")]
    assert names(judge_hugepages([pool(512)], "much,,99999999999999999999", None)) == []


def test_which_interfaces_are_looked_at() -> None:
    """Marked ports, and ports whose directory is that of VMs' sockets, are guests; no others."""
    assert is_guest(STEPS)
    assert is_guest((STEPS[0],))
    assert is_guest((PORT,))
    ordinary = (Directory("/x/shared-dir", "/x"), replace(PORT, marks={}))
    assert not is_guest(ordinary)


def test_the_name_of_a_vm() -> None:
    """The port's mark has the whole of it; without one it is what the launcher pod's name has, and at last that name."""
    assert machine_of(STEPS, "ns", "virt-launcher-other-abcde") == "ns/vm"
    assert machine_of(STEPS[:-1], "ns", "virt-launcher-vm-abcde") == "ns/vm"
    assert [machine_of((), "ns", "app"), machine_of((), "", "app")] == ["ns/app", "app"]


def test_remedies_of_a_port() -> None:
    """A column is set back as ovs-vsctl takes it; one that ADD did not set is cleared. Rows beside the port's own come with a new
    port."""

    def remedy(**expected: Value) -> str:
        drifts = [Drift("port x", field, value, "another", joint=", ") for field, value in expected.items()]
        return judge_guest(with_port(drifted("port", *drifts), name="x"))[0].remedy

    nothing = Absent()
    assert remedy(tag=5, trunks=(7, 9)) == "ovs-vsctl set Port x tag=5 -- set Port x trunks=7,9"
    cleared = "ovs-vsctl clear Port x tag -- clear Port x vlan_mode -- clear Port x trunks"
    assert remedy(tag=nothing, vlan_mode=nothing, trunks=nothing) == cleared
    assert remedy(**{"external_ids:attached-mac": "02:00:00:00:00:01"}) == (
        "ovs-vsctl set Interface x 'external_ids:attached-mac=\"02:00:00:00:00:01\"'"
    )
    assert remedy(**{"external_ids:attached-mac": nothing}) == "ovs-vsctl remove Interface x external_ids attached-mac"
    assert remedy(**{"Port external_ids:owner": "u"}) == "ovs-vsctl set Port x 'external_ids:owner=\"u\"'"
    assert remedy(**{"options:tx-steering": "hash"}) == "ovs-vsctl set Interface x 'options:tx-steering=\"hash\"'"
    assert remedy(ingress_policing_rate=0) == "ovs-vsctl set Interface x ingress_policing_rate=0"
    again = "ovs-vsctl del-port x, and run userspace-cni gc, which makes it again on br0; the VM is cut off until then"
    assert [remedy(bridge="br0"), remedy(qos="egress-policer"), remedy(tag=5, **{"frames for mirror m": ""})] == [again] * 3


def test_the_mtu_of_the_bridge_is_not_the_ports() -> None:
    """A bridge whose own MTU its ports change is set back itself."""
    [found] = judge_guest(drifted("port", Drift("bridge br0", "mtu_request", 1500, Absent())))
    assert (found.name, found.remedy) == ("port-changed", "ovs-vsctl set Interface br0 mtu_request=1500")


def test_one_mac_of_two_vms() -> None:
    """The same MAC on one bridge and VLAN is a finding, in any spelling; not in a migrating VM's other pod, nor elsewhere."""

    def machine(name: str, ifname: str = IFNAME, mac: str = "02:00:00:00:00:0a", **port: Any) -> Guest:
        return Guest(f"ns/{name}", ifname, "ready", (changed(PORT, **port),), mac)

    mine = machine("vm")
    others = [machine("c", tag=5), machine("d", bridge="br1"), replace(machine("e"), state="deleting")]
    assert rivals(mine, [mine, machine("vm"), *others]) == []
    assert rivals(mine, [mine, machine("b")]) == [f"ns/b, interface {IFNAME}"]
    assert rivals(mine, [mine, machine("vm", "net2")]) == ["ns/vm, interface net2"]
    bare = machine("b", mac="")
    assert rivals(bare, [bare, replace(bare, machine="x/b")]) == []
