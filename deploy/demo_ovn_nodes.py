"""The OVN demo's cluster: two nodes with a wire between them, OVN's daemons, and an API server.

A node is a network namespace in which its own OVS-DPDK runs. The nodes' NICs are the ends of a veth. The API server is the one of
this project's tests, within this process: it stores objects and serves watches as the real one does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from deploy.demo_node import MAPPED_DIR, WAIT_S, Demo, Pod, check, execute, raise_if_stopped, run, wait_for
from tests.lab.kube.apiserver import ApiServer
from tests.lab.kube.cluster_objects import node
from tests.lab.ovn.central import SCHEMAS

CLUSTER_SUBNET = "10.244.0.0/16"
INTEGRATION = "br-int"
NIC = "nic0"
NAMESPACE = "demo"
GENEVE = 58
"""Bytes that Geneve takes of a frame over IPv4."""
MTU = 1500 - GENEVE
_DATABASES = ("nb", "sb")


class OvnNode(Demo):
    """A node, whose paths are all below `directory`; `number` gives its name and its addresses."""

    def __init__(self, cluster: OvnDemo, number: int) -> None:
        super().__init__(cluster.directory / f"n{number}")
        self.directory.mkdir()
        self.settings.touch()
        self.name = f"n{number}"
        self.tunnel_address = f"192.0.2.1{number}"
        self.subnet = f"10.244.{number}.0/24"
        self.link = f"k8s-{self.name}"
        self.netns = str(self.directory / "ovs" / "netns")
        self._cluster = cluster

    @property
    def settings(self) -> Path:
        """The node's settings file, which its administrator has made, and commands append to."""
        return self.directory / "config.toml"

    @property
    def environ(self) -> dict[str, str]:
        """As of any node, with the places of its settings file, of ovn-controller, and of the API server's address."""
        return {
            **super().environ,
            "USERSPACE_CNI_CONFIG": str(self.settings),
            "USERSPACE_CNI_OVN_RUNDIR": str(self.directory / "ovn"),
            "USERSPACE_CNI_KUBECONFIG": str(self._cluster.kubeconfig),
            "USERSPACE_CNI_NODE_NAME": self.name,
        }

    def logical(self, iftype: str) -> dict[str, Any]:
        """The network of logical ports, as a NetworkAttachmentDefinition would hold it."""
        vhost = {"vhost": {"mode": "client"}} if iftype == "vhostuser" else {}
        host = {"engine": "ovs-dpdk", "iftype": iftype, "mtu": MTU, **vhost}
        ovn = {"ovn": {"switch": "node"}, "addresses": "annotations"}
        return {"cniVersion": "1.1.0", "name": "tenants", "type": "userspace", "host": host, **ovn}

    def inside(self, *argv: str) -> str:
        """Stdout of a command that is run in the node's own network."""
        return run("nsenter", f"--net={self.netns}", *argv)

    def port_of(self, pod: Pod) -> str:
        """The name of the pod's port: of a kernel link it is that of the host end."""
        return self.vsctl("--bare", "--columns=name", "find", "Interface", f"external_ids:container-id={pod.container_id}")

    def openflow(self, *args: str) -> str:
        """What ovs-vswitchd answers at its control socket."""
        return run("env", f"OVS_RUNDIR={self.directory}/ovs", "ovs-appctl", "--timeout=20", *args)


class OvnDemo(Demo):
    """The cluster: its nodes, and what it has once."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.kubeconfig = directory / "kubeconfig"
        self.nodes = [OvnNode(self, number) for number in (1, 2)]

    def remote(self, database: str) -> str:
        """Where a database is, "nb" or "sb"."""
        return f"unix:{self.directory}/{database}.sock"

    def nbctl(self, *args: str) -> str:
        return run("ovn-nbctl", f"--db={self.remote('nb')}", "--timeout=20", *args).strip()

    def sbctl(self, *args: str) -> str:
        return run("ovn-sbctl", f"--db={self.remote('sb')}", "--timeout=20", *args).strip()

    @property
    def watcher(self) -> dict[str, str]:
        """The settings of `ovn watch`."""
        return {"USERSPACE_CNI_OVN_NB": self.remote("nb"), "USERSPACE_CNI_KUBECONFIG": str(self.kubeconfig)}


@contextmanager
def daemon(demo: Demo, name: str, *argv: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs during the block; its output is in a log of the demo's."""
    raise_if_stopped()
    with (demo.directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            argv, env=os.environ | environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def databases(demo: OvnDemo) -> Iterator[None]:
    """OVN's two databases, each by a server of its own, and ovn-northd: what Debian's ovn-central starts."""
    here = demo.directory
    for each in _DATABASES:
        run("ovsdb-tool", "create", f"{here}/{each}.db", str(SCHEMAS / f"ovn-{each}.ovsschema"))
    quiet = ("-vconsole:warn", "-vsyslog:off")
    with (
        daemon(demo, "nb", "ovsdb-server", *quiet, f"--remote=p{demo.remote('nb')}", f"--unixctl={here}/nb.ctl", f"{here}/nb.db"),
        daemon(demo, "sb", "ovsdb-server", *quiet, f"--remote=p{demo.remote('sb')}", f"--unixctl={here}/sb.ctl", f"{here}/sb.db"),
    ):
        wait_for(lambda: all((here / f"{each}.sock").exists() for each in _DATABASES), "OVN's databases")
        remotes = (f"--ovnnb-db={demo.remote('nb')}", f"--ovnsb-db={demo.remote('sb')}")
        with daemon(demo, "northd", "ovn-northd", *quiet, *remotes, f"--unixctl={here}/northd.ctl"):
            demo.nbctl("--wait=sb", "sync")
            yield


def controller(node: OvnNode) -> AbstractContextManager[object]:
    """ovn-controller of the node: what Debian's ovn-host starts. It does nothing until the node is a chassis."""
    directory = node.directory / "ovn"
    directory.mkdir()
    places = {"OVS_RUNDIR": f"{node.directory}/ovs", "OVN_RUNDIR": str(directory)}
    argv = ("ovn-controller", "-vconsole:warn", "-vsyslog:off", f"--pidfile={directory}/ovn-controller.pid")
    return daemon(node, "ovn-controller", *argv, f"unix:{node.directory}/ovs/db.sock", **places)


def wire(nodes: list[OvnNode]) -> None:
    """Make a veth whose ends are the NICs of the two nodes, each with its node's address. It goes with their namespaces."""
    one, other = nodes
    one.inside("ip", "link", "add", NIC, "type", "veth", "peer", "name", NIC, "netns", other.netns)
    for each in nodes:
        each.inside("ip", "address", "add", f"{each.tunnel_address}/24", "dev", NIC)
        each.inside("ip", "link", "set", NIC, "up")


@contextmanager
def api_server(demo: OvnDemo) -> Iterator[ApiServer]:
    """The API server, which knows the nodes."""
    with ApiServer() as api:
        api.kubeconfig(demo.directory)
        for each in demo.nodes:
            api.add(node(each.name))
        yield api


def schedule(api: ApiServer, pod: Pod, node: OvnNode) -> None:
    """Create the pod, as if the scheduler had given it to the node."""
    volume = {"name": "shared-dir", "emptyDir": {}}
    mount = {"name": "shared-dir", "mountPath": MAPPED_DIR}
    api.add_pod(
        {
            "metadata": {"name": pod.name, "namespace": NAMESPACE, "uid": pod.uid},
            "spec": {
                "nodeName": node.name,
                "volumes": [volume],
                "containers": [{"name": "app", "image": "app", "volumeMounts": [mount]}],
            },
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        }
    )


def pings(netns: str, address: str, count: int = 3) -> str:
    """What ping counts of so many echo requests, when all were answered. Raises DemoFailed."""
    done = execute(["nsenter", f"--net={netns}", "ping", "-n", "-q", "-c", str(count), "-i", "0.2", "-W", "5", address])
    check(f"{count} received" in done.stdout, f"ping {address}: {done.stdout}{done.stderr}")
    return "\n".join(done.stdout.splitlines()[-2:])


def answers(netns: str, address: str) -> bool:
    """Whether an echo comes back."""
    return execute(["nsenter", f"--net={netns}", "ping", "-n", "-c", "1", "-W", "1", address]).returncode == 0
