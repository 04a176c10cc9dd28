"""`consumer: kubevirt`: a VM's interface in its launcher pod, with anything that
the pod may have put there, and beside the VM's second pod.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import refused, refused_soon, row_of, succeeded, switch_of
from tests.cni.test_attach_places import PROTECTING, container, listening, snapshot
from tests.host.places import bind_over, connects, mode, mounts_at, tree
from tests.lab.guests.vm_pods import IFNAME, SOCKET, LauncherPod, vm_network
from tests.lab.kube.apiserver import ApiServer
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import Call
from userspace_cni.pod import launcher

ENTRIES = pytest.mark.parametrize("node", ["process", "agent"], indirect=True)
CID12 = CONTAINER[:12]
PORT = f"{CID12}-{IFNAME}"
QEMU = (launcher.QEMU_ID, launcher.QEMU_ID)


def called(
    node: Node, verb: str, pod: LauncherPod, sandbox: str, network: dict[str, Any] | None = None, name: str = CONTAINER
) -> Call:
    """One call for the VM's interface in that pod."""
    return node.run(verb, network or vm_network(node), sandbox, name, IFNAME, CNI_ARGS=pod.args)


def target_of(node: Node, pod: LauncherPod) -> Path:
    """The mount through which OVS sees the pod's sockets."""
    return node.short / hashlib.sha256(str(pod.directory(node)).encode()).hexdigest()[:16]


def owner(path: Path) -> tuple[int, int]:
    facts = path.lstat()
    return facts.st_uid, facts.st_gid


@ENTRIES
def test_vm_of_a_launcher_pod(node: Node, sandbox: str) -> None:
    """ADD makes QEMU's directory, a short protected mount of it, and a client port with MTU and marks.

    DEL leaves the emptyDir as it was.
    """
    pod = LauncherPod()
    volume = pod.public(node)
    before = snapshot(volume)
    result = succeeded(called(node, "ADD", pod, sandbox))
    directory, target = pod.directory(node), target_of(node, pod)
    assert (owner(directory), mode(directory)) == (QEMU, 0o755)
    assert tree(directory) == set()
    [options] = mounts_at(target)
    assert options >= PROTECTING
    assert target.stat().st_ino == directory.stat().st_ino
    row = row_of(node, PORT)
    mac = launcher.derive_mac("default", "vm-1", IFNAME)
    assert (row["type"], row["options"]) == ("dpdkvhostuserclient", {"vhost-server-path": f"{target}/{SOCKET}"})
    assert (row["mtu_request"], row["external_ids"]["attached-mac"]) == (9000, mac)
    named = {key: row["external_ids"][key] for key in ("vm-name", "pod-name", "pod-namespace", "pod-uid", "network", "ifname")}
    assert named == {
        "vm-name": "vm-1",
        "pod-name": pod.name,
        "pod-namespace": "default",
        "pod-uid": pod.uid,
        "network": "net",
        "ifname": IFNAME,
    }
    assert result["interfaces"] == [
        {"name": IFNAME, "sandbox": sandbox, "mac": mac, "mtu": 9000, "socketPath": f"{target}/{SOCKET}"}
    ]
    succeeded(called(node, "DEL", pod, sandbox))
    assert (node.leftovers(), snapshot(volume)) == ({}, before)


@pytest.mark.parametrize(
    ("version", "more"),
    [("0.4.0", set()), ("1.0.0", {"mtu", "socketPath"}), ("1.1.0", {"mtu", "socketPath"})],
    ids=["0.4.0", "1.0.0", "1.1.0"],
)
def test_result_that_kubevirt_finds(node: Node, sandbox: str, version: str, more: set[str]) -> None:
    """The result has one interface with name, sandbox and MAC, without which Multus
    reports nothing, and the MTU where the version has one.
    """
    pod = LauncherPod()
    pod.public(node)
    [interface] = succeeded(called(node, "ADD", pod, sandbox, vm_network(node, version)))["interfaces"]
    assert set(interface) == {"name", "sandbox", "mac"} | more
    assert (interface["name"], interface["sandbox"]) == (IFNAME, sandbox)
    assert row_of(node, PORT)["mtu_request"] == 9000
    succeeded(called(node, "DEL", pod, sandbox, vm_network(node, version)))
    assert node.leftovers() == {}


def test_qemu_makes_its_socket(node: Node, sandbox: str) -> None:
    """The user that QEMU runs as can make its socket, and the switch finds it through the mount.

    DEL removes it with the directory.
    """
    pod = LauncherPod()
    volume = pod.public(node)
    succeeded(called(node, "ADD", pod, sandbox))
    for path in (pod.directory(node), *pod.directory(node).parents):
        if path.is_relative_to(node.directory.parent) and path != volume and path != pod.directory(node):
            path.chmod(0o755)
    script = "import os, socket, sys; os.chdir(sys.argv[1]); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]); s.listen()"
    as_qemu = ["setpriv", f"--reuid={launcher.QEMU_ID}", f"--regid={launcher.QEMU_ID}", "--clear-groups"]
    argv = [*as_qemu, "/usr/bin/python3", "-c", script, str(pod.directory(node)), SOCKET]
    subprocess.run(argv, check=True)
    made = target_of(node, pod) / SOCKET
    assert stat.S_ISSOCK(made.lstat().st_mode)
    assert owner(made) == QEMU
    succeeded(called(node, "DEL", pod, sandbox))
    assert (node.leftovers(), tree(volume)) == ({}, set())


def test_link_in_the_place_of_the_socket(node: Node, sandbox: str) -> None:
    """A link that the VM's pod puts in the place of its socket leads OVS nowhere."""
    pod = LauncherPod()
    pod.public(node)
    succeeded(called(node, "ADD", pod, sandbox))
    with listening(node.directory / "victim"):
        (pod.directory(node) / SOCKET).symlink_to(node.directory / "victim")
        with pytest.raises(OSError, match="symbolic links"):
            connects(target_of(node, pod) / SOCKET)
        (pod.directory(node) / SOCKET).unlink()
    succeeded(called(node, "DEL", pod, sandbox))
    assert node.leftovers() == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_several_interfaces_of_a_vm(node: Node, sandbox: str, order: tuple[int, ...]) -> None:
    """Interfaces of a VM, also of one network, have MACs of their own, and share directory and mount until the last DEL."""
    pod = LauncherPod()
    volume = pod.public(node)
    names = [launcher.interface_name(network) for network in ("red", "blue", "blue-again")]
    results = [
        succeeded(node.run("ADD", vm_network(node), sandbox, ifname=name, CNI_ARGS=pod.args))["interfaces"][0] for name in names
    ]
    assert len({result["mac"] for result in results}) == 3
    assert {Path(result["socketPath"]).parent for result in results} == {target_of(node, pod)}
    left = set(names)
    for number in order:
        assert len(mounts_at(target_of(node, pod))) == 1
        succeeded(node.run("DEL", vm_network(node), sandbox, ifname=names[number], CNI_ARGS=pod.args))
        left.remove(names[number])
        if left:
            assert pod.directory(node).exists()
    assert (node.leftovers(), tree(volume)) == ({}, set())


@ENTRIES
@pytest.mark.parametrize("first", ["source", "target"])
def test_two_pods_of_one_vm(node: Node, sandbox: str, first: str) -> None:
    """A migration's source and target each have a port, with the same MAC and the same path inside.

    DEL of one leaves the other's.
    """
    pods = {"source": LauncherPod(), "target": LauncherPod(random="x9z2q")}
    names = {"source": container(1), "target": container(2)}
    ports = {which: f"{name[:12]}-{IFNAME}" for which, name in names.items()}
    for which, pod in pods.items():
        pod.public(node)
        succeeded(called(node, "ADD", pod, sandbox, name=names[which]))
    rows = {which: row_of(node, port) for which, port in ports.items()}
    assert rows["source"]["external_ids"]["attached-mac"] == rows["target"]["external_ids"]["attached-mac"]
    assert {row["external_ids"]["vm-name"] for row in rows.values()} == {"vm-1"}
    sockets = {which: Path(row["options"]["vhost-server-path"]) for which, row in rows.items()}
    assert {which: path.parent for which, path in sockets.items()} == {which: target_of(node, pod) for which, pod in pods.items()}
    assert {path.name for path in sockets.values()} == {SOCKET}
    other = "target" if first == "source" else "source"
    before = snapshot(pods[other].public(node))
    with listening(pods[other].directory(node) / SOCKET):
        succeeded(called(node, "DEL", pods[first], sandbox, name=names[first]))
        assert row_of(node, ports[first]) == {}
        assert row_of(node, ports[other]) == rows[other]
        assert connects(sockets[other])
        assert not pods[first].directory(node).exists()
        (pods[other].directory(node) / SOCKET).unlink()
    assert snapshot(pods[other].public(node)) == before
    succeeded(called(node, "DEL", pods[other], sandbox, name=names[other]))
    assert node.leftovers() == {}


def test_pods_that_are_no_launchers(node: Node, sandbox: str) -> None:
    """Without a launcher pod's emptyDir, or without a UID to find it by, ADD is refused and no other directory is used."""
    pod = LauncherPod()
    node.empty_dir(pod.uid)
    network = vm_network(node, sharedDir=f"{node.directory}/base")
    for each in (network, vm_network(node)):
        refused(called(node, "ADD", pod, sandbox, each), 106, "emptyDir 'public' is not at", "virt-launcher", "kubelet_dir")
    no_uid = node.run("ADD", network, sandbox, ifname=IFNAME, CNI_ARGS=pod.args_without_uid)
    refused(no_uid, 4, "K8S_POD_UID", "virt-launcher")
    assert node.leftovers() == {}
    assert tree(node.kubelet / "pods" / pod.uid / "volumes" / "kubernetes.io~empty-dir") == {"shared-dir"}
    assert not (node.directory / "base").exists()


@pytest.mark.parametrize("vhost", [{"mode": "server"}, {"mode": "client", "socketfile": "vhost.sock"}])
def test_networks_that_no_vm_could_use(node: Node, sandbox: str, vhost: dict[str, str]) -> None:
    """A server-mode port and a socket of another name are refused with 7 before any effect."""
    pod = LauncherPod()
    before = snapshot(pod.public(node))
    network = vm_network(node)
    network["host"]["vhost"] = vhost
    refused(called(node, "ADD", pod, sandbox, network), 7, "consumer 'kubevirt'")
    assert (node.leftovers(), snapshot(pod.public(node))) == ({}, before)


@pytest.mark.parametrize("what", ["link", "file", "FIFO", "socket", "dangling link"])
def test_what_the_pod_put_there_is_refused(node: Node, sandbox: str, what: str) -> None:
    """Anything but a directory in the directory's place is refused with 106, which names it.

    Neither it nor a link's target is changed.
    """
    pod = LauncherPod()
    place, target = pod.directory(node), node.directory / "target"
    target.mkdir()
    match what:
        case "link":
            place.symlink_to(target)
        case "dangling link":
            place.symlink_to(target / "none")
        case "file":
            place.write_text("mine")
        case "FIFO":
            os.mkfifo(place)
        case "socket":
            fd = os.open(place.parent, os.O_PATH)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{fd}/{place.name}")
            os.close(fd)
    before = snapshot(place.parent), snapshot(target)
    refused(called(node, "ADD", pod, sandbox), 106, f"{place} is a", what.rpartition(" ")[2])
    assert (snapshot(place.parent), snapshot(target)) == before
    place.unlink()
    assert node.leftovers() == {}


def test_directory_that_the_pod_made(node: Node, sandbox: str) -> None:
    """An existing directory is used for QEMU and stays after DEL with its files; a dead socket of ours in it is removed."""
    pod = LauncherPod()
    place = pod.directory(node)
    place.mkdir(mode=0o700)
    (place / "mine").write_text("")
    with listening(place / SOCKET):
        pass
    assert (place / SOCKET).is_socket()
    succeeded(called(node, "ADD", pod, sandbox))
    assert (owner(place), mode(place)) == (QEMU, 0o755)
    assert tree(place) == {"mine"}
    succeeded(called(node, "DEL", pod, sandbox))
    assert tree(place) == {"mine"}
    shutil.rmtree(place)
    assert node.leftovers() == {}


def test_link_after_add(node: Node, sandbox: str) -> None:
    """When a pod replaces the directory by a link, DEL succeeds and removes nothing behind the link."""
    pod = LauncherPod()
    place, target = pod.directory(node), node.directory / "target"
    target.mkdir()
    (target / "theirs").write_text("of another user")
    succeeded(called(node, "ADD", pod, sandbox))
    shutil.rmtree(place)
    place.symlink_to(target)
    with listening(target / SOCKET):
        before = snapshot(target)
        succeeded(called(node, "DEL", pod, sandbox))
        assert snapshot(target) == before
    place.unlink()
    assert node.leftovers() == {}


@ENTRIES
def test_del_after_the_volume(node: Node, sandbox: str) -> None:
    """DEL, also a second one, succeeds after the kubelet has removed the pod's volumes, and does not make them again."""
    pod = LauncherPod()
    pod.public(node)
    succeeded(called(node, "ADD", pod, sandbox))
    shutil.rmtree(node.kubelet / "pods" / pod.uid)
    for _ in range(2):
        succeeded(called(node, "DEL", pod, sandbox))
        assert node.leftovers() == {}
    assert tree(node.kubelet / "pods") == set()


@ENTRIES
def test_former_sandbox_of_the_pod_that_was_never_detached(node: Node, sandbox: str) -> None:
    """A former sandbox keeps the socket's name while its namespace exists; afterwards the pod's new sandbox takes its place."""
    pod = LauncherPod()
    pod.public(node)
    former = Path(sandbox).parent / "cni-former"
    former.touch()
    subprocess.run(["unshare", f"--net={former}", "true"], check=True)
    try:
        succeeded(called(node, "ADD", pod, str(former), name=container(1)))
        error = refused(called(node, "ADD", pod, sandbox, name=container(2)), 105, SOCKET)
        assert "its DEL is missing" in error["details"]
    finally:
        subprocess.run(["umount", "--lazy", str(former)], check=True)
        former.unlink()
    other = LauncherPod()
    other.public(node)
    succeeded(called(node, "ADD", other, sandbox, name=container(3)))
    succeeded(called(node, "ADD", pod, sandbox, name=container(2)))
    assert sorted(switch_of(node).ports("br-test")) == [f"{container(number)[:12]}-{IFNAME}" for number in (2, 3)]
    for number, each in ((1, pod), (2, pod), (3, other)):
        succeeded(called(node, "DEL", each, sandbox, name=container(number)))
    assert node.leftovers() == {}


def test_del_with_something_mounted_on_the_directory(node: Node, sandbox: str) -> None:
    """An administrator's mount on QEMU's directory stays, and DEL succeeds."""
    pod = LauncherPod()
    pod.public(node)
    succeeded(called(node, "ADD", pod, sandbox))
    subprocess.run(["mount", "-t", "tmpfs", "theirs", str(pod.directory(node))], check=True)
    try:
        succeeded(called(node, "DEL", pod, sandbox))
        assert mounts_at(pod.directory(node))
    finally:
        subprocess.run(["umount", str(pod.directory(node))], check=True)
    pod.directory(node).rmdir()
    assert node.leftovers() == {}


def test_access_for_another_user(node: Node, sandbox: str) -> None:
    """User, group, mode and SELinux label of the network take precedence over QEMU's."""
    pod = LauncherPod()
    pod.public(node)
    network = vm_network(node)
    label = "system_u:object_r:container_file_t:s0"
    network["host"]["vhost"] = {"group": "4711", "dirmode": "0770", "selinuxLabel": label}
    succeeded(called(node, "ADD", pod, sandbox, network))
    directory = pod.directory(node)
    assert (owner(directory), mode(directory)) == ((launcher.QEMU_ID, 4711), 0o770)
    assert os.getxattr(directory, "security.selinux") == label.encode() + b"\0"
    succeeded(called(node, "DEL", pod, sandbox, network))
    assert node.leftovers() == {}


def test_allocation_of_a_device_plugin(node: Node, sandbox: str) -> None:
    """The VM's path replaces the device plugin's in its file, whose other keys stay; QEMU as client is refused with 7."""
    pod = LauncherPod()
    pod.public(node)
    info = node.device_info / "device.json"
    info.parent.mkdir()
    network = vm_network(node, runtimeConfig={"CNIDeviceInfoFile": str(info)})
    allocated = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "client", "path": "/dev/vhost/p7"}, "vendor": 2}
    info.write_text(json.dumps(allocated))
    refused(called(node, "ADD", pod, sandbox, network), 7, "device plugin allocated mode 'client'", "resourceName")
    assert (node.leftovers(), json.loads(info.read_text())) == ({}, allocated)
    allocated["vhost-user"] = {"mode": "server", "path": "/dev/vhost/p7"}
    info.write_text(json.dumps(allocated))
    succeeded(called(node, "ADD", pod, sandbox, network))
    told = {"mode": "server", "path": f"/var/run/kubevirt/vhostuser/{SOCKET}"}
    assert json.loads(info.read_text()) == {**allocated, "vhost-user": told}
    assert Path(row_of(node, PORT)["options"]["vhost-server-path"]).name == SOCKET
    succeeded(called(node, "DEL", pod, sandbox, network))
    assert (node.leftovers(), json.loads(info.read_text())) == ({}, allocated)


@ENTRIES
def test_what_the_api_server_knows(node: Node, sandbox: str, api: ApiServer) -> None:
    """The API server gives the UID that a runtime did not send, and the whole
    name of a VM whose pod has only the beginning of it.
    """
    pod = LauncherPod("m" * 43 + "-long-name")
    pod.create(api)
    pod.public(node)
    network = vm_network(node, kubeconfig=api.kubeconfig(node.directory))
    [interface] = succeeded(node.run("ADD", network, sandbox, ifname=IFNAME, CNI_ARGS=pod.args_without_uid))["interfaces"]
    assert row_of(node, PORT)["external_ids"]["vm-name"] == pod.machine
    assert interface["mac"] == launcher.derive_mac("default", launcher.machine_part(pod.machine), IFNAME)
    annotations = api.annotations(pod.namespace, pod.name)
    assert annotations["userspace/mapped-dir"] == launcher.MAPPED_DIR
    [entry] = json.loads(annotations["userspace/configuration-data"])
    assert entry["config"]["vhost"] == {"mode": "server", "socketfile": SOCKET}
    assert tree(pod.directory(node)) == set()
    succeeded(node.run("DEL", network, sandbox, ifname=IFNAME, CNI_ARGS=pod.args_without_uid))
    assert node.leftovers() == {}


def test_mac_that_is_given(node: Node, sandbox: str) -> None:
    """The MAC of the pod's network selection, where KubeVirt puts that of the
    VM's definition, takes precedence over a derived one.
    """
    pod = LauncherPod()
    pod.public(node)
    network = vm_network(node, runtimeConfig={"mac": "02:00:00:00:00:07"})
    [interface] = succeeded(called(node, "ADD", pod, sandbox, network))["interfaces"]
    assert interface["mac"] == row_of(node, PORT)["external_ids"]["attached-mac"] == "02:00:00:00:00:07"
    succeeded(called(node, "DEL", pod, sandbox, network))


@ENTRIES
@pytest.mark.parametrize("what", ["port", "mark", "mount", "directory", "other directory", "owner"])
def test_check_of_a_vm(node: Node, sandbox: str, what: str) -> None:
    """CHECK passes for a VM whose QEMU has not started, and names every difference from ADD."""
    pod = LauncherPod()
    pod.public(node)
    network = vm_network(node)
    network["prevResult"] = succeeded(called(node, "ADD", pod, sandbox))
    succeeded(called(node, "CHECK", pod, sandbox, network))
    switch, directory, target = switch_of(node), pod.directory(node), target_of(node, pod)
    match what:
        case "port":
            switch.vsctl("--no-wait", "del-port", PORT)
            found = "expected a port on bridge br-test"
        case "mark":
            switch.vsctl("--no-wait", "set", "Interface", PORT, "external_ids:vm-name=vm-2")
            found = "external_ids:vm-name: expected vm-1, found vm-2"
        case "mount":
            subprocess.run(["umount", str(target)], check=True)
            found = "found no mount"
        case "directory":
            shutil.rmtree(directory)
            found = f"directory {directory}: expected a directory"
        case "other directory":
            elsewhere = node.directory / "elsewhere"
            elsewhere.mkdir()
            subprocess.run(["umount", str(target)], check=True)
            bind_over(elsewhere, target)
            found = "found another directory"
        case _:
            os.chown(directory, 0, 0)
            found = "uid: expected 107, found 0"
    refused_soon(lambda: called(node, "CHECK", pod, sandbox, network), 103, found)
    succeeded(called(node, "DEL", pod, sandbox))
    assert node.leftovers() == {}


@ENTRIES
def test_gc_of_vms(node: Node, sandbox: str) -> None:
    """GC removes what a vanished launcher pod left, with or without its volume, and nothing of the VM's other pod."""
    gone, kept, swept = LauncherPod(), LauncherPod(random="x9z2q"), LauncherPod("vm-2")
    for number, pod in enumerate((gone, kept, swept), 1):
        pod.public(node)
        succeeded(called(node, "ADD", pod, sandbox, name=container(number)))
    before = row_of(node, f"{container(2)[:12]}-{IFNAME}")
    shutil.rmtree(node.kubelet / "pods" / gone.uid)
    valid = [{"containerID": container(2), "ifname": IFNAME}]
    succeeded(node.run("GC", {**vm_network(node), "cni.dev/valid-attachments": valid}))
    assert switch_of(node).ports("br-test") == [f"{container(2)[:12]}-{IFNAME}"]
    assert row_of(node, f"{container(2)[:12]}-{IFNAME}") == before
    assert [re.sub(".*/", "", point) for point in node.leftovers()["mounts"]] == [target_of(node, kept).name]
    assert not swept.directory(node).exists()
    succeeded(called(node, "DEL", kept, sandbox, name=container(2)))
    assert node.leftovers() == {}


def test_record_of_a_vm_is_lost(node: Node, sandbox: str) -> None:
    """A DEL without a record finds port, mount and directory by marks and holders, and removes them."""
    pod = LauncherPod()
    volume = pod.public(node)
    succeeded(called(node, "ADD", pod, sandbox))
    [record] = (node.state / "attachments").glob("*.json")
    record.unlink()
    succeeded(called(node, "DEL", pod, sandbox))
    assert (node.leftovers(), tree(volume)) == ({}, set())
