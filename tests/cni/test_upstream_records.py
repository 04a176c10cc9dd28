"""Attachments that the former plugin of the same type left on a node are deleted from its own records."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cni.spec import away, succeeded, switch_of
from tests.host import places
from tests.host.places import mounts_at, tree
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node

CID12 = CONTAINER[:12]


def leave_record(node: Node, ifname: str = "net1", text: str = "") -> Path:
    """Write the record as the Go plugin does."""
    path = node.directory / "legacy" / f"local-{CID12}-{ifname}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text or json.dumps({"vhostname": f"{CID12}-{ifname}", "vhostmac": "", "ifmac": "02:00:00:00:00:01"}))
    return path


def leave_port(node: Node, directory: Path, ifname: str = "net1", kind: str = "dpdkvhostuserclient") -> None:
    """Make the port as the Go plugin does with ovs-vsctl, and the socket of an application that has ended."""
    switch, port = switch_of(node), f"{CID12}-{ifname}"
    switch.vsctl("--may-exist", "add-br", "br-test", "--", "set", "bridge", "br-test", "datapath_type=netdev")
    options = [f"options:vhost-server-path={directory}/{port}"] if kind == "dpdkvhostuserclient" else []
    opens = [] if kind == "dpdkvhostuserclient" else ["--no-wait"]  # an internal port cannot have so long a name
    switch.vsctl(*opens, "add-port", "br-test", port, "--", "set", "Interface", port, f"type={kind}", *options)
    if kind == "dpdkvhostuserclient":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(directory / port))


def leave_short_mount(node: Node) -> tuple[Path, Path]:
    """Make an emptyDir and the Go plugin's bind mount of it, without any flags."""
    pod = Pod()
    volume, target = node.empty_dir(pod.uid), node.short / pod.uid
    target.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(volume), str(target)], check=True)
    return volume, target


def clear(node: Node) -> None:
    """Remove the bridge as an administrator: it has no mark of ours, so it stays."""
    assert switch_of(node).ports("br-test") == []
    switch_of(node).vsctl("del-br", "br-test")
    assert node.leftovers() == {}
    assert not (node.directory / "legacy").exists()


def test_interfaces_behind_a_short_mount(node: Node, sandbox: str) -> None:
    """Each DEL removes port, socket and record, the last one also the mount; a second DEL finds nothing and succeeds."""
    volume, target = leave_short_mount(node)
    for ifname in ("net1", "net2"):
        leave_port(node, target, ifname)
        leave_record(node, ifname)
    succeeded(node.run("DEL", node.network("0.3.1"), sandbox))
    assert switch_of(node).ports("br-test") == [f"{CID12}-net2"]
    assert tree(volume) == {f"{CID12}-net2"}
    assert len(mounts_at(target)) == 1
    for _ in range(2):
        succeeded(node.run("DEL", node.network("0.3.1"), "", ifname="net2"))
    assert (tree(volume), node.short.exists()) == (set(), True)
    clear(node)


def test_directory_of_the_container(node: Node, sandbox: str) -> None:
    """The directory that was made for the container is removed when it is empty; the user's sharedDir above it stays."""
    base = node.directory / "base"
    (base / CID12).mkdir(parents=True)
    leave_port(node, base / CID12)
    leave_record(node)
    succeeded(node.run("DEL", {**node.network("0.3.1"), "sharedDir": str(base)}, sandbox))
    assert tree(base) == set()
    clear(node)


def test_host_path(node: Node, sandbox: str) -> None:
    """In a hostPath only the socket of exactly that name is removed, where the Go plugin removed by pattern."""
    directory = node.directory / "users"
    directory.mkdir()
    (directory / f"{CID12}-net10").write_text("another one's")
    leave_port(node, directory)
    leave_record(node)
    succeeded(node.run("DEL", node.network("0.3.1"), sandbox))
    assert tree(directory) == {f"{CID12}-net10"}
    (directory / f"{CID12}-net10").unlink()
    clear(node)


def test_port_that_listens(node: Node, sandbox: str) -> None:
    """A port of type dpdkvhostuser is removed, too."""
    leave_port(node, node.directory, kind="dpdkvhostuser")
    leave_record(node)
    succeeded(node.run("DEL", node.network("0.3.1"), sandbox))
    clear(node)


def test_port_that_is_not_a_vhost_user_port(node: Node, sandbox: str) -> None:
    """A record cannot make us delete a port of another type: the port stays, the record is removed."""
    leave_port(node, node.directory, kind="internal")
    leave_record(node)
    succeeded(node.run("DEL", node.network("0.3.1"), sandbox))
    assert switch_of(node).ports("br-test") == [f"{CID12}-net1"]
    switch_of(node).vsctl("del-port", f"{CID12}-net1")
    clear(node)


@pytest.mark.parametrize("text", ["{", "[]", '{"vhostname": 1}', '{"vhostname": "../x"}', '{"swIfIndex": 3, "memifSocketId": 1}'])
def test_record_that_names_no_port(node: Node, sandbox: str, text: str) -> None:
    """A torn record, and one of the VPP engine, are removed, with a line on stderr if it cannot be read; DEL succeeds."""
    record = leave_record(node, text=text)
    succeeded(node.run("DEL", node.network("0.3.1"), sandbox))
    assert not record.exists()
    assert node.leftovers() == {}


def test_while_the_switch_is_away(node: Node, sandbox: str) -> None:
    """Without OVSDB, DEL succeeds and is recorded; a later call of another container removes port and record."""
    volume, target = leave_short_mount(node)
    leave_port(node, target)
    record = leave_record(node)
    succeeded(node.run("DEL", node.network("0.3.1"), sandbox, **away(node)))
    assert record.exists()
    for _ in range(3):
        succeeded(node.run("DEL", node.network("0.3.1"), sandbox, container="d" * 64))
    assert tree(volume) == set()
    clear(node)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_upgraded_node_takes_the_mount_over(node: Node, sandbox: str, first: str) -> None:
    """When a pod of the Go plugin gets a new interface, its mount gets our flags, and is removed when both are gone."""
    volume, target = leave_short_mount(node)
    leave_port(node, target)
    leave_record(node)
    args = f"IgnoreUnknown=1;K8S_POD_UID={target.name}"
    succeeded(node.run("ADD", node.network(), sandbox, ifname="net2", CNI_ARGS=args))
    assert "nosymfollow" in mounts_at(target)[0]
    order = ("net2", "net1") if first == "ours" else ("net1", "net2")
    with places.listening(target / f"{CID12}-net2"):
        succeeded(node.run("DEL", node.network(), sandbox, ifname=order[0]))
        assert len(mounts_at(target)) == 1
        succeeded(node.run("DEL", node.network(), sandbox, ifname=order[1]))
    assert tree(volume) == set()
    clear(node)
