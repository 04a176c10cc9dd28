"""What `kubevirt doctor` decides from what it has seen of a node, and what it tells of one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kubevirt.findings import TRAPS, Finding
from tests.unit.cli.test_cli_commands import Facts, Seen, Town, decoded
from userspace_cni.attachment.drift import Absent, Dead, Drift, Other, Value
from userspace_cni.attachment.records import Record
from userspace_cni.attachment.steps import Directory, PodMount, Port, SocketFile
from userspace_cni.base.errors import Unavailable
from userspace_cni.cli.kubevirt.node import (
    Guest,
    Socket,
    Switch,
    User,
    is_guest,
    is_named,
    judge_guest,
    judge_hugepages,
    judge_switch,
    read_user,
    rivals,
    row_of,
    unlooked,
)
from userspace_cni.cli.kubevirt.sockets import Parties, Party
from userspace_cni.consumers.kubevirt.drifts import Access
from userspace_cni.fastpath.memory import hugepages
from userspace_cni.fastpath.memory.hugepages import HugePages, Pool
from userspace_cni.fastpath.sys.sock_diag import file_of
from userspace_cni.fastpath.sys.unix_sockets import UnixSocket
from userspace_cni.pod import launcher

IFNAME = launcher.interface_name("dpdk")
PORT = Port(
    "br0",
    f"c0ffee012345-{IFNAME}",
    "dpdkvhostuserclient",
    f"/short/0123456789abcdef/{IFNAME}.sock",
    mtu=9000,
    marks={"vm-name": "vm"},
)
PLACE = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/public/vhostuser"
RECORD = Record(
    "ready", "net", "c0ffee0123456789", IFNAME, pod_namespace="ns", pod_name="virt-launcher-vm-abcde",
    steps=(
        Directory(PLACE, "/var/lib/kubelet"), SocketFile(PLACE, "/var/lib/kubelet", f"{IFNAME}.sock"),
        PodMount(PLACE, "/var/lib/kubelet", "/short/0123456789abcdef"), PORT,
    ),
)  # fmt: skip
DISCONNECTED = Seen(PORT.name, link_state="down", status={"mode": "client", "status": "disconnected"})
GUEST = Guest(RECORD, Seen(PORT.name), Socket("socket", launcher.QEMU_ID, True, "connected"), mtu=9000, age_s=600.0)
WAITING = replace(GUEST, port=DISCONNECTED)
DRIFT = Drift("port x", "state", "an open interface", "not opened by ovs-vswitchd", joint=", ")
MOUNT = Drift("mount /short/0123456789abcdef", "", PLACE, Absent("no mount"))
DIRECTORY = Drift("directory /d", "", "a directory", "that /d does not exist")


def names(found: Any) -> list[tuple[str, str]]:
    """Name and severity of each; all are in the catalogue and have a remedy."""
    found = list(found)
    assert all(isinstance(each, Finding) and each.name in TRAPS and each.remedy for each in found)
    return [(each.name, each.severity) for each in found]


def at_socket(party: Party) -> Socket:
    """QEMU's socket, and who is there."""
    return Socket("socket", launcher.QEMU_ID, is_seen=True, party=party)


def with_port(guest: Guest, **changes: Any) -> Guest:
    """The same with another port in its record."""
    port = replace(PORT, **changes)
    return replace(guest, record=replace(guest.record, steps=(*guest.record.steps[:-1], port)))


def drifted(step: str, *drifts: Drift) -> Guest:
    """A connected guest of which something is not as ADD made it."""
    return replace(GUEST, drifts={step: drifts})


def columns(*fields: str, **changes: Any) -> Guest:
    """One whose port differs in these."""
    return drifted("port", *(replace(DRIFT, field=each, **changes) for each in fields))


def ownership(*fields: str) -> Guest:
    """One whose directory differs in these."""
    return drifted("directory", *(replace(DIRECTORY, field=each) for each in fields))


def owned(guest: Guest, uid: int, gid: int, mode: int) -> Guest:
    """The same with this owner and mode of its directory."""
    return replace(guest, socket=replace(guest.socket, access=Access(uid, gid, mode)))


def test_a_connected_guest_is_good() -> None:
    """Nothing is found of an interface whose QEMU is connected, whether the kernel was asked or not."""
    assert judge_guest(GUEST) == []
    assert judge_guest(replace(GUEST, socket=at_socket(""))) == []
    assert judge_guest(replace(GUEST, socket=Socket(None))) == []


GUESTS = {
    "no socket yet": (replace(WAITING, socket=Socket(""), age_s=5.0), "no-listener", "note"),
    "no socket for long": (replace(WAITING, socket=Socket("")), "no-listener", "warning"),
    "the guest is not up": (replace(WAITING, socket=at_socket("connected")), "guest-not-up", "note"),
    "nobody connects": (replace(WAITING, socket=at_socket("listening")), "no-listener", "warning"),
    "nobody listens": (replace(WAITING, socket=at_socket("nobody")), "no-listener", "warning"),
    "connected without a name": (replace(GUEST, socket=Socket("")), "no-listener", "warning"),
    "connected and another's name": (replace(GUEST, socket=at_socket("nobody")), "no-listener", "warning"),
    "a socket of somebody else": (replace(WAITING, socket=Socket("socket", 1000)), "no-listener", "warning"),
    "not seen by the switch": (replace(WAITING, socket=Socket("", is_seen=False)), "short-mount", "error"),
    "error of the port": (replace(GUEST, port=Seen(PORT.name, error="could not open")), "port-down", "error"),
    "another MTU": (replace(GUEST, mtu=1500), "mtu-mismatch", "warning"),
    "server mode": (with_port(GUEST, interface_type="dpdkvhostuser", server_path=""), "server-mode", "error"),
    "long path": (with_port(GUEST, server_path=f"/{'a' * 120}"), "path-too-long", "error"),
    "being attached": (replace(GUEST, record=replace(RECORD, state="applying")), "port-down", "warning"),
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
    "open port is not": (replace(columns("state"), port=Seen(PORT.name, error="could not open")), "port-down", "error"),
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
    "directory for nobody, as asked": (owned(GUEST, launcher.QEMU_ID, launcher.QEMU_ID, 0), "no-vhost-directory", "warning"),
    "another VM's MAC": (replace(GUEST, rivals=("ns/other, interface net1",)), "mac-conflict", "warning"),
    "device-info differs": (
        drifted("device-info", Drift("device-info /i", "", "a file", Absent("none"))),
        "no-device-info",
        "warning",
    ),
    "record and state of it": (
        replace(
            GUEST, record=replace(RECORD, state="deleting"), drifts={"": [Drift("state of the record", "", "ready", "deleting")]}
        ),
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
    """Each is told alone, by name, of the VM and its interface."""
    guest, name, severity = GUESTS[case]
    found = judge_guest(guest)
    assert names(found) == [(name, severity)]
    assert found[0].where == f"VM ns/vm, interface {IFNAME}"


def test_what_could_not_be_seen_is_not_judged() -> None:
    """Nothing is said of a socket that could not be looked at, nor of a port while the switch was away."""
    assert judge_guest(replace(WAITING, socket=Socket(None))) == []
    assert judge_guest(replace(GUEST, port=None, socket=Socket(None))) == []


def test_a_socket_at_which_nobody_is_seen_is_unknown() -> None:
    """Where the kernel can not be asked who is there, that is told, and it is neither good nor wrong."""
    guest = replace(WAITING, socket=at_socket(""))
    assert judge_guest(guest) == []
    [line] = unlooked(guest)
    assert line.startswith(f"VM ns/vm, interface {IFNAME}: who is at its socket could not be looked at")
    assert row_of(guest, [])["verdict"] == "unknown"
    assert [row_of(each, [])["verdict"] for each in (GUEST, replace(GUEST, socket=at_socket("")))] == ["good", "good"]


def test_whose_socket_it_is(tmp_path: Path) -> None:
    """The file decides, not the name, which all VMs of a network have alike; what was not seen whole is not told as nobody."""
    path = tmp_path / "a.sock"
    path.touch()
    facts = path.stat()
    inode, device = file_of(facts)
    listener, accepted = UnixSocket(True, "/q/a.sock", inode, device), UnixSocket(False, "/q/a.sock", inode, device)
    others = UnixSocket(False, "/q/a.sock", inode + 1, device)

    def told(*sockets: UnixSocket, is_whole: bool = True) -> Party:
        return Parties(sockets, is_whole).at(path, facts)

    assert [told(listener, accepted), told(accepted, is_whole=False)] == ["connected", "connected"]
    assert [told(listener, others), told(others), told()] == ["listening", "nobody", "nobody"]
    assert [told(listener, is_whole=False), told(is_whole=False)] == ["", ""]
    assert told(replace(listener, device=device + 1)) == ""
    assert told(replace(listener, device=device + 1, name="/q/b.sock")) == "nobody"


def test_a_dead_socket_is_told_by_its_connection() -> None:
    """That QEMU's socket is dead is no finding of its own, and hides none of what is seen of QEMU's connection."""
    dead = {"socket-file": [Drift("socket /s", "", "an application that listens, or nothing", Dead("a dead socket"))]}
    assert judge_guest(replace(GUEST, drifts=dead)) == []
    assert names(judge_guest(replace(WAITING, socket=at_socket("nobody"), drifts=dead))) == [("no-listener", "warning")]


def test_remedies_of_a_mount() -> None:
    """One that is gone is made again by gc; one that shows something else has to be taken off first."""

    def remedy(found: Value) -> str:
        return judge_guest(drifted("pod-mount", replace(MOUNT, found=found)))[0].remedy

    assert remedy(Absent("no mount")) == "run userspace-cni gc, which mounts it again"
    off = "umount -l /short/0123456789abcdef, and run userspace-cni gc, which mounts it anew"
    assert remedy("a mount without it") == off
    assert remedy(Other("another directory")) == f"{off}; then restart or migrate the VM if QEMU's socket is not in the directory"


def test_names_of_a_guest() -> None:
    """A VM with and without its namespace and interface, and the interface alone."""
    names = ("vm", "ns/vm", f"vm/{IFNAME}", f"ns/vm/{IFNAME}", IFNAME)
    assert all(is_named(RECORD, name) for name in names)
    assert not any(is_named(RECORD, name) for name in ("", "ns", "v", "other/vm", "vm/net1", f"ns/{IFNAME}", "ns/vm/"))


def test_a_server_mode_port_has_no_socket_of_qemu_s() -> None:
    """Of a port that makes the socket itself nothing is said about QEMU's."""
    guest = with_port(replace(WAITING, socket=Socket("")), interface_type="dpdkvhostuser")
    assert names(judge_guest(guest)) == [("server-mode", "error")]


SWITCH = Switch(short_dir="/var/lib/vhost_sockets", user=User(0, frozenset(), 0))
SWITCHES = {
    "dead": (replace(SWITCH, problem="ovs-vswitchd is dead"), "port-down", "error"),
    "another user": (replace(SWITCH, user=User(996, frozenset({995}), 0)), "ovs-user", "error"),
    "SELinux": (replace(SWITCH, enforcing=True), "selinux", "note"),
    "no mounts": (replace(SWITCH, mounts_always=False), "short-mount", "warning"),
    "long short_dir": (replace(SWITCH, short_dir=f"/{'a' * 70}"), "path-too-long", "error"),
}


@pytest.mark.parametrize("case", SWITCHES)
def test_traps_of_a_switch(case: str) -> None:
    """Each is told alone where no VM is attached."""
    switch, name, severity = SWITCHES[case]
    assert names(judge_switch(SWITCH, guests=False)) == []
    assert names(judge_switch(switch, guests=False)) == [(name, severity)]


def test_the_longest_short_dir() -> None:
    """A directory that just leaves room is good, one byte more is not."""
    assert names(judge_switch(replace(SWITCH, short_dir=f"/{'a' * 69}"), guests=False)) == []
    path = f"/{'a' * 69}/0123456789abcdef/{launcher.socket_file(IFNAME)}"
    assert len(path) == 107


def test_settings_that_guests_may_need() -> None:
    """With VMs there, what is not set is noted; what is set is not."""
    assert names(judge_switch(SWITCH, guests=True)) == [("post-copy", "note"), ("iommu", "note")]
    config = {"vhost-postcopy-support": "true", "vhost-iommu-support": "true"}
    assert names(judge_switch(replace(SWITCH, other_config=config), guests=True)) == []


def test_users_who_may_connect() -> None:
    """Root, QEMU's user and group, and who may override; a process is read from proc(5)'s status."""
    status = "Name:\tovs-vswitchd\nUid:\t0\t0\t0\t996\nGid:\t0\t0\t0\t995\nGroups:\t107 42 \nCapEff:\t0000000000000002\n"
    user = read_user(status)
    assert user == User(996, frozenset({995, 107, 42}), 2)
    assert [each.may_connect for each in (User(0, frozenset(), 0), User(107, frozenset(), 0), User(5, frozenset({107}), 0))] == [
        True
    ] * 3
    assert User(5, frozenset(), 2).may_connect
    assert not User(5, frozenset({6}), 1).may_connect
    assert read_user("") is None
    assert read_user("Uid:\t1\nGid:\tx\n") is None


def pool(free: int, total: int = 512, node: int | None = 0, page: int = 2 << 20) -> Pool:
    """Huge pages of a node."""
    return Pool(page, node, total, free, None, 0)


def test_huge_pages() -> None:
    """No pages, none free, too few beside the switch's own, too few for a guest: each by the same name."""
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


def test_whose_interfaces_are_looked_at() -> None:
    """Those that are marked, and those whose directory is where VMs have theirs; no others."""
    assert is_guest(RECORD)
    assert is_guest(replace(RECORD, steps=(RECORD.steps[0],)))
    assert is_guest(replace(RECORD, steps=(PORT,)))
    ordinary = (Directory("/x/shared-dir", "/x"), replace(PORT, marks={}))
    assert not is_guest(replace(RECORD, steps=ordinary))


def test_remedies_of_a_port() -> None:
    """What is put back is written as ovs-vsctl takes it; what ADD did not set is taken out."""

    def remedy(*fields: str, **port: Any) -> str:
        return judge_guest(with_port(columns(*fields), name="x", **port))[0].remedy

    assert remedy("tag", "trunks", tag=5, trunks=(7, 9)) == "ovs-vsctl set Port x tag=5 -- set Port x trunks=7,9"
    assert remedy("tag", "vlan_mode", "trunks") == "ovs-vsctl clear Port x tag -- clear Port x vlan_mode -- clear Port x trunks"
    assert remedy("external_ids:attached-mac", mac="02:00:00:00:00:01") == (
        "ovs-vsctl set Interface x 'external_ids:attached-mac=\"02:00:00:00:00:01\"'"
    )
    assert remedy("external_ids:attached-mac") == "ovs-vsctl remove Interface x external_ids attached-mac"
    assert remedy("bridge") == "ovs-vsctl del-port x, and run userspace-cni gc, which makes it again on br0"


def test_one_mac_of_two_vms() -> None:
    """On one bridge and VLAN it is told, however it is written; of a migrating VM's other pod, or elsewhere, it is not."""

    def machine(name: str, ifname: str = IFNAME, **port: Any) -> Record:
        steps = (replace(PORT, **{"mac": "02:00:00:00:00:0a", "marks": {"vm-name": name}, **port}),)
        return replace(RECORD, ifname=ifname, pod_name=f"virt-launcher-{name}-abcde", steps=steps)

    mine = machine("vm")
    migrated = replace(mine, container_id="other")
    given = {"interfaces": [{"name": IFNAME, "sandbox": "/n", "mac": "02:00:00:00:00:0A"}]}
    told = replace(machine("b", mac=""), netns="/n", result=given)
    others = [machine("c", tag=5), machine("d", bridge="br1"), replace(machine("e"), state="deleting")]
    assert rivals(mine, [mine, migrated, *others]) == []
    assert rivals(mine, [mine, told]) == [f"ns/b, interface {IFNAME}"]
    assert rivals(mine, [mine, machine("vm", "net2")]) == ["ns/vm, interface net2"]
    bare = replace(told, result=None)
    assert rivals(bare, [bare, replace(bare, pod_namespace="x")]) == []


# -- the command -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """A node in memory with huge pages enough, in a directory whose path leaves room for sockets: pytest's own may not."""
    monkeypatch.setattr(hugepages, "look", lambda **_: HugePages((), (pool(512),), ()))
    with TemporaryDirectory(prefix="uc-") as directory:
        yield Town(Path(directory))


@pytest.fixture
def town(quiet: Town) -> Town:
    """The same with an ordinary pod and a VM."""
    town = quiet
    town.call("ADD", "deadbeef01234567")
    town.call("ADD")
    marks = {"vm-name": "vm"}
    steps = tuple(replace(step, marks=marks) if isinstance(step, Port) else step for step in town.record().steps)
    town.rewrite(pod_namespace="ns", pod_name="virt-launcher-vm-abcde", steps=steps)
    return town


def told(town: Town, *arguments: str, code: int = 0) -> Any:
    """The JSON of a call that ended with this code."""
    return decoded(town.cli("kubevirt", "doctor", *arguments, "--json"), code)


def test_only_vms_are_looked_at(town: Town) -> None:
    """The ordinary pod is left out, and the VM is named as KubeVirt names it."""
    found = told(town)
    assert found["checked"] == 1
    assert (found["interfaces"][0]["vm"], found["interfaces"][0]["verdict"]) == ("ns/vm", "good")
    assert {each["name"] for each in found["findings"]} == {"post-copy", "iommu"}
    town.ports.told = Facts({"vhost-postcopy-support": "true", "vhost-iommu-support": "true"})
    assert told(town)["findings"] == []


def test_by_name(town: Town) -> None:
    """A VM's or a pod's name chooses, and an interface's all of that name; one that nobody has ends with 1, as with list."""
    for name in ("vm", "ns/vm", "ns/vm/net1", "net1", "virt-launcher-vm-abcde", "c0ffee"):
        assert told(town, name)["checked"] == 1
    result = town.cli("kubevirt", "doctor", "deadbeef")
    assert (result.exit_code, result.stdout.count("net1")) == (0, 0)
    assert "no interface of a VM has that name" in result.stderr
    assert town.cli("kubevirt", "doctor", "nobody").exit_code == town.cli("list", "nobody").exit_code == 1


def test_a_name_of_several_vms(town: Town) -> None:
    """One name in two namespaces ends with 2 and names both; their interface's name is both."""
    steps = tuple(
        replace(each, marks={"vm-name": "vm"}, mac="") if isinstance(each, Port) else each for each in town.record().steps
    )
    town.rewrite("deadbeef01234567", result=None, pod_namespace="other", pod_name="virt-launcher-vm-fghij", steps=steps)
    result = town.cli("kubevirt", "doctor", "vm")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ns/vm, other/vm" in result.stderr
    assert [told(town, "net1")["checked"], told(town, "other/vm")["checked"], told(town, "ns/vm", "net1")["checked"]] == [2, 1, 2]


def test_a_lost_port(town: Town) -> None:
    """A port that the switch has not is told once, and ends with 1."""
    town.lose()
    found = told(town, code=1)
    assert [each["name"] for each in found["findings"] if each["severity"] == "error"] == ["port-down"]
    assert found["interfaces"][0]["verdict"] == "error"


def test_a_dead_datapath(town: Town) -> None:
    """ovs-vswitchd that is dead is an error of the switch, and what it once said of ports is not told."""
    town.ports.alive = replace(town.ports.alive, state="dead", reason="gone")
    found = told(town, code=1)
    assert [(each["name"], each["where"]) for each in found["findings"]] == [("port-down", "switch")]
    assert [found["interfaces"][0][key] for key in ("link_state", "vhost", "verdict")] == ["unknown"] * 3


def test_a_switch_that_is_away(town: Town) -> None:
    """What can not be asked is told as unchecked; by itself that ends with 3."""
    town.unreachable = Unavailable("OVSDB is away")
    found = told(town, code=3)
    assert [(each["name"], each["message"]) for each in found["findings"]] == [("port-down", "OVSDB is away")]
    assert found["unchecked"] == ["ports and settings of the switch could not be looked at: OVSDB is away"]
    assert found["interfaces"][0]["verdict"] == "unknown"


def test_nobody_there(quiet: Town) -> None:
    """A node without VMs is told so; without its switch it is told what was not looked at, in text as in JSON."""
    result = quiet.cli("kubevirt", "doctor")
    assert result.exit_code == 0
    assert "no interface of a VM on this node" in result.stderr
    quiet.unreachable = Unavailable("OVSDB is away")
    unchecked = "ports and settings of the switch could not be looked at: OVSDB is away"
    assert told(quiet, code=3)["unchecked"] == [unchecked]
    result = quiet.cli("kubevirt", "doctor")
    assert (result.exit_code, unchecked in result.stderr) == (3, True)


def test_a_guest_that_is_too_large(town: Town) -> None:
    """A VM that is to be started is compared with the free huge pages."""
    assert told(town, "--guest", "1Gi")
    assert [each["severity"] for each in told(town, "--guest", "2Gi", code=1)["findings"]] == ["note", "note", "error"]


def test_notes_of_a_healthy_node(town: Town) -> None:
    """A person reads a line for each VM and that nothing is wrong; notes about the node are counted, and told when asked for."""
    result = town.cli("kubevirt", "doctor")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert "1 interface of VMs checked: nothing found (2 notes about the node: --notes)" in result.stderr
    result = town.cli("kubevirt", "doctor", "--notes")
    assert ("post-copy:" in result.stdout, "iommu:" in result.stdout, "2 notes" in result.stderr) == (True, True, True)
    assert "--notes" not in result.stderr


def test_pages_that_healthy_vms_took(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no fault while all VMs run, and may be why one does not."""
    monkeypatch.setattr(hugepages, "look", lambda **_: HugePages((), (pool(0),), ()))
    assert [each["severity"] for each in told(town)["findings"] if each["name"] == "hugepages-short"] == ["note"]
    assert "hugepages-short" not in town.cli("kubevirt", "doctor").stdout
    town.lose()
    assert [each["severity"] for each in told(town, code=1)["findings"] if each["name"] == "hugepages-short"] == ["warning"]


def test_a_size_that_is_none(town: Town) -> None:
    """--guest takes an amount of memory."""
    assert town.cli("kubevirt", "doctor", "--guest", "much").exit_code == 2
