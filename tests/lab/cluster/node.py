"""The node: kubelet, containerd and OVS-DPDK in a machine of their own, on a disk that outlives its boots.

`power_on` and `start_kubelet` are a power-on and `power_off` is a power cut; the disk keeps its content between them.
containerd's part of the disk is memory that outlives boots, too, because unpacking images and removing their files is slow on a
busy disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.lab.cluster.control import NODE_NAME, Control
from tests.lab.cluster.machine import Daemon, Machine
from tests.lab.cluster.shape import PODS
from tests.lab.lanes.callers import callers
from tests.lab.lanes.table import lane
from tests.lab.node.below import files_below
from tests.lab.node.node import PLUGINS
from tests.lab.runtimes.containerd_host import remove_cgroup
from tests.lab.runtimes.cri import Cri, CriError
from tests.lab.runtimes.images import IMAGE
from tests.lab.switch.switch import Switch, wait_until

ADDRESS, GATEWAY = "172.30.0.2", "172.30.0.1"
NODE_LINK = "node0"
"""The end of the node's link in the control plane."""
SHORT_DIR = "/var/lib/vhost_sockets"
CONTAINERD = "/run/containerd/containerd.sock"
_NETWORKS = "/etc/cni/net.d"
_BOOT = Path(__file__).with_name("boot-node")
_CONTAINERD = f"""\
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  disable_apparmor = true
  disable_tcp_service = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    max_conf_num = 0
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "/etc/containerd/base.json"
"""
_RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SAME_BOOT = {"path": "/bin/mount", "args": ["mount", "--bind", "/run/boot-id", BOOT_ID.lstrip("/")]}
"""Starts runc outside of the root of each container, which otherwise is the working directory then."""
_KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failSwapOn": False,
    "oomScoreAdj": 0,
    "nodeStatusUpdateFrequency": "1s",
    "kubeAPIQPS": 100,
    "kubeAPIBurst": 100,
    "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
    "imageGCHighThresholdPercent": 100,
}
_LOOK_S = 0.5
_NO_CLOUD = {"AWS_EC2_METADATA_DISABLED": "true"}
"""Without it each start of the kubelet waits six seconds for a cloud provider's credentials for images."""


class ClusterNode:
    """The node of the cluster `control`; everything that it writes is below the new `top`, and its kubelet is in `programs`.

    `switch` is its OVS-DPDK, beside which `pages` hugepages are left for pods. `binds` are mounted in it, read-only, at their own
    paths.
    """

    machine: Machine
    switch: Switch
    containerd: Daemon
    kubelet: Daemon

    def __init__(self, top: Path, control: Control, programs: Path, pages: int, binds: Sequence[Path] = ()) -> None:
        self.top = top
        self._control = control
        self._shape = control.shape
        self._programs = programs
        self._binds = binds
        self._ovs = ovs_directory(top)
        self._environment = {"PRIVATE_SWITCH_APP_PAGES": str(pages), "PRIVATE_SWITCH_NETNS": "/proc/self/ns/net"}
        self._ovs.mkdir(parents=True)
        hold_images(top)
        self._ending = ExitStack()

    def power_on(self, images: Sequence[Path] = ()) -> None:
        """Start all but its kubelet; switch and containerd answer, and containerd has `images` beside those on the disk."""
        binds = [str(path) for path in (*self._binds, self._programs)]
        self.machine = self._ending.enter_context(Machine(str(_BOOT), str(self.top), NODE_NAME, *binds))
        self._plug_in()
        self._install_runtime()
        if not list(self.machine.path(_NETWORKS).iterdir()):
            self._write_networks()
        self._link_plugins()
        first = not (self._ovs / "conf.db").exists()
        self.switch = Switch(self._ovs, environment=self._environment, prefix=self.machine.command())
        if first:
            self.switch.start()
        else:
            for path in self._ovs.iterdir():  # the node's /run/openvswitch; the database is there only in this lab
                if path.is_socket() or path.suffix == ".pid":
                    path.unlink()
            self.switch.restart_ovsdb()
            self.switch.restart_vswitchd()
        self.start_containerd()
        for archive in images:
            self.machine.run("ctr", "--namespace=k8s.io", "images", "import", str(archive))

    def power_off(self) -> None:
        """Cut its power: every process ends at once and memory is lost; hugepages stay reserved."""
        self._ending.close()
        remove_cgroup(f"/{self.top.name}")

    def end(self) -> None:
        """Cut its power for good: hugepages are returned."""
        self._ending.close()
        give_back(self.top)

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        config = self.machine.path("/etc/containerd/config.toml")
        config.parent.mkdir(exist_ok=True)
        config.write_text(_CONTAINERD)
        spec = json.loads(self.machine.run("ctr", "oci", "spec"))
        spec["hooks"] = {"createContainer": [_SAME_BOOT]}
        config.with_name("base.json").write_text(json.dumps(spec))
        self.containerd = self.machine.start(self.top / "containerd.log", "containerd")
        with self.cri() as cri:
            cri.await_ready()

    def start_kubelet(self) -> None:
        config = self.top / "kubelet.json"
        config.write_text(json.dumps({**_KUBELET, **self._shape.kubelet}))
        self.kubelet = self.machine.start(
            self.top / "kubelet.log",
            str(self._programs / "kubelet"),
            f"--config={config}",
            f"--kubeconfig={self._control.kubeconfig('kubelet')}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={ADDRESS}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{CONTAINERD}",
            *self._shape.more("kubelet"),
            environ=os.environ | _NO_CLOUD,
        )

    def cri(self) -> Cri:
        return Cri(self.machine.path(CONTAINERD), "/")

    @contextmanager
    def pods_removed(self) -> Iterator[None]:
        """Within the block, remove the containers of pods as soon as their sandboxes have ended; start no pod in it.

        A kubelet of 1.20 reports a pod's end when its containers are removed. If it learns of the containers' and the sandbox's
        end at the same time, it often does that a minute later.
        """
        over = threading.Event()
        thread = threading.Thread(target=self._remove_ended, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _remove_ended(self, over: threading.Event) -> None:
        with self.cri() as cri:
            while not over.wait(_LOOK_S):
                for sandbox in cri.ended():
                    with suppress(CriError):  # its network is being removed; it is asked again
                        cri.remove(sandbox)

    def join(self, *lists: Mapping[str, Any]) -> None:
        """Let each pod that is made from now on join these networks beside the default one, as eth1, eth2 and so on."""
        self._write_networks(*lists)
        wanted = [each["name"] for each in (self._shape.network, *lists)]
        with self.cri() as cri:
            wait_until(lambda: cri.networks() == wanted, what=f"containerd to read the networks {wanted}")

    def _write_networks(self, *lists: Mapping[str, Any]) -> None:
        directory = self.machine.path(_NETWORKS)
        for path in directory.iterdir():
            path.unlink()
        for number, each in enumerate((self._shape.network, *lists)):
            (directory / f"{number:02}-{each['name']}.conflist").write_text(json.dumps(each))

    def leftovers(self) -> dict[str, list[str]]:
        """What attachments of pods left: ports, records, mounts, sockets, leases and namespaces. Empty when clean."""
        path = self.machine.path
        mounts = path("/proc/1/mountinfo").read_text().splitlines()
        found = {
            "ports": self.ports(),
            "records": _files(path("/var/lib/cni/userspace/attachments")),
            "spool": _files(path("/var/lib/cni/userspace/spool")),
            "mounts": [line for line in mounts if SHORT_DIR in line],
            "sockets": _files(path(SHORT_DIR)),
            "leases": self.leases(),
            "namespaces": _files(path("/run/netns")),
        }
        return {kind: items for kind, items in found.items() if items}

    def ports(self) -> list[str]:
        """The ports of all bridges, but for the bridges' own; one look at a switch whose bridges come and go with their ports."""
        return [row["name"] for row in self.switch.rows("Interface") if row["type"] != "internal"]

    def leases(self, name: str = "") -> list[str]:
        """host-local's files of addresses: of the network `name`, or of all."""
        return [each for each in _files(self.machine.path(f"/var/lib/cni/networks/{name}")) if Path(each).name[0].isdigit()]

    def drop_forgotten(self) -> None:
        """Remove the default network's leases of sandboxes that the runtime does not know.

        A containerd since 1.7 that is killed during an ADD sends no DEL for that sandbox, so that what other plugins made stays.
        """
        with self.cri() as cri:
            known = cri.sandboxes()
        for lease in map(Path, self.leases(self._shape.network["name"])):
            if lease.read_text().split()[0] not in known:
                lease.unlink()

    def _install_runtime(self) -> None:
        """Replace this machine's containerd by Debian 13's, the last one that a kubelet of 1.20 can speak to.

        It is done by links, because runc has to be started by its own path.
        """
        runtime = callers(lane("trixie"))
        for name in _RUNTIME:
            place = self.machine.run("sh", "-c", 'command -v "$0"', name).strip()
            self.machine.run("ln", "--symbolic", "--force", str(runtime / name), place)

    def _link_plugins(self) -> None:
        directory = self.machine.path("/opt/cni/bin")
        for plugin in Path(PLUGINS).iterdir():
            with suppress(FileExistsError):
                (directory / plugin.name).symlink_to(plugin)

    def _plug_in(self) -> None:
        """Connect the node to the control plane by a veth, which ends with either machine."""
        here, there = self.machine, self._control.machine
        there.run("sh", "-c", f"ip link delete {NODE_LINK} 2>&- || true")  # the former boot's link, which the kernel removes late
        ends = ["eth0", "netns", str(here.pid), "type", "veth", "peer", "name", NODE_LINK, "netns", str(there.pid)]
        subprocess.run(["ip", "link", "add", *ends], check=True)
        there.run(
            "sh",
            "-ec",
            f"ip address add {GATEWAY}/24 dev {NODE_LINK}; ip link set {NODE_LINK} up; ip route add {PODS} via {ADDRESS}",
        )
        here.run("sh", "-ec", f"ip address add {ADDRESS}/24 dev eth0; ip link set eth0 up; ip route add default via {GATEWAY}")
        if second := self._shape.second:
            add = "ip address add {}/64 dev {} nodad; ip -6 route add {} via {}"
            there.run("sh", "-ec", add.format(second.gateway, NODE_LINK, second.pods, second.node))
            here.run("sh", "-ec", add.format(second.node, "eth0", "default", second.gateway))


def give_back(top: Path) -> None:
    """Return what a node below `top`, whose processes have ended, took of this machine: cgroups, memory, hugepages."""
    remove_cgroup(f"/{top.name}")
    if images_directory(top).is_mount():
        subprocess.run(["umount", "--lazy", str(images_directory(top))], check=True)
    if (ovs_directory(top) / ".private-switch").exists():
        Switch(ovs_directory(top)).stop()


def hold_images(top: Path) -> None:
    """Mount memory for what the node's containerd below `top` keeps; `give_back` removes it."""
    images_directory(top).mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "images", str(images_directory(top))], check=True)


def images_directory(top: Path) -> Path:
    return top / "disk" / "var" / "containerd"


def ovs_directory(top: Path) -> Path:
    return top / "disk" / "ovs"


def _files(directory: Path) -> list[str]:
    return [str(path) for path in files_below(directory)]
