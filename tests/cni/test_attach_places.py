"""Where an attachment's socket is: directory, mount and owner."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import refused, succeeded, switch_of
from tests.host import places
from tests.host.places import UNUSED_ID, mode, mounts_at, tree
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node

CID12 = CONTAINER[:12]
PORT = f"{CID12}-net1"
PROTECTING = {"nosymfollow", "nosuid", "nodev", "noexec"}


def container(number: int) -> str:
    return f"{number:012x}" + "d" * 52


def serving(node: Node, **vhost: Any) -> dict[str, Any]:
    """A network whose ports are of type dpdkvhostuser."""
    network = node.network()
    network["host"]["vhost"] = {"mode": "server", **vhost}
    return network


def server_path(node: Node, port: str = PORT) -> str:
    return str(switch_of(node).interface(port)["options"]["vhost-server-path"])


@contextmanager
def near(path: Path) -> Iterator[Path]:
    """The same path, short enough for a socket address: in a container the volume is close to the root."""
    fd = os.open(path.parent, os.O_PATH)
    try:
        yield Path(f"/proc/self/fd/{fd}/{path.name}")
    finally:
        os.close(fd)


@contextmanager
def listening(path: Path) -> Iterator[None]:
    """The listening socket that an application has made."""
    with near(path) as short, places.listening(short):
        yield


def connects(path: Path) -> bool:
    """Whether something accepts at `path`."""
    with near(path) as short:
        return places.connects(short)


def host_path_pod(api: ApiServer, directory: Path, name: str = "app") -> Pod:
    """A pod whose spec has a hostPath."""
    pod = Pod(name, volume={"hostPath": {"path": str(directory)}})
    pod.create(api)
    return pod


def snapshot(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """A directory and everything in it: inode, mode, owner, group."""
    paths = [directory, *directory.rglob("*")]
    return {str(path): (facts.st_ino, facts.st_mode, facts.st_uid, facts.st_gid) for path in paths for facts in [path.lstat()]}


def test_empty_dir_by_the_pods_uid(node: Node, sandbox: str) -> None:
    """Without an API server, K8S_POD_UID leads to the emptyDir; OVS gets it through a protected mount of its own."""
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    before = snapshot(volume)
    result = succeeded(node.run("ADD", node.network(), sandbox, CNI_ARGS=pod.args))
    target = node.short / pod.uid
    assert result["interfaces"][0]["socketPath"] == server_path(node) == f"{target}/{PORT}"
    [options] = mounts_at(target)
    assert options >= PROTECTING
    assert target.stat().st_ino == volume.stat().st_ino
    assert tree(volume) == {f"configData-{PORT}.json"}
    succeeded(node.run("DEL", node.network(), sandbox, CNI_ARGS=pod.args))
    assert node.leftovers() == {}
    assert snapshot(volume) == before


def test_what_the_mount_protects_from(node: Node, sandbox: str) -> None:
    """A link that the pod puts in the place of its socket leads OVS nowhere,
    though it leads to its target outside of the mount.
    """
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    succeeded(node.run("ADD", node.network(), sandbox, CNI_ARGS=pod.args))
    with listening(node.directory / "victim"):
        (volume / PORT).symlink_to(node.directory / "victim")
        assert connects(volume / PORT)
        with pytest.raises(OSError, match="symbolic links"):
            places.connects(Path(server_path(node)))
        (volume / PORT).unlink()
    succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}


def test_long_paths_only(node: Node, sandbox: str) -> None:
    """`mount_pod_dirs = long`: OVS is given the volume itself while its socket's path fits, and a mount when it does not."""
    node.settings["USERSPACE_CNI_MOUNT_POD_DIRS"] = "long"
    network = {**node.network(), "sharedDir": f"{node.directory}/s"}
    succeeded(node.run("ADD", network, sandbox))
    assert server_path(node) == f"{node.directory}/s/{CID12}/{PORT}"
    assert not node.short.exists()
    succeeded(node.run("DEL", network, sandbox))
    pod = Pod()
    node.empty_dir(pod.uid)
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert server_path(node) == f"{node.short}/{pod.uid}/{PORT}"
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_volume_name_and_kubelet_root(node: Node, sandbox: str) -> None:
    """A volume of the configured name below the configured kubelet root, and not the usual ones."""
    pod = Pod()
    usual = node.empty_dir(pod.uid)
    node.settings |= {"USERSPACE_CNI_SHARED_VOLUME": "dpdk", "USERSPACE_CNI_KUBELET_DIR": f"{node.directory}/k0s"}
    volume = node.directory / "k0s" / "pods" / pod.uid / "volumes" / "kubernetes.io~empty-dir" / "dpdk"
    volume.mkdir(parents=True)
    succeeded(node.run("ADD", node.network(), sandbox, CNI_ARGS=pod.args))
    assert (node.short / pod.uid).stat().st_ino == volume.stat().st_ino
    assert tree(usual) == set()
    succeeded(node.run("DEL", node.network(), sandbox))
    assert (node.leftovers(), tree(volume)) == ({}, set())


def test_empty_dir_by_the_pods_spec(node: Node, sandbox: str, api: ApiServer) -> None:
    """When a runtime sends no UID, the API server gives it.

    A volume that is missing is refused, and the error names the setting.
    """
    pod = Pod(volume={"emptyDir": {}})
    pod.create(api)
    network = {**node.network(), "kubeconfig": api.kubeconfig(node.directory)}
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name}"
    said = ("emptyDir 'shared-dir' is not at", "a container mounts it", "kubelet_dir")
    refused(node.run("ADD", network, sandbox, CNI_ARGS=args), 106, *said)
    assert node.leftovers() == {}
    node.empty_dir(pod.uid)
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=args))
    assert server_path(node) == f"{node.short}/{pod.uid}/{PORT}"
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=args))
    assert node.leftovers() == {}


def test_host_path_stays_the_users(node: Node, sandbox: str, api: ApiServer) -> None:
    """In a hostPath no file is made, chowned or removed, whatever the network asks for; only our socket is removed."""
    directory = node.directory / "users"
    (directory / "data").mkdir(parents=True, mode=0o700)
    (directory / "data" / "file").write_text("mine")
    (directory / "net1").write_text("no socket of ours")
    before = snapshot(directory)
    pod = host_path_pod(api, directory)
    network = {**node.network(), "kubeconfig": api.kubeconfig(node.directory)}
    network["host"]["vhost"] |= {"user": str(UNUSED_ID), "group": str(UNUSED_ID), "dirmode": "0777"}
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert snapshot(directory) == before
    target = node.short / hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    assert server_path(node) == f"{target}/{PORT}"
    with listening(directory / PORT):
        succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert node.leftovers() == {}
    assert snapshot(directory) == before


def test_host_path_that_is_not_there(node: Node, sandbox: str, api: ApiServer) -> None:
    """A hostPath that a pod's spec names and that is missing is not made: 106 names it."""
    pod = host_path_pod(api, node.directory / "none")
    network = {**node.network(), "kubeconfig": api.kubeconfig(node.directory)}
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 106, f"{node.directory}/none, is not a directory")
    assert not (node.directory / "none").exists()
    assert node.leftovers() == {}


@pytest.mark.parametrize("path", ["/" + "n" * 256, "/nul\0", "/deep" * 1000])
def test_host_path_that_no_directory_has(node: Node, sandbox: str, api: ApiServer, path: str) -> None:
    """A hostPath that the kernel cannot resolve is refused like a missing one, and nothing is left."""
    pod = Pod(volume={"hostPath": {"path": path}})
    pod.create(api)
    network = node.network(kubeconfig=api.kubeconfig(node.directory))
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 106)
    assert node.leftovers() == {}


def test_shared_dir_of_the_network(node: Node, sandbox: str) -> None:
    """In `sharedDir` the container has a directory of its own, which DEL removes; other containers' and the user's files stay."""
    base = node.directory / "base"
    base.mkdir()
    (base / "file").write_text("mine")
    network = {**node.network(), "sharedDir": f"{base}/"}
    succeeded(node.run("ADD", network, sandbox))
    succeeded(node.run("ADD", network, sandbox, container(2)))
    assert tree(base) == {"file", CID12, container(2)[:12]}
    assert mode(base / CID12) == 0o750
    succeeded(node.run("DEL", network, sandbox))
    assert tree(base) == {"file", container(2)[:12]}
    succeeded(node.run("DEL", network, sandbox, container(2)))
    assert (tree(base), node.leftovers()) == ({"file"}, {})


def test_default_directory(node: Node, sandbox: str) -> None:
    """Without volume and sharedDir the default directory is used, of which a call that names no pod is not warned.

    DEL leaves it if another program has a file in it.
    """
    added = node.run("ADD", node.network(), sandbox)
    succeeded(added)
    assert b"level=warning" not in added.stderr
    assert f"the socket is in {node.shared / CID12} on the node".encode() in added.stderr
    (node.shared / CID12 / "core").write_text("of the application")
    succeeded(node.run("DEL", node.network(), sandbox))
    assert tree(node.shared / CID12) == {"core"}
    (node.shared / CID12 / "core").unlink()
    (node.shared / CID12).rmdir()
    assert node.leftovers() == {}


def test_access_of_another_user(node: Node, sandbox: str) -> None:
    """User, group, modes and SELinux label are set on our directory and on the placed socket, so that a non-root pod gets in."""
    label = "system_u:object_r:container_file_t:s0"
    network = serving(node, user=str(UNUSED_ID), group=str(UNUSED_ID + 1), dirmode="0770", socketmode="0660", selinuxLabel=label)
    succeeded(node.run("ADD", network, sandbox))
    directory = node.shared / CID12
    for path, bits in ((directory, 0o770), (directory / PORT, 0o660)):
        facts = path.lstat()
        assert (facts.st_uid, facts.st_gid, mode(path)) == (UNUSED_ID, UNUSED_ID + 1, bits)
        assert os.getxattr(path, "security.selinux") == label.encode() + b"\0"
    as_another = ["setpriv", f"--reuid={UNUSED_ID}", f"--regid={UNUSED_ID}", "--clear-groups"]
    node.shared.chmod(0o755)
    node.directory.parent.chmod(0o755)
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    subprocess.run([*as_another, "/usr/bin/python3", "-c", script, str(directory / PORT)], check=True)
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_access_in_an_empty_dir(node: Node, sandbox: str) -> None:
    """In the kubelet's emptyDir the placed socket gets the owner and mode that the network asks for; unknown names: 106."""
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    before = snapshot(volume)
    network = serving(node, group=str(UNUSED_ID), dirmode="2775", socketmode="0660")
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert ((volume / PORT).lstat().st_gid, mode(volume / PORT)) == (UNUSED_ID, 0o660)
    succeeded(node.run("DEL", network, sandbox))
    assert snapshot(volume) == before
    network["host"]["vhost"]["group"] = "no-such-group"
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 106, "no-such-group")
    assert node.leftovers() == {}


def test_group_of_the_switch_may_enter(node: Node, sandbox: str) -> None:
    """The directory of our mounts belongs to the group of OVS's run directory, and is closed to others."""
    directory = switch_of(node).dir
    before = directory.stat().st_gid
    os.chown(directory, -1, UNUSED_ID)
    try:
        succeeded(node.run("ADD", node.network(), sandbox))
    finally:
        os.chown(directory, -1, before)
    assert (node.short.stat().st_gid, mode(node.short)) == (UNUSED_ID, 0o750)
    succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}


ORDERS = list(itertools.permutations(("net1", "net2", "net10")))[::2]


@pytest.mark.parametrize("order", ORDERS, ids=",".join)
def test_several_interfaces_of_a_pod(node: Node, sandbox: str, order: Sequence[str]) -> None:
    """Interfaces of a pod share directory and mount until the last DEL, in any order; each DEL removes its own socket only."""
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    for ifname in sorted(order):
        succeeded(node.run("ADD", node.network(), sandbox, ifname=ifname, CNI_ARGS=pod.args))
    left = set(order)
    for ifname in order:
        with listening(volume / f"{CID12}-{ifname}"):
            succeeded(node.run("DEL", node.network(), sandbox, ifname=ifname))
        left.remove(ifname)
        ports = {f"{CID12}-{name}" for name in left}
        assert tree(volume) == {f"configData-{name}.json" for name in ports}
        if left:
            assert set(switch_of(node).ports("br-test")) == ports
            assert len(mounts_at(node.short / pod.uid)) == 1
    assert node.leftovers() == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_several_pods_with_one_host_path(node: Node, sandbox: str, api: ApiServer, order: Sequence[int]) -> None:
    """Pods that share a hostPath share its mount until the last DEL, in any order; the user's files stay."""
    directory = node.directory / "users"
    directory.mkdir()
    (directory / "file").write_text("mine")
    network = {**node.network(), "kubeconfig": api.kubeconfig(node.directory)}
    pods = [host_path_pod(api, directory, f"app-{number}") for number in range(3)]
    for number, pod in enumerate(pods):
        succeeded(node.run("ADD", network, sandbox, container(number), CNI_ARGS=pod.args))
    left = set(order)
    for number in order:
        assert len(set(node.leftovers()["mounts"])) == 1
        with listening(directory / f"{container(number)[:12]}-net1"):
            succeeded(node.run("DEL", network, sandbox, container(number), CNI_ARGS=pods[number].args))
        left.remove(number)
        assert sorted(switch_of(node).ports("br-test") if left else []) == sorted(f"{container(n)[:12]}-net1" for n in left)
    assert node.leftovers() == {}
    assert tree(directory) == {"file"}


def test_socket_of_a_given_name(node: Node, sandbox: str, api: ApiServer) -> None:
    """`socketfile` names the file and not the port; a second attachment cannot have the same file, not even from another pod."""
    directory = node.directory / "users"
    directory.mkdir()
    network = {**node.network(), "kubeconfig": api.kubeconfig(node.directory)}
    network["host"]["vhost"]["socketfile"] = "vhost.sock"
    first, second = host_path_pod(api, directory, "one"), host_path_pod(api, directory, "two")
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=first.args))
    assert switch_of(node).ports("br-test") == [PORT]
    assert Path(server_path(node)).name == "vhost.sock"
    before = node.leftovers()
    refused(node.run("ADD", network, sandbox, container(2), CNI_ARGS=second.args), 105, "vhost.sock is in use", CONTAINER)
    assert node.leftovers() == before
    with listening(directory / "vhost.sock"):
        succeeded(node.run("DEL", network, sandbox, CNI_ARGS=first.args))
    assert (tree(directory), node.leftovers()) == (set(), {})


@contextmanager
def memory_volume(volume: Path) -> Iterator[None]:
    """The emptyDir on a tmpfs, as the kubelet does it for `medium: Memory`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(volume)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(volume)], check=True)


@pytest.mark.parametrize("medium", ["disk", "memory"])
def test_socket_of_the_switch(node: Node, sandbox: str, medium: str) -> None:
    """In server mode OVS's socket is where the pod sees it and accepts there, on another device too; DEL removes it."""
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    with memory_volume(volume) if medium == "memory" else listening(node.directory / "unused"):
        before = node.leftovers()
        result = succeeded(node.run("ADD", serving(node), sandbox, CNI_ARGS=pod.args))
        assert switch_of(node).interface(PORT)["type"] == "dpdkvhostuser"
        assert result["interfaces"][0]["socketPath"] == f"{volume}/{PORT}"
        assert tree(volume) == {PORT, f"configData-{PORT}.json"}
        assert not (switch_of(node).dir / PORT).exists()
        assert connects(volume / PORT)
        assert len(mounts_at(volume / PORT)) == (medium == "memory")
        switch_of(node).restart_vswitchd()
        succeeded(node.run("DEL", node.network(), sandbox, container(9)))
        assert connects(volume / PORT)
        assert len(mounts_at(volume / PORT)) == (medium == "memory")
        assert not (switch_of(node).dir / PORT).exists()
        succeeded(node.run("DEL", serving(node), sandbox, CNI_ARGS=pod.args))
        assert (tree(volume), node.leftovers()) == (set(), before)


def test_socket_of_the_switch_in_a_host_path(node: Node, sandbox: str, api: ApiServer) -> None:
    """In server mode a hostPath gets the socket, with the requested owner; the directory keeps its own."""
    directory = node.directory / "users"
    directory.mkdir()
    before = snapshot(directory)
    pod = host_path_pod(api, directory)
    network = {**serving(node, group=str(UNUSED_ID), socketmode="0660"), "kubeconfig": api.kubeconfig(node.directory)}
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert connects(directory / PORT)
    assert ((directory / PORT).lstat().st_gid, mode(directory / PORT)) == (UNUSED_ID, 0o660)
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert (snapshot(directory), node.leftovers()) == (before, {})


@pytest.mark.parametrize("what", ["volume", "parent", "client socket", "server socket", "sharedDir"])
def test_links_of_the_pod_are_refused(node: Node, sandbox: str, what: str) -> None:
    """A link in the place of a pod directory, of one above it or of the socket is refused with 106; its target is not touched."""
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    target = node.directory / "target"
    target.mkdir()
    place = {"volume": volume, "parent": volume.parent, "sharedDir": node.directory / "base" / CID12}.get(what, volume / PORT)
    if place in (volume, volume.parent):
        place.rename(target / place.name)
        place.symlink_to(target / place.name)
    else:
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(target)
    network = serving(node) if what == "server socket" else {**node.network(), "sharedDir": f"{node.directory}/base"}
    before = snapshot(target)
    refused(node.run("ADD", network, sandbox, CNI_ARGS="" if what == "sharedDir" else pod.args), 106, "link")
    assert snapshot(target) == before
    place.unlink()
    assert node.leftovers() == {}


def test_host_path_behind_a_link(node: Node, sandbox: str, api: ApiServer) -> None:
    """A link above a hostPath is resolved once; when it leads elsewhere by the time of DEL, nothing there is removed."""
    real, other, link = (node.directory / name for name in ("real", "other", "link"))
    real.mkdir()
    other.mkdir()
    link.symlink_to(real)
    pod = host_path_pod(api, link)
    network = {**node.network(), "kubeconfig": api.kubeconfig(node.directory)}
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    link.unlink()
    link.symlink_to(other)
    with listening(real / PORT), listening(other / PORT):
        succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert (tree(real), tree(other), node.leftovers()) == (set(), {PORT}, {})
