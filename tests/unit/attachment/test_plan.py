"""Golden plans: the steps of an attachment, in their order, with every name, path, MAC and mark in them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from userspace_cni.attachment.facts import Allocation, Pod, SocketFacts, SocketPlace
from userspace_cni.attachment.plan import plan
from userspace_cni.attachment.planned import Attachment
from userspace_cni.attachment.steps import (
    ConfigFile,
    DeviceInfo,
    Directory,
    OvsPort,
    PlacedSocket,
    PodMount,
    PodNote,
    SocketFile,
    Step,
    VhostUserClient,
    VhostUserServer,
    port_name,
)
from userspace_cni.base.errors import BadEnvironment, InvalidConfig
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Request, read_environment, read_network
from userspace_cni.cni.result import EMPTY, ResultAddresses, ResultInterface
from userspace_cni.consumers import CONSUMERS
from userspace_cni.pod import launcher
from userspace_cni.pod.document import parse_entry, render

CONTAINER = "0123456789abcdef0123456789abcdef"
CID = "0123456789ab"
UID = "11111111-2222-3333-4444-555555555555"
EMPTY_DIR = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/shared-dir"
MAPPED = "/var/lib/cni/usrspcni/"

IN_EMPTY_DIR = SocketPlace(EMPTY_DIR, "/var/lib/kubelet", create=False, own=False, mount_name=UID)
IN_HOST_PATH = SocketPlace("/data/sockets", "/data/sockets", create=False, own=False)
IN_SHARED_DIR = SocketPlace(f"/shared/{CID}", "/shared", create=True, own=False, parents=True)
IN_DEFAULT_DIR = SocketPlace(f"/usr/local/var/run/openvswitch/{CID}", "/usr/local/var/run/openvswitch", create=True, own=False)

FACTS = SocketFacts(
    boot_id="boot",
    store="5707e",
    netns_inode=4711,
    pod=Pod("ns", "pod", UID),
    place=IN_EMPTY_DIR,
    mapped_dir=MAPPED,
    short_dir="/var/lib/vhost_sockets",
    mount_always=True,
    ovs_sockdir="/var/run/openvswitch",
    noted=True,
    kubeconfig="/etc/kubeconfig",
)
DERIVED_MAC = "a6:a4:96:9a:7f:42"
MARKS = {
    "owner": "userspace-cni",
    "owner-kind": "pod",
    "schema": "1",
    "container-id": CONTAINER,
    "network": "net",
    "ifname": "net1",
    "boot-id": "boot",
    "netns": "/run/netns/x",
    "netns-inode": "4711",
    "store": "5707e",
    "pod-namespace": "ns",
    "pod-name": "pod",
    "pod-uid": UID,
}


def planned(
    facts: SocketFacts = FACTS, *, environ: dict[str, str] | None = None, addresses: ResultAddresses = EMPTY, **keys: Any
) -> Attachment:
    """The plan of one ADD whose configuration has `keys` in it."""
    stdin = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "userspace", **keys}).encode()
    variables = {"CNI_CONTAINERID": CONTAINER, "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "net1", **(environ or {})}
    request = Request(read_environment(variables, "ADD"), read_network(stdin, "ADD"), stdin)
    options = read_options(request, CONSUMERS, lambda _text: None)
    info = options.asked.device_info_file
    facts = replace(facts, vlan=options.vlan, device_info_file=info, device_info_dir=DEVICE_INFO_DIR if info else "")
    return plan(request, options, CONSUMERS[options.consumer], facts, addresses)


def only(attachment: Attachment, kind: type[Step]) -> Any:
    [step] = [step for step in attachment.steps if isinstance(step, kind)]
    return step


PUBLIC = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/public"
LAUNCHER = replace(
    FACTS,
    pod=Pod("ns", "virt-launcher-vm-1-abcde", UID),
    place=SocketPlace(f"{PUBLIC}/vhostuser", "/var/lib/kubelet", create=True, own=True),
    mapped_dir=launcher.MAPPED_DIR,
)


def server(**vhost: Any) -> dict[str, Any]:
    """A host block that makes OVS the server."""
    return {"vhost": {"mode": "server", **vhost}}


def client(**vhost: Any) -> dict[str, Any]:
    """A host block that makes OVS the client."""
    return {"vhost": {"mode": "client", **vhost}}


def test_client_in_an_empty_dir() -> None:
    """OVS as client: directory, name of the socket, mount named by the pod's UID, port on its path, note; in that order."""
    attachment = planned()
    path = f"/var/lib/vhost_sockets/{UID}/{CID}-net1"
    assert attachment.steps[:4] == (
        Directory(EMPTY_DIR, "/var/lib/kubelet", create=False, own=False),
        SocketFile(EMPTY_DIR, "/var/lib/kubelet", f"{CID}-net1"),
        PodMount(EMPTY_DIR, "/var/lib/kubelet", f"/var/lib/vhost_sockets/{UID}"),
        OvsPort("br0", f"{CID}-net1", VhostUserClient(path), mac=DERIVED_MAC, marks=MARKS),
    )
    assert [step.kind for step in attachment.steps[4:]] == ["pod-note"]
    assert attachment.interfaces[-1] == ResultInterface("net1", "/run/netns/x", DERIVED_MAC, None, path)


def test_server_in_an_empty_dir() -> None:
    """OVS as server: the port has no path, and the socket that OVS makes under the port's name is placed in the directory."""
    attachment = planned(host=server(group="hugetlbfs", user="107", dirmode="0775", socketmode="0660", selinuxLabel="a:b"))
    access: dict[str, Any] = {"user": "107", "group": "hugetlbfs", "selinux_label": "a:b"}
    assert attachment.steps[:3] == (
        Directory(EMPTY_DIR, "/var/lib/kubelet", create=False, own=False, mode=0o775, **access),
        OvsPort("br0", f"{CID}-net1", VhostUserServer(), mac=DERIVED_MAC, marks=MARKS),
        PlacedSocket(f"/var/run/openvswitch/{CID}-net1", EMPTY_DIR, "/var/lib/kubelet", f"{CID}-net1", mode=0o660, **access),
    )
    assert [step.kind for step in attachment.steps[3:]] == ["pod-note"]
    assert attachment.interfaces[-1].socket_path == f"{EMPTY_DIR}/{CID}-net1"


@pytest.mark.parametrize(
    ("place", "mount"),
    [
        (IN_EMPTY_DIR, UID),
        (IN_HOST_PATH, "fa9d8cc8089eb92a"),
        (IN_SHARED_DIR, "cfa3ced67152f5a4"),
        (IN_DEFAULT_DIR, "9e209cd9e1312237"),
    ],
    ids=["emptyDir", "hostPath", "sharedDir", "default"],
)
def test_places(place: SocketPlace, mount: str) -> None:
    """For every place of the sockets, the rights to make and own the directory are
    passed on, and the mount is named by the UID or a hash.
    """
    attachment = planned(replace(FACTS, place=place))
    assert only(attachment, Directory) == Directory(place.path, place.trusted, place.create, place.own, parents=place.parents)
    assert only(attachment, PodMount) == PodMount(place.path, place.trusted, f"/var/lib/vhost_sockets/{mount}")
    assert only(attachment, OvsPort).server_path == f"/var/lib/vhost_sockets/{mount}/{CID}-net1"


IN_DEVICE = SocketPlace(
    "/run/userspace-cni/devices/br0-3", "/run/userspace-cni/devices", create=False, own=False,
    mount_name="beef", subdirectory="br0-3/", closed=True,
)  # fmt: skip
DEVICE = replace(FACTS, place=IN_DEVICE)


@pytest.mark.parametrize("host", [None, {}, {"vhost": {}}, client()])
def test_device_of_the_pod(host: dict[str, Any] | None) -> None:
    """In a device's directory OVS is the client unless the network says otherwise; names in a note begin above the directory."""
    keys: dict[str, Any] = {} if host is None else {"host": host}
    attachment = planned(DEVICE, runtimeConfig={"CNIDeviceInfoFile": f"{DEVICE_INFO_DIR}/x"}, **keys)
    assert attachment.steps[:3] == (
        Directory(IN_DEVICE.path, IN_DEVICE.trusted),
        SocketFile(IN_DEVICE.path, IN_DEVICE.trusted, f"{CID}-net1"),
        PodMount(IN_DEVICE.path, IN_DEVICE.trusted, "/var/lib/vhost_sockets/beef"),
    )
    assert only(attachment, OvsPort).server_path == f"/var/lib/vhost_sockets/beef/{CID}-net1"
    path = json.loads(only(attachment, DeviceInfo).content)["vhost-user"]["path"]
    assert path == f"{MAPPED}br0-3/{CID}-net1"
    assert only(planned(replace(DEVICE, mount_always=False), **keys), PodMount) == attachment.steps[2]
    note = only(attachment, PodNote)
    assert note.mapped_dir + parse_entry(note.entry)["config"]["vhost"]["socketfile"] == path
    file = only(planned(replace(DEVICE, noted=False), **keys), ConfigFile)
    assert parse_entry(file.content)["config"]["vhost"]["socketfile"] == f"{CID}-net1"


def test_server_in_a_device_of_the_pod() -> None:
    """OVS cannot be the server there, whether the network says so or another plugin's device-info."""
    with pytest.raises(InvalidConfig, match="OVS is to be the server"):
        planned(DEVICE, host=server())
    with pytest.raises(InvalidConfig, match="OVS is to be the server"):
        planned(replace(DEVICE, allocation=Allocation("client", "/x/y", {"vhost-user": {}})))


def test_short_paths_without_a_mount() -> None:
    """With mount_pod_dirs = long, OVS gets a path that fits a socket as it is."""
    attachment = planned(replace(FACTS, place=IN_HOST_PATH, mount_always=False))
    assert [step.kind for step in attachment.steps] == ["directory", "socket-file", "port", "pod-note"]
    assert only(attachment, OvsPort).server_path == f"/data/sockets/{CID}-net1"


@pytest.mark.parametrize(("length", "mounted"), [(107, False), (108, True)])
def test_long_paths_with_a_mount(length: int, mounted: bool) -> None:
    """With mount_pod_dirs = long, there is a mount if the socket's path has more than 107 bytes."""
    path = "/" + "x" * (length - len(f"//{CID}-net1"))
    attachment = planned(replace(FACTS, place=SocketPlace(path, path, create=False, own=False), mount_always=False))
    assert ("pod-mount" in [step.kind for step in attachment.steps]) == mounted
    assert len(only(attachment, OvsPort).server_path.encode()) <= 107


def test_path_length_counts_bytes() -> None:
    """A socket's path is measured in bytes, not characters."""
    path = "/" + "é" * 45
    attachment = planned(replace(FACTS, place=SocketPlace(path, path, create=False, own=False), mount_always=False))
    assert len(f"{path}/{CID}-net1") < 107
    assert only(attachment, PodMount).source == path


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_path_limit_in_the_pod(length: int, fits: bool) -> None:
    """The application's path has 107 bytes at most: one more is refused with 7, naming the path."""
    mapped = "/" + "m" * (length - len(f"//{CID}-net1")) + "/"
    facts = replace(FACTS, mapped_dir=mapped)
    for host in (client(), server()):
        if fits:
            assert only(planned(facts, host=host), PodNote).mapped_dir == mapped
        else:
            with pytest.raises(InvalidConfig, match=r"path in the pod.*more than 107 bytes") as refused:
                planned(facts, host=host)
            assert refused.value.code == 7


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_path_limit_for_the_client(length: int, fits: bool) -> None:
    """The path that OVS connects to has 107 bytes at most."""
    facts = replace(FACTS, short_dir="/" + "s" * (length - len(f"//{UID}/{CID}-net1")))
    if fits:
        assert len(only(planned(facts), OvsPort).server_path) == 107
    else:
        with pytest.raises(InvalidConfig, match="path that OVS is given"):
            planned(facts)


@pytest.mark.parametrize(("length", "fits"), [(107, True), (108, False)])
def test_path_limit_for_the_server(length: int, fits: bool) -> None:
    """The path at which OVS listens has 107 bytes at most; the placed socket's may be longer, as OVS does not use it."""
    facts = replace(FACTS, ovs_sockdir="/" + "s" * (length - len(f"//{CID}-net1")))
    if fits:
        assert len(only(planned(facts, host=server()), PlacedSocket).source) == 107
    else:
        with pytest.raises(InvalidConfig, match="path at which OVS listens"):
            planned(facts, host=server())
    deep = SocketPlace("/" + "d" * 200, "/", create=False, own=False)
    assert only(planned(replace(FACTS, place=deep), host=server()), PlacedSocket).directory == deep.path


def test_port_name_is_upstreams() -> None:
    """Port and socket are named by the first twelve characters of the container and the interface; short IDs work, too."""
    assert port_name(CONTAINER, "net1") == "0123456789ab-net1"
    assert port_name("abc", "eth0") == "abc-eth0"
    assert port_name("x" * 64, "y" * 15) == "xxxxxxxxxxxx-yyyyyyyyyyyyyyy"


@pytest.mark.parametrize("host", [client(socketfile="vhost.sock"), server(socketfile="vhost.sock")])
def test_socketfile_names_the_file_only(host: dict[str, Any]) -> None:
    """`socketfile` names the socket in the pod's directory; the port keeps the attachment's name."""
    attachment = planned(host=host)
    step = next(step for step in attachment.steps if isinstance(step, SocketFile | PlacedSocket))
    assert (step.name, only(attachment, OvsPort).name) == ("vhost.sock", f"{CID}-net1")
    assert parse_entry(only(attachment, PodNote).entry)["config"]["vhost"]["socketfile"] == "vhost.sock"
    if isinstance(step, PlacedSocket):
        assert step.source == f"/var/run/openvswitch/{CID}-net1"


@pytest.mark.parametrize(
    ("environ", "keys", "mac"),
    [
        ({}, {}, DERIVED_MAC),
        ({"CNI_IFNAME": "net2"}, {}, "52:a1:d0:2d:a3:3e"),
        ({}, {"name": "other"}, "2e:60:07:71:83:55"),
        ({"CNI_CONTAINERID": "fedcba9876543210"}, {}, "9e:f0:1b:de:39:49"),
        ({}, {"host": {"mac": "02:AA:bb:00:00:01"}}, "02:aa:bb:00:00:01"),
    ],
)
def test_derived_mac(environ: dict[str, str], keys: dict[str, Any], mac: str) -> None:
    """The MAC is a function of network, container and interface, the same in every run and release.

    A given one takes precedence.
    """
    attachment = planned(environ=environ, **keys)
    assert (attachment.interfaces[-1].mac, only(attachment, OvsPort).mac) == (mac, mac)
    assert int(mac[:2], 16) & 3 == 2


def vm_mac(pod: Pod, **environ: str) -> str:
    """The MAC of an interface of the VM whose launcher pod it is."""
    return planned(replace(LAUNCHER, pod=pod), environ=environ, consumer="kubevirt").interfaces[-1].mac


def test_mac_of_a_vm_follows_it() -> None:
    """For KubeVirt the MAC is the one that the sidecar derives: the pod of a migration's target has the same."""
    source = vm_mac(Pod("ns", "virt-launcher-vm-1-abcde", "u1"), CNI_IFNAME="pod37a8eec1ce1", CNI_CONTAINERID="aaaa")
    target = vm_mac(Pod("ns", "virt-launcher-vm-1-x9z2q", "u2"), CNI_IFNAME="pod37a8eec1ce1", CNI_CONTAINERID="bbbb")
    assert source == target == launcher.derive_mac("ns", launcher.machine_part("vm-1"), "pod37a8eec1ce1") == "12:a4:ac:49:27:11"


def test_mac_of_a_vm_with_a_long_name() -> None:
    """A pod's name has only the beginning of a long VM's name, and the sidecar derives the MAC from the same part."""
    machine = "m" * 40 + "-very-long-name"
    pod = Pod("ns", f"virt-launcher-{machine}-"[:58] + "abcde", UID, annotations={launcher.DOMAIN: machine})
    assert vm_mac(pod) == launcher.derive_mac("ns", launcher.machine_part(machine), "net1")


def test_macs_of_other_vms_and_interfaces() -> None:
    """Another VM, another namespace and another interface of one network have other MACs; so have pods that are no launchers."""
    launchers = [Pod(namespace, f"virt-launcher-{vm}-abcde") for namespace in ("ns", "n2") for vm in ("vm-1", "vm-2")]
    others = [Pod("ns", "app-1"), Pod("ns", "app-2"), Pod("", "", "u1"), Pod("", "", "u2")]
    macs = {vm_mac(pod, CNI_IFNAME=name) for pod in [*launchers, *others] for name in ("net1", "net2")}
    assert len(macs) == 2 * 8


def test_vm_in_its_launcher_pod() -> None:
    """OVS is the client: QEMU's directory is made, the socket named by the
    interface, with a short mount, and the note has QEMU's path.
    """
    attachment = planned(LAUNCHER, consumer="kubevirt", host={"mtu": 9000})
    path = f"{PUBLIC}/vhostuser"
    target = "/var/lib/vhost_sockets/99ffee2108a64760"
    assert attachment.steps[:3] == (
        Directory(path, "/var/lib/kubelet", create=True, own=True, user="107", group="107", mode=0o755),
        SocketFile(path, "/var/lib/kubelet", "net1.sock"),
        PodMount(path, "/var/lib/kubelet", target),
    )
    port = only(attachment, OvsPort)
    assert (port.name, port.interface.type) == (f"{CID}-net1", "dpdkvhostuserclient")
    assert (port.server_path, port.interface.mtu) == (f"{target}/net1.sock", 9000)
    note = only(attachment, PodNote)
    assert (note.mapped_dir, note.optional) == ("/var/run/kubevirt/vhostuser/", True)
    assert parse_entry(note.entry)["config"]["vhost"] == {"mode": "server", "socketfile": "net1.sock"}
    written = only(planned(LAUNCHER, consumer="kubevirt", runtimeConfig=INFO), DeviceInfo)
    assert json.loads(written.content)["vhost-user"] == {"mode": "server", "path": "/var/run/kubevirt/vhostuser/net1.sock"}
    assert written.existed is False


def test_directory_of_a_vm_for_another_user() -> None:
    """The network's user, group, mode and label each take precedence over QEMU's."""
    access = only(
        planned(LAUNCHER, consumer="kubevirt", host={"vhost": {"group": "hugetlbfs", "selinuxLabel": "a:b"}}), Directory
    )
    assert (access.user, access.group, access.mode, access.selinux_label) == ("107", "hugetlbfs", 0o755, "a:b")
    access = only(planned(LAUNCHER, consumer="kubevirt", host={"vhost": {"user": "0", "dirmode": "0775"}}), Directory)
    assert (access.user, access.group, access.mode) == ("0", "107", 0o775)


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        (Pod("ns", "virt-launcher-vm-1-abcde"), "vm-1"),
        (Pod("ns", f"virt-launcher-{'m' * 43}-abcde", annotations={launcher.DOMAIN: "m" * 43}), "m" * 43),
        (Pod("ns", f"virt-launcher-{'m' * 44}abcde", annotations={launcher.DOMAIN: "m" * 60}), "m" * 60),
        (Pod("ns", "virt-launcher-vm-1-abcde", annotations={launcher.DOMAIN: "vm-2"}), "vm-1"),
        (Pod("ns", "virt-launcher-vm-1-abcde", annotations={launcher.DOMAIN: "vm-1\n"}), "vm-1"),
        (Pod("ns", "app", annotations={launcher.DOMAIN: "vm-1"}), None),
    ],
    ids=["pod's name", "whole name", "annotation", "another's annotation", "no name", "no launcher"],
)
def test_mark_of_a_vm(pod: Pod, name: str | None) -> None:
    """The port is marked with the VM's name: the whole of it where the pod's annotation agrees with the pod's name."""
    assert only(planned(replace(LAUNCHER, pod=pod), consumer="kubevirt"), OvsPort).marks.get("vm-name") == name


def test_no_mark_of_a_vm_for_a_pod() -> None:
    """A network that is not for VMs marks no VM, whatever the pod is called."""
    facts = replace(FACTS, pod=Pod("ns", "virt-launcher-vm-1-abcde", UID, annotations={launcher.DOMAIN: "vm-1"}))
    assert "vm-name" not in only(planned(facts), OvsPort).marks


def test_allocation_for_a_vm() -> None:
    """A device plugin's path is replaced by the VM's own, which is the same on every node; its other keys stay."""
    facts = replace(LAUNCHER, allocation=device_info("server", "/run/vhost/sock-3", pci={"x": 1}))
    attachment = planned(facts, consumer="kubevirt", runtimeConfig=INFO)
    assert only(attachment, SocketFile).name == "net1.sock"
    written = only(attachment, DeviceInfo)
    assert json.loads(written.content) == {
        "type": "vhost-user",
        "version": "1.1.0",
        "vhost-user": {"mode": "server", "path": "/var/run/kubevirt/vhostuser/net1.sock"},
        "pci": {"x": 1},
    }
    assert written.existed


@pytest.mark.parametrize("host", [None, {"mtu": 1500}, {"vhost": {"mode": "client"}}])
def test_allocation_of_a_server_port_for_a_vm(host: dict[str, Any] | None) -> None:
    """A device plugin that makes QEMU the client is refused with 7: OVS would have to be the server."""
    facts = replace(LAUNCHER, allocation=device_info("client", "/run/vhost/sock-3"))
    keys: dict[str, Any] = {} if host is None else {"host": host}
    with pytest.raises(InvalidConfig, match="device plugin allocated mode 'client' with consumer 'kubevirt'") as refused:
        planned(facts, consumer="kubevirt", runtimeConfig=INFO, **keys)
    assert refused.value.code == 7


def test_interface_of_a_vm_that_is_no_file_name() -> None:
    """An interface whose name cannot be a socket's is refused with 4, without advice that a VM's network could not take."""
    with pytest.raises(BadEnvironment, match="cannot be part of a socket's name") as refused:
        planned(LAUNCHER, environ={"CNI_IFNAME": "a=b"}, consumer="kubevirt")
    assert refused.value.code == 4
    assert "socketfile" not in refused.value.details


def test_bridge_vlan_and_mtu_reach_the_port() -> None:
    """Bridge, VLAN and MTU are the port's columns, and the result has the MTU."""
    bridge = {"bridgeName": "br-dpdk0", "vlanId": 100, "trunks": [7, "200-202"], "vlanMode": "native-tagged"}
    attachment = planned(host={**client(), "bridge": bridge, "mtu": 9000})
    port = only(attachment, OvsPort)
    assert (port.bridge, port.vlan.tag, port.vlan.trunks, port.vlan.mode, port.interface.mtu) == (
        "br-dpdk0",
        100,
        (7, 200, 201, 202),
        "native-tagged",
        9000,
    )
    assert attachment.interfaces[-1].mtu == 9000


def test_marks_leave_out_what_is_not_known() -> None:
    """Without a pod's name there are no marks of a pod."""
    marks = only(planned(replace(FACTS, pod=Pod())), OvsPort).marks
    assert marks == {key: value for key, value in MARKS.items() if not key.startswith("pod-")}


def test_marks_leave_out_what_ovsdb_cannot_hold() -> None:
    """A path that is not UTF-8 is omitted from the marks and not changed: a wrong path would look like a vanished container."""
    attachment = planned(environ={"CNI_NETNS": "/run/netns/\udcff"})
    assert only(attachment, OvsPort).marks == {key: value for key, value in MARKS.items() if key != "netns"}
    assert attachment.interfaces[-1].sandbox == "/run/netns/\udcff"


@pytest.mark.parametrize("ifname", ["é", "net*", "a,b", "a=b", "a'b", "a\\b", 'a"b', "日本", "eth0@x"])
def test_interface_name_that_is_no_file_name(ifname: str) -> None:
    """A kernel's interface name that DPDK's arguments would not survive is refused with 4, unless the socket is named."""
    environ = {"CNI_IFNAME": ifname}
    with pytest.raises(BadEnvironment, match="socketfile") as refused:
        planned(environ=environ)
    assert refused.value.code == 4
    assert repr(ifname) in refused.value.message
    attachment = planned(environ=environ, host=client(socketfile="vhost.sock"))
    assert (only(attachment, OvsPort).name, only(attachment, SocketFile).name) == (f"{CID}-{ifname}", "vhost.sock")
    assert attachment.interfaces[-1].name == ifname


def test_interface_name_that_is_not_text() -> None:
    """A name of bytes that are not UTF-8 cannot be a port, whatever the socket is called."""
    with pytest.raises(BadEnvironment, match="UTF-8"):
        planned(environ={"CNI_IFNAME": "net\udcff"}, host=client(socketfile="vhost.sock"))


def device_info(mode: str, path: str, **more: Any) -> Allocation:
    content = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": mode, "path": path}, **more}
    return Allocation(mode, path, content)


DEVICE_INFO_DIR = "/var/run/k8s.cni.cncf.io/devinfo"
INFO = {"CNIDeviceInfoFile": f"{DEVICE_INFO_DIR}/cni/x"}


@pytest.mark.parametrize(
    ("mode", "kind"), [("server", "dpdkvhostuserclient"), ("client", "dpdkvhostuser")], ids=["app-serves", "ovs-serves"]
)
def test_allocation_of_a_device_plugin(mode: str, kind: str) -> None:
    """A device plugin's mode and path are the application's, OVS takes the other role, and its other keys stay."""
    facts = replace(FACTS, allocation=device_info(mode, "/run/vhost/sock-3", pci={"x": 1}))
    attachment = planned(facts, runtimeConfig=INFO)
    assert only(attachment, OvsPort).interface.type == kind
    step = next(step for step in attachment.steps if isinstance(step, SocketFile | PlacedSocket))
    assert step.name == "sock-3"
    written = only(attachment, DeviceInfo)
    assert json.loads(written.content) == {
        "type": "vhost-user",
        "version": "1.1.0",
        "vhost-user": {"mode": mode, "path": "/run/vhost/sock-3"},
        "pci": {"x": 1},
    }
    assert (written.path, written.existed, written.trusted) == (INFO["CNIDeviceInfoFile"], True, DEVICE_INFO_DIR)
    assert json.loads(written.before) == {"mode": mode, "path": "/run/vhost/sock-3"}
    assert parse_entry(only(attachment, PodNote).entry)["config"]["vhost"] == {"mode": mode, "socketfile": "sock-3"}


@pytest.mark.parametrize(
    ("mode", "host"),
    [("server", server()), ("client", client()), ("server", client(socketfile="other")), ("client", server(socketfile="other"))],
)
def test_allocation_that_contradicts(mode: str, host: dict[str, Any]) -> None:
    """A device plugin and a network that say different things are refused with 7, naming both."""
    with pytest.raises(InvalidConfig, match=r"device plugin allocated.*host\.vhost") as refused:
        planned(replace(FACTS, allocation=device_info(mode, "/run/vhost/sock-3")), host=host, runtimeConfig=INFO)
    assert refused.value.code == 7
    assert "CNIDeviceInfoFile" in refused.value.details


def test_allocation_that_agrees() -> None:
    """The same said twice is no contradiction."""
    facts = replace(FACTS, allocation=device_info("server", "/run/vhost/sock-3"))
    assert only(planned(facts, host=client(socketfile="sock-3"), runtimeConfig=INFO), SocketFile).name == "sock-3"


@pytest.mark.parametrize("name", ["a,b", "a=b", "a b", "-x", "..", "é"])
def test_allocated_name_that_is_no_file_name(name: str) -> None:
    """A socket's name from a device plugin that DPDK's arguments would break is refused with 7, naming the device plugin."""
    with pytest.raises(InvalidConfig, match="device plugin allocated the socket") as refused:
        planned(replace(FACTS, allocation=device_info("server", f"/run/vhost/{name}")), runtimeConfig=INFO)
    assert refused.value.code == 7


def test_allocated_path_that_is_too_long() -> None:
    """A device plugin's path is the pod's path and has its limit."""
    with pytest.raises(InvalidConfig, match="path in the pod"):
        planned(replace(FACTS, allocation=device_info("server", "/" + "x" * 100 + "/sock-3")), runtimeConfig=INFO)


@pytest.mark.parametrize(("host", "mode"), [(client(), "server"), (server(), "client")])
def test_device_info(host: dict[str, Any], mode: str) -> None:
    """Device-info is written when the runtime names a file, with the application's role and its path in the pod."""
    step = only(planned(host=host, runtimeConfig=INFO), DeviceInfo)
    assert json.loads(step.content) == {
        "type": "vhost-user",
        "version": "1.1.0",
        "vhost-user": {"mode": mode, "path": f"{MAPPED}{CID}-net1"},
    }
    assert not step.existed


def test_config_file_where_no_api_is() -> None:
    """Without an API server the entry is a file in the pod's directory, of upstream's name."""
    attachment = planned(replace(FACTS, noted=False, place=IN_SHARED_DIR))
    step = only(attachment, ConfigFile)
    assert (step.directory, step.trusted, step.name) == (f"/shared/{CID}", "/shared", f"configData-{CID}-net1.json")
    assert parse_entry(step.content)["containerId"] == CONTAINER
    assert not [step for step in attachment.steps if isinstance(step, PodNote)]


@pytest.mark.parametrize(("consumer", "optional"), [("pod", False), ("kubevirt", True)])
def test_note_is_optional_for_a_vm(consumer: str, optional: bool) -> None:
    """The note names the pod, this attachment and the credentials; only for a VM is it optional."""
    note = only(planned(consumer=consumer), PodNote)
    assert (note.namespace, note.pod, note.uid, note.container_id, note.ifname) == ("ns", "pod", UID, CONTAINER, "net1")
    assert (note.mapped_dir, note.kubeconfig, note.optional) == (MAPPED, "/etc/kubeconfig", optional)


def test_document_is_upstreams() -> None:
    """The annotation has upstream's keys in upstream's order and layout; MAC and socket path are what the result adds."""
    note = only(planned(container={"engine": "ovs-dpdk", "iftype": "vhostuser", "netType": "interface"}), PodNote)
    assert (
        render([parse_entry(note.entry)])
        == f"""[{{
    "containerId": "{CONTAINER}",
    "ifName": "net1",
    "name": "net",
    "config": {{
        "engine": "ovs-dpdk",
        "iftype": "vhostuser",
        "netType": "interface",
        "memif": {{}},
        "vhost": {{
            "mode": "server",
            "socketfile": "{CID}-net1"
        }},
        "bridge": {{}}
    }},
    "ipResult": {{
        "cniVersion": "1.1.0",
        "interfaces": [
            {{
                "name": "net1",
                "mac": "{DERIVED_MAC}",
                "sandbox": "/run/netns/x",
                "socketPath": "/var/lib/vhost_sockets/{UID}/{CID}-net1"
            }}
        ]
    }}
}}]"""
    )


def test_document_without_a_container_block() -> None:
    """Without a `container` block type and net type are filled in, and the engine is not, as upstream does."""
    config = parse_entry(only(planned(), PodNote).entry)["config"]
    assert config == {
        "iftype": "vhostuser",
        "netType": "interface",
        "memif": {},
        "vhost": {"mode": "server", "socketfile": f"{CID}-net1"},
        "bridge": {},
    }


def test_container_block_cannot_mislead() -> None:
    """Role and socket in the `container` block are replaced by the real ones; its queues and bridge are passed on."""
    container = {"vhost": {"mode": "client", "socketfile": "x", "queues": 4, "group": "g"}, "bridge": {"bridgeId": 4}}
    config = parse_entry(only(planned(container=container), PodNote).entry)["config"]
    assert config["vhost"] == {"mode": "server", "group": "g", "socketfile": f"{CID}-net1", "queues": 4}
    assert config["bridge"] == {"bridgeId": 4}


def test_addresses_in_the_document() -> None:
    """Leased addresses are in the document with the version that readers need."""
    addresses = ResultAddresses(({"address": "10.0.0.5/24", "gateway": "10.0.0.1"}, {"address": "2001:db8::5/64"}))
    result = parse_entry(only(planned(addresses=addresses), PodNote).entry)["ipResult"]
    assert result["ips"] == [
        {"version": "4", "interface": 0, "address": "10.0.0.5/24", "gateway": "10.0.0.1"},
        {"version": "6", "interface": 0, "address": "2001:db8::5/64"},
    ]


def test_same_input_same_plan() -> None:
    """A plan is a function of its input alone."""
    assert planned() == planned()
