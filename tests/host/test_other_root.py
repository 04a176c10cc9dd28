"""The drivers of an agent that sees the host's root elsewhere act there, and use the host's own paths.

The host is a directory with links as distributions have them (/var/run -> /run), users of its own and another /usr mounted. Every
step below has the host's paths, as records have; none of them exists in the root of this process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.host.places import UNUSED_ID, bind, bind_over, connects, descriptors, listening, mode, mounts_at, soon, tree
from userspace_cni.attachment.facts import Pod, SocketPlace, Volume
from userspace_cni.attachment.steps import (
    ConfigFile,
    DeviceInfo,
    Directory,
    Lease,
    LegacyRecord,
    PlacedSocket,
    PodMount,
    SocketFile,
)
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import (
    BadEnvironment,
    DelegateBroken,
    DelegateFailed,
    DirectoryRefused,
    InvalidConfig,
    Unavailable,
)
from userspace_cni.base.root import HostRoot
from userspace_cni.base.settings import Settings
from userspace_cni.consumers import CONSUMERS
from userspace_cni.host.files.device_info import DeviceInfoDriver, read_allocation
from userspace_cni.host.files.mounts import PodMountDriver
from userspace_cni.host.files.placement import PlacedSocketDriver
from userspace_cni.host.files.vhost_sockets import DirectoryDriver, SocketFileDriver
from userspace_cni.host.files.whole_files import ConfigFileDriver
from userspace_cni.host.netlink.netns import is_own, link_exists, namespace
from userspace_cni.host.runtimes import former_plugin as legacy
from userspace_cni.host.runtimes.ipam import Delegate, find
from userspace_cni.host.runtimes.leases import LeaseDriver

USER = "dpdk-of-this-host"
PODS = "/var/run/uc-pods"
DEVICE_INFO = "/var/run/k8s.cni.cncf.io/devinfo"
"""A prefix that leads through a link; on the host it is /run/uc-pods."""
DELEGATE = """#!/bin/sh
stdin=$(cat)
echo "$CNI_COMMAND in $PWD with $stdin" >>/calls
[ "$CNI_IFNAME" = refuse ] && { echo '{"code": 42, "msg": "no addresses"}'; exit 1; }
read -r marker </marker
echo '{"cniVersion": "1.0.0", "ips": [], "marker": "'"$marker"'", "netns": "'"$CNI_NETNS"'", "extra": "'"$EXTRA"'"}'
"""


@pytest.fixture
def host(room: Path) -> Path:
    top = room / "host"
    for name in ("run", "var", "usr", "etc", "opt", "srv/cni-1.2", "proc", "dev"):
        (top / name).mkdir(parents=True)
    for link, target in {"var/run": "/run", "bin": "usr/bin", "lib": "usr/lib", "lib64": "/usr/lib64"}.items():
        (top / link).symlink_to(target)
    (top / "opt" / "cni").symlink_to("/srv/cni-1.2")
    (top / "etc" / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nbroken\n{USER}:x:{UNUSED_ID}:7::/:/bin/sh\n")
    (top / "etc" / "group").write_text(f"root:x:0:\n{USER}:x:{UNUSED_ID + 1}:\n")
    (top / "marker").write_text("of the host\n")
    return top


@pytest.fixture
def root(host: Path) -> HostRoot:
    """The same, as the drivers get it."""
    return HostRoot(str(host))


@pytest.fixture
def pod(host: Path) -> Path:
    """A pod's directory as this process sees it; on the host it is PODS/uid."""
    path = host / "run" / "uc-pods" / "uid"
    path.mkdir(parents=True)
    return path


@pytest.fixture(autouse=True)
def _nothing_is_left_open_or_made_here() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() <= before
    assert not Path(PODS).exists()
    assert not Path("/run/uc-short").exists()


def test_directory(root: HostRoot, host: Path) -> None:
    """A directory is made below the root, given to a user that only the host knows, checked and removed."""
    driver = DirectoryDriver(root)
    step = Directory(f"{PODS}/c0ffee", PODS, create=True, own=True, user=USER, group=USER, mode=0o770)
    assert not driver.is_present(step)
    driver.apply(step, soon())
    made = host / "run" / "uc-pods" / "c0ffee"
    assert (made.stat().st_uid, made.stat().st_gid, mode(made)) == (UNUSED_ID, UNUSED_ID + 1, 0o770)
    assert driver.is_present(step)
    assert driver.check(step, soon()) == []
    os.chown(made, 0, 0)
    assert [drift.subject for drift in driver.check(step, soon())] == [f"directory {PODS}/c0ffee"] * 2
    driver.undo(step, soon())
    driver.undo(step, soon())
    assert not made.exists()


@pytest.mark.parametrize("name", ["root-of-nobody", "broken", "root:x"])
def test_unknown_names(root: HostRoot, name: str) -> None:
    """A user or group that the host's files do not list is unknown, even if this process knows it."""
    for step in (
        Directory(PODS, PODS, create=True, own=True, user=name),
        Directory(PODS, PODS, create=True, own=True, group=name),
    ):
        with pytest.raises(DirectoryRefused, match="unknown on this node"):
            DirectoryDriver(root).apply(step, soon())


def test_names_without_files(root: HostRoot, host: Path) -> None:
    """The error says that a host has no list of users; numbers need none."""
    (host / "etc" / "passwd").unlink()
    with pytest.raises(DirectoryRefused, match="reading the host's /etc/passwd: it does not exist"):
        DirectoryDriver(root).apply(Directory(PODS, PODS, create=True, own=True, user=USER), soon())
    DirectoryDriver(root).apply(Directory(PODS, PODS, create=True, own=True, user=str(UNUSED_ID)), soon())
    assert (host / "run" / "uc-pods").stat().st_uid == UNUSED_ID


def test_socket_file(root: HostRoot, pod: Path) -> None:
    """A stale socket in the host's directory is removed, and a later one with the attachment."""
    driver, step = SocketFileDriver(root), SocketFile(f"{PODS}/uid", PODS, "vhost.sock")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(pod / "vhost.sock"))
    driver.apply(step, soon())
    assert tree(pod) == set()
    with listening(pod / "vhost.sock"):
        assert driver.check(step, soon()) == []
        driver.undo(step, soon())
    assert tree(pod) == set()


def test_pod_mount(root: HostRoot, host: Path, pod: Path) -> None:
    """The mount is made in the host's short_dir, which is handed to the group of the host's OVS, and undone there."""
    (host / "run" / "ovs").mkdir()
    os.chown(host / "run" / "ovs", 0, UNUSED_ID)
    driver = PodMountDriver("/var/run/ovs", root)
    step = PodMount(f"{PODS}/uid", PODS, "/var/run/uc-short/uid")
    target = host / "run" / "uc-short" / "uid"
    driver.apply(step, soon())
    driver.apply(step, soon())
    assert [options >= {"nosymfollow", "nosuid", "nodev", "noexec"} for options in mounts_at(target)] == [True]
    assert target.parent.stat().st_gid == UNUSED_ID
    with listening(pod / "vhost.sock"):
        assert connects(target / "vhost.sock")
    assert driver.check(step, soon()) == []
    assert driver.is_present(step)
    driver.undo(step, soon())
    assert mounts_at(target) == []
    assert tree(target.parent) == set()
    assert driver.check(step, soon())[0].subject == f"mount {step.target}"


@pytest.mark.parametrize("same_device", [True, False])
def test_placed_socket(root: HostRoot, host: Path, pod: Path, shm: Path, same_device: bool) -> None:
    """OVS's socket is found at its place on the host and placed in the pod's directory, on one device and across two."""
    ovs = host / "run" / "ovs"
    ovs.mkdir()
    if not same_device:
        bind(shm, ovs)
    driver = PlacedSocketDriver(root)
    step = PlacedSocket("/var/run/ovs/c0ffee-net1", f"{PODS}/uid", PODS, "vhost.sock", user=USER, mode=0o600)
    with listening(ovs / "c0ffee-net1"):
        driver.apply(step, soon())
        assert connects(pod / "vhost.sock")
        assert tree(ovs) == set()
        assert (pod / "vhost.sock").stat().st_uid == UNUSED_ID
        assert driver.check(step, soon()) == []
        with listening(ovs / "c0ffee-net1"):
            assert driver.check(step, soon())[0].found == "a newer socket at /var/run/ovs/c0ffee-net1"
    driver.undo(step, soon())
    assert tree(pod) == set()


def test_device_info(root: HostRoot, host: Path) -> None:
    """The file is written, read and removed at its place on the host."""
    driver = DeviceInfoDriver(root)
    path = f"{DEVICE_INFO}/cni/net1.json"
    content = {"type": "vhost-user", "version": "1.1.0", "vhost-user": {"mode": "server", "path": "/var/run/x.sock"}}
    step = DeviceInfo(path, DEVICE_INFO, json.dumps(content))
    assert read_allocation(path, DEVICE_INFO, root) is None
    driver.apply(step, soon())
    assert json.loads((host / "run/k8s.cni.cncf.io/devinfo/cni/net1.json").read_text()) == content
    allocation = read_allocation(path, DEVICE_INFO, root)
    assert allocation
    assert allocation.path == "/var/run/x.sock"
    assert driver.check(step, soon()) == []
    driver.undo(step, soon())
    assert tree(host / "run/k8s.cni.cncf.io/devinfo/cni") == set()
    assert not Path(path).exists()


def test_config_file(root: HostRoot, pod: Path) -> None:
    """The application's file is written in the pod's directory of the host."""
    driver, step = ConfigFileDriver(root), ConfigFile(f"{PODS}/uid", PODS, "facts.json", "{}")
    driver.apply(step, soon())
    assert (pod / "facts.json").read_text() == "{}"
    assert driver.check(step, soon()) == []
    driver.undo(step, soon())
    assert tree(pod) == set()


@pytest.mark.parametrize("target", ["/etc", "{}/etc", "../../etc", "/proc/self/root"])
def test_hostile_links(root: HostRoot, host: Path, pod: Path, target: str) -> None:
    """No driver follows a link in the place of a pod's directory; errors have the host's path."""
    before = tree(host / "etc")
    (pod / "dir").symlink_to(target.format(host))
    path = f"{PODS}/uid/dir"
    attempts: list[Callable[[], None]] = [
        lambda: DirectoryDriver(root).apply(Directory(path, PODS, own=True, user=USER), soon()),
        lambda: SocketFileDriver(root).apply(SocketFile(path, PODS, "passwd"), soon()),
        lambda: ConfigFileDriver(root).apply(ConfigFile(path, PODS, "passwd", ""), soon()),
        lambda: PodMountDriver(root=root).apply(PodMount(path, PODS, "/run/uc-short/uid"), soon()),
        lambda: PlacedSocketDriver(root).apply(PlacedSocket("/run/x", path, PODS, "passwd"), soon()),
    ]
    for attempt in attempts:
        with pytest.raises(DirectoryRefused, match=f"{path}.*is a symbolic link"):
            attempt()
    assert tree(host / "etc") == before
    assert (host / "etc").stat().st_uid == 0


def test_trusted_link_out_of_the_root(root: HostRoot, host: Path, room: Path) -> None:
    """A link in a trusted prefix that leads out of the root stays within it."""
    (room / "ours").mkdir()
    (host / "run" / "uc-pods").symlink_to(f"../../../../../..{room}/ours")
    DirectoryDriver(root).apply(Directory(f"{PODS}/c0ffee", PODS, create=True), soon())
    assert tree(room / "ours") == set()
    assert tree(Path(f"{host}{room}/ours")) == {"c0ffee"}


def place_of(consumer: str, pod: Pod, settings: Settings, root: HostRoot, shared_dir: str = "") -> SocketPlace:
    return CONSUMERS[consumer].find_place(pod, "c0ffee", shared_dir, settings, root)


def test_place_of_an_emptydir(root: HostRoot, host: Path) -> None:
    """A pod's emptyDir is found in the host's kubelet directory, and recorded by its path on the host."""
    (host / "run/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/shared-dir").mkdir(parents=True)
    settings = Settings(kubelet_dir="/var/run/kubelet")
    place = place_of("pod", Pod(uid="u1"), settings, root)
    assert (place.path, place.trusted) == (
        "/var/run/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/shared-dir",
        "/var/run/kubelet",
    )
    DirectoryDriver(root).apply(Directory(place.path, place.trusted), soon())


def test_place_of_a_vm(root: HostRoot, host: Path) -> None:
    """A launcher pod's emptyDir `public` is searched on the host, and QEMU's directory made there; without it, none is made."""
    volumes = host / "run/kubelet/pods/u1/volumes/kubernetes.io~empty-dir"
    settings = Settings(kubelet_dir="/var/run/kubelet")
    (volumes / "shared-dir").mkdir(parents=True)
    with pytest.raises(DirectoryRefused, match="emptyDir 'public' is not at /var/run/kubelet/pods/u1/"):
        place_of("kubevirt", Pod(uid="u1"), settings, root)
    (volumes / "public").mkdir()
    place = place_of("kubevirt", Pod(uid="u1"), settings, root)
    assert place.path == "/var/run/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/public/vhostuser"
    assert (place.trusted, place.create, place.own, place.mount_name) == ("/var/run/kubelet", True, True, "")
    DirectoryDriver(root).apply(Directory(place.path, place.trusted, place.create, place.own), soon())
    assert (volumes / "public" / "vhostuser").is_dir()
    with pytest.raises(BadEnvironment, match="K8S_POD_UID"):
        place_of("kubevirt", Pod(), settings, root)


def test_place_of_a_shared_dir(root: HostRoot, host: Path) -> None:
    """Setting and `sharedDir` of a pod's network are compared after the host's links were followed, and recorded by its paths."""
    settings = Settings(shared_dirs=("/nowhere", "/var/run/shared"))
    (host / "data").mkdir()
    (host / "data" / "link").symlink_to("/var/run/shared/tenant-a")
    for path in ("/var/run/shared/tenant-a", "/run/shared//tenant-a/", "/data/link"):
        place = place_of("pod", Pod("tenant-a"), settings, root, path)
        assert (place.path, place.trusted, place.own) == ("/run/shared/tenant-a/c0ffee", "/run/shared", False)
    place = place_of("pod", Pod("tenant-a"), settings, root, "/run/shared")
    assert (place.path, place.trusted) == ("/run/shared/c0ffee", "/run/shared")
    DirectoryDriver(root).apply(Directory(f"{place.path}/x", place.trusted, create=True, parents=place.parents), soon())
    assert (host / "run/shared/c0ffee/x").is_dir()


@pytest.mark.parametrize("path", ["/", "/run", "/run/sharedx", "/data", "/run/shared/out", "/run/shared/out/x"])
def test_shared_dir_out_of_bounds(root: HostRoot, host: Path, path: str) -> None:
    """A path outside the allowed directories, after following links, is refused with 7: it, namespace and setting are named."""
    (host / "run" / "shared").mkdir()
    (host / "run" / "shared" / "out").symlink_to("/data")
    settings = Settings(shared_dirs=("/run/shared",))
    with pytest.raises(InvalidConfig) as refused:
        place_of("pod", Pod("tenant-a"), settings, root, path)
    named = (f"{path!r}", "'tenant-a'", "/run/shared", "setting shared_dirs")
    assert [text for text in named if text not in str(refused.value)] == []


def test_place_of_a_hostpath(root: HostRoot, host: Path, pod: Path) -> None:
    """A hostPath is resolved as on the host, and the result can be opened below the host's root."""
    (host / "data").symlink_to(f"{PODS}/uid")
    known = Pod("ns", "pod", "u1", (Volume("shared-dir", "hostPath", "/data"),))
    place = place_of("pod", known, Settings(kubelet_dir="/var/run/kubelet"), root)
    assert (place.path, place.trusted) == ("/run/uc-pods/uid", "/")
    ConfigFileDriver(root).apply(ConfigFile(place.path, place.trusted, "facts.json", "{}"), soon())
    assert tree(pod) == {"facts.json"}


def test_place_of_a_hostpath_that_is_absent(root: HostRoot, room: Path) -> None:
    """A hostPath that exists only in this process's root is not on the host."""
    known = Pod("ns", "pod", "u1", (Volume("shared-dir", "hostPath", str(room)),))
    with pytest.raises(DirectoryRefused, match="is not a directory"):
        place_of("pod", known, Settings(), root)


def test_namespace(root: HostRoot, host: Path) -> None:
    """CNI_NETNS is searched below the root, distinguished from our own namespace, and inspected."""
    (host / "run" / "netns").mkdir()
    file = host / "run" / "netns" / "cni-1"
    file.touch()
    script = "ip tuntap add tap0 mode tap && echo ready && exec cat"
    with subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        bind_over(Path(f"/proc/{process.pid}/ns/net"), file)
    path = "/var/run/netns/cni-1"
    assert namespace(path, root).inode == file.stat().st_ino
    assert not is_own(path, root)
    assert not is_own("/proc/self/ns/net", root)
    assert link_exists(path, "tap0", root)
    assert not link_exists(path, "tap1", root)
    for absent in ("/var/run/netns/cni-2", "/proc/self/ns/net"):
        with pytest.raises(BadEnvironment, match="it does not exist"):
            namespace(absent, root)


def test_own_namespace_below_the_root(root: HostRoot, host: Path) -> None:
    """The host's own namespace, which is also ours, is recognised by the host's path to it."""
    (host / "run" / "netns").mkdir()
    (host / "run" / "netns" / "host").touch()
    bind_over(Path("/proc/self/ns/net"), host / "run" / "netns" / "host")
    assert is_own("/var/run/netns/host", root)


def test_namespace_behind_a_circle(root: HostRoot, host: Path) -> None:
    """A circle of links is an error in CNI_NETNS, not a failure of ours."""
    (host / "run" / "netns").symlink_to("netns")
    with pytest.raises(BadEnvironment, match="circle"):
        namespace("/var/run/netns/x", root)
    assert not is_own("/var/run/netns/x", root)


@pytest.fixture
def plugin(host: Path) -> str:
    """A delegate in the host's CNI_PATH, whose interpreter is below the host's root; the CNI_PATH."""
    program = host / "srv" / "cni-1.2" / "scripted"
    program.write_text(DELEGATE)
    program.chmod(0o755)
    bind(Path("/usr"), host / "usr")
    return "/nowhere:/opt/cni"


def test_delegate(root: HostRoot, host: Path, plugin: str) -> None:
    """An IPAM plugin runs in the host's root and root directory, with the call's environment and stdin."""
    variables = {"CNI_PATH": plugin, "CNI_NETNS": "/var/run/netns/x", "CNI_IFNAME": "net1", "EXTRA": "a b"}
    delegate = Delegate("scripted", plugin.split(":"), variables, root)
    answer = delegate.add(b"the stdin", soon())
    assert (answer["marker"], answer["netns"], answer["extra"]) == ("of the host", "/var/run/netns/x", "a b")
    delegate.delete(b"the stdin", soon())
    assert (host / "calls").read_text() == "ADD in / with the stdin\nDEL in / with the stdin\n"


def test_delegate_keeps_the_lock(root: HostRoot, host: Path, plugin: str) -> None:
    """A descriptor that is to outlive us stays open in the plugin."""
    (host / "srv" / "cni-1.2" / "scripted").write_text("#!/bin/sh\necho '{\"fd\": \"'$(readlink /proc/self/fd/$EXTRA)'\"}'\n")
    bind(Path("/proc"), host / "proc")
    lock = os.open(host / "marker", os.O_RDONLY)
    try:
        answer = Delegate("scripted", plugin.split(":"), {"EXTRA": str(lock)}, root).add(b"{}", soon(), (lock,))
    finally:
        os.close(lock)
    assert answer["fd"] == "/marker"


def test_refusal_of_a_delegate(root: HostRoot, plugin: str) -> None:
    """The plugin's own error arrives unchanged."""
    variables = {"CNI_PATH": plugin, "CNI_IFNAME": "refuse"}
    with pytest.raises(DelegateFailed, match="no addresses") as refused:
        LeaseDriver(root).undo(Lease("scripted", "{}", variables, granted=True), soon())
    assert refused.value.code == 42


def test_delegate_that_the_host_cannot_run(root: HostRoot, host: Path, plugin: str) -> None:
    """A plugin whose interpreter the host lacks is broken, and the error names plugin and cause, even if we have the same."""
    (host / "srv" / "cni-1.2" / "scripted").write_text(f"#!{host}/usr/bin/sh\n")
    with pytest.raises(DelegateBroken, match="exit status 127") as broken:
        Delegate("scripted", plugin.split(":"), {}, root).add(b"{}", soon())
    assert "/opt/cni/scripted" in broken.value.details


def test_delegate_at_the_deadline(root: HostRoot, host: Path, plugin: str) -> None:
    """A plugin that hangs in the host's root is killed like any other."""
    (host / "srv" / "cni-1.2" / "scripted").write_text("#!/bin/sh\necho $$ >/pid\nexec sleep 1000\n")
    for seconds in (1, 4, 16):  # on a busy machine it may not have begun after the shortest
        with pytest.raises(Unavailable, match="killed after"):
            Delegate("scripted", plugin.split(":"), {"PATH": "/usr/bin"}, root).add(b"{}", Deadline.after(seconds))
        if (host / "pid").exists():
            break
    assert not Path(f"/proc/{(host / 'pid').read_text().strip()}").exists()


def test_delegate_of_this_root(root: HostRoot, room: Path, plugin: str) -> None:
    """A plugin that exists only in this process's root is not found, and the error has the host's paths."""
    ours = room / "bin"
    ours.mkdir()
    (ours / "local").write_text("#!/bin/sh\n")
    (ours / "local").chmod(0o755)
    with pytest.raises(InvalidConfig, match="no executable of this name"):
        find("local", [str(ours)], root)
    assert find("scripted", plugin.split(":"), root) == "/opt/cni/scripted"


def test_records_of_the_former_plugin(root: HostRoot, host: Path, pod: Path) -> None:
    """Its records are found and read below the root, and their sockets and mounts are removed there."""
    data = host / "run" / "usrspcni"
    data.mkdir()
    (data / "local-c0ffee-net1.json").write_text(json.dumps({"vhostname": "c0ffee-net1"}))
    (data / "local-other-net1.json").write_text(json.dumps({"vhostname": "other-net1"}))
    found = legacy.find_record("/var/run/usrspcni", "c0ffee", "net1", root)
    assert found == LegacyRecord("/var/run/usrspcni/local-c0ffee-net1.json")
    assert legacy.find_record("/var/run/usrspcni", "c0ffee", "net2", root) is None
    assert legacy.read_port_name(found.path, root) == "c0ffee-net1"
    assert legacy.other_port_names(found.path, root) == ["other-net1"]
    (pod / "c0ffee").mkdir()
    with listening(pod / "c0ffee" / "c0ffee-net1"):
        legacy.remove_socket(f"{PODS}/uid/c0ffee/c0ffee-net1", "c0ffee", "/var/run/uc-short", [], soon(), root)
    assert tree(pod) == set()
    legacy.remove_record(found.path, root)
    legacy.remove_record(found.path, root)
    assert tree(data) == {"local-other-net1.json"}
    legacy.remove_record("/var/run/usrspcni/local-other-net1.json", root)
    assert not data.exists()


def test_short_mount_of_the_former_plugin(root: HostRoot, host: Path, pod: Path) -> None:
    """A mount that the former plugin made in the host's short_dir is removed."""
    target = host / "run" / "uc-short" / "uid"
    bind(pod, target)
    legacy.remove_socket("/var/run/uc-short/uid/c0ffee-net1", "c0ffee", "/var/run/uc-short", [], soon(), root)
    assert mounts_at(target) == []
    assert tree(target.parent) == set()
