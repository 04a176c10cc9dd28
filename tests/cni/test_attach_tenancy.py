"""What a namespace's network may do on the node: `sharedDir` and the administrator's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cni.spec import records, refused, succeeded, switch_of
from tests.cni.test_attach_places import snapshot
from tests.host.places import UNUSED_ID, mode, tree
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node

CID12 = CONTAINER[:12]
OTHER = f"{2:012x}" + "d" * 52
ENTRIES = pytest.mark.parametrize("node", ["process", "agent"], indirect=True)


def opened(node: Node, shared_dir: Path | str, **vhost: Any) -> dict[str, Any]:
    """A network that asks for a directory of another user's, open to all users."""
    network = node.network(sharedDir=str(shared_dir))
    network["host"]["vhost"] |= {"user": str(UNUSED_ID), "dirmode": "0777", **vhost}
    return network


@ENTRIES
def test_shared_dir_of_a_pod_is_the_administrators(node: Node, sandbox: str) -> None:
    """A pod's network that names a directory outside of the allowed ones is 7,
    which names the setting, and nothing on the node changes.
    """
    base = node.directory / "etc"
    base.mkdir()
    before = snapshot(base)
    error = refused(node.run("ADD", opened(node, base), sandbox, CNI_ARGS=Pod().args), 7, str(base), "shared_dirs", "'default'")
    assert "sharedDir" in error["msg"]
    assert snapshot(base) == before
    assert node.leftovers() == {}


def test_shared_dir_without_a_pod_is_anywhere(node: Node, sandbox: str) -> None:
    """Without a pod the configuration is the administrator's own: it may name any directory and any access."""
    base = node.directory / "own" / "base"
    succeeded(node.run("ADD", opened(node, base), sandbox))
    assert ((base / CID12).stat().st_uid, mode(base / CID12)) == (UNUSED_ID, 0o777)
    succeeded(node.run("CHECK", {**opened(node, base), "prevResult": prev_result(node)}, sandbox))
    succeeded(node.run("DEL", opened(node, base), sandbox))
    assert (tree(base), node.leftovers()) == (set(), {})


def prev_result(node: Node, netns: str = "") -> dict[str, Any]:
    [record] = records(node)
    result: dict[str, Any] = record["result"]
    return result


def test_shared_dir_levels_below_an_allowed_one(node: Node, sandbox: str) -> None:
    """Below an allowed directory a pod's network may name any: missing levels are made, and other users cannot list them."""
    network = opened(node, node.shared / "a" / "b")
    pod = Pod()
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    directory = node.shared / "a" / "b" / CID12
    assert (directory.stat().st_uid, mode(directory)) == (UNUSED_ID, 0o777)
    for parent in (node.shared, node.shared / "a", node.shared / "a" / "b"):
        assert (parent.stat().st_uid, mode(parent)) == (0, 0o711)
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert tree(node.shared / "a" / "b") == set()


def test_shared_dir_through_links(node: Node, sandbox: str) -> None:
    """Links in setting and `sharedDir` are followed before the paths are compared: a link out is refused, a link in works."""
    real, outside = node.directory / "real", node.directory / "outside"
    for path in (real, outside):
        path.mkdir()
    (node.directory / "allowed").symlink_to(real)
    (real / "out").symlink_to(outside)
    (node.directory / "in").symlink_to(real / "below")
    node.settings["USERSPACE_CNI_SHARED_DIRS"] = f"{node.directory}/nowhere:{node.directory}/allowed"
    pod = Pod()
    for out in (node.directory / "allowed" / "out", real / "out" / "x", outside, f"{real}x"):
        refused(node.run("ADD", opened(node, out), sandbox, CNI_ARGS=pod.args), 7, "shared_dirs")
    assert (tree(outside), tree(real)) == (set(), {"out"})
    for within in (node.directory / "in", node.directory / "allowed", real / "below"):
        succeeded(node.run("ADD", opened(node, within), sandbox, CNI_ARGS=pod.args))
        assert ((within / CID12).stat().st_uid, mode(within / CID12)) == (UNUSED_ID, 0o777)
        succeeded(node.run("DEL", opened(node, within), sandbox, CNI_ARGS=pod.args))
    assert (tree(real), tree(real / "below"), node.leftovers()) == ({"out", "below"}, set(), {})


@pytest.mark.parametrize("args", ["", "pod"])
def test_directory_that_another_program_made(node: Node, sandbox: str, args: str) -> None:
    """A directory that was there before the first attachment keeps owner and mode, in ADD, CHECK and DEL."""
    directory = node.shared / CID12
    directory.mkdir(parents=True)
    directory.chmod(0o700)
    network = opened(node, node.shared)
    pod_args = {"CNI_ARGS": Pod().args} if args else {}
    before = snapshot(directory)
    result = succeeded(node.run("ADD", network, sandbox, **pod_args))
    assert snapshot(directory)[str(directory)] == before[str(directory)]
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox, **pod_args))
    succeeded(node.run("DEL", network, sandbox, **pod_args))
    assert snapshot(directory) == before


def test_directory_of_another_attachment(node: Node, sandbox: str) -> None:
    """A directory that one attachment made is used by the next one, too, and gets the access that this one asks for."""
    pod = Pod()
    succeeded(node.run("ADD", node.network(sharedDir=str(node.shared)), sandbox, CNI_ARGS=pod.args))
    assert mode(node.shared / CID12) == 0o750
    network = opened(node, node.shared)
    succeeded(node.run("ADD", network, sandbox, ifname="net2", CNI_ARGS=pod.args))
    assert ((node.shared / CID12).stat().st_uid, mode(node.shared / CID12)) == (UNUSED_ID, 0o777)
    for ifname in ("net1", "net2"):
        succeeded(node.run("DEL", network, sandbox, ifname=ifname, CNI_ARGS=pod.args))
    assert node.leftovers().get("shared", []) == []


@ENTRIES
def test_volume_of_a_pod_is_the_kubelets(node: Node, sandbox: str) -> None:
    """The kubelet's emptyDir keeps owner, group, mode and label, whatever the network asks for and wherever its sharedDir is."""
    pod = Pod()
    volume = node.empty_dir(pod.uid)
    before = snapshot(volume)
    network = opened(node, "/etc", group=str(UNUSED_ID), selinuxLabel="system_u:object_r:container_file_t:s0")
    result = succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    assert snapshot(volume)[str(volume)] == before[str(volume)]
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_ARGS=pod.args))
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert (snapshot(volume), node.leftovers()) == (before, {})


def rules(node: Node, text: str) -> None:
    """The node's settings file has these rules."""
    (node.directory / "config.toml").write_text(text)


def on(node: Node, bridge: str, **keys: Any) -> dict[str, Any]:
    network = node.network()
    network["host"]["bridge"] = {"bridgeName": bridge, **keys}
    return network


RULES = """
[[rule]]
namespaces = ["tenant-*"]
bridges = ["br-tenant", "br-t-*"]
vlans = [100, "200-299"]

[[rule]]
namespaces = ["tenant-b"]
bridges = ["br-b"]
"""


@ENTRIES
def test_bridges_and_vlans_of_a_namespace(node: Node, sandbox: str) -> None:
    """In a namespace with a rule, other bridges and VLANs are refused with 7 and nothing is left.

    Its own, other namespaces' pods and calls without a pod work.
    """
    rules(node, RULES)
    tenant, free = Pod(namespace="tenant-a"), Pod(namespace="default")
    for pod in (tenant, free):
        node.empty_dir(pod.uid)
    for network, words in (
        (on(node, "br-other", vlanId=100), ("'br-other'", "'tenant-a'", "setting [[rule]] number 1 allows br-tenant, br-t-*")),
        (on(node, "br-b", vlanId=100), ("'br-b'", "'tenant-a'")),
        (on(node, "br-tenant", vlanId=300), ("VLAN 300", "'br-tenant'", "'tenant-a'", "setting [[rule]] number 1", "200-299")),
        (on(node, "br-tenant", trunks=[100, "299-300"]), ("VLAN 100, 299, 300", "'tenant-a'")),
        (on(node, "br-tenant"), ("all VLANs", "'br-tenant'", "vlanId", "trunks")),
        (on(node, "br-tenant", vlanId=100, vlanMode="native-tagged"), ("all VLANs",)),
    ):
        leasing = {**network, "cniVersion": "1.0.0", "ipam": node.host_local()}
        refused(node.run("ADD", leasing, sandbox, CNI_ARGS=tenant.args), 7, *words)
        assert node.leftovers() == {}
    allowed = [
        (on(node, "br-tenant", vlanId=100), tenant.args),
        (on(node, "br-t-1", trunks=["200-299"]), tenant.args),
        (on(node, "br-other"), free.args),
        (on(node, "br-other"), ""),
    ]
    for network, args in allowed:
        succeeded(node.run("ADD", network, sandbox, CNI_ARGS=args))
        succeeded(node.run("DEL", network, sandbox, CNI_ARGS=args))
    assert node.leftovers().get("bridges", []) == []


@ENTRIES
def test_rule_that_comes_later(node: Node, sandbox: str) -> None:
    """After a rule was made that forbids an existing attachment, its CHECK, GC and DEL still work, and a new ADD is refused."""
    pod = Pod(namespace="tenant-a")
    node.empty_dir(pod.uid)
    network = on(node, "br-other")
    result = succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
    succeeded(node.run("ADD", network, sandbox, OTHER, CNI_ARGS=pod.args))
    rules(node, RULES)
    node.settings["USERSPACE_CNI_LOG_LEVEL"] = "debug"  # an agent is started anew
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox, CNI_ARGS=pod.args))
    refused(node.run("ADD", network, sandbox, ifname="net2", CNI_ARGS=pod.args), 7, "'br-other'")
    valid = [{"containerID": CONTAINER, "ifname": "net1"}]
    succeeded(node.run("GC", {**network, "cni.dev/valid-attachments": valid}))
    assert switch_of(node).ports("br-other") == [f"{CID12}-net1"]
    succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert node.leftovers() == {}


def test_directories_of_a_namespace(node: Node, sandbox: str) -> None:
    """Directories in a rule replace those of the setting for that namespace; other namespaces keep the setting's."""
    own = node.directory / "tenant"
    rules(node, f"[[rule]]\nnamespaces = ['tenant-*']\ndirectories = ['{own}']\n")
    tenant, free = Pod(namespace="tenant-a"), Pod(namespace="default")
    words = (str(own), "shared_dirs", "setting [[rule]] number 1", "'tenant-a'")
    refused(node.run("ADD", opened(node, node.shared), sandbox, CNI_ARGS=tenant.args), 7, *words)
    refused(node.run("ADD", opened(node, own), sandbox, CNI_ARGS=free.args), 7, "setting shared_dirs", str(node.shared))
    assert (node.leftovers(), own.exists()) == ({}, False)
    for network, pod in ((opened(node, own / "a"), tenant), (opened(node, node.shared), free)):
        succeeded(node.run("ADD", network, sandbox, CNI_ARGS=pod.args))
        succeeded(node.run("DEL", network, sandbox, CNI_ARGS=pod.args))
    assert tree(own / "a") == set()


@ENTRIES
def test_no_directory_in_another_attachments(node: Node, sandbox: str) -> None:
    """A network cannot make root create its directories in another pod's, which could then never be removed: 105."""
    node.settings["USERSPACE_CNI_SHARED_DIRS"] = str(node.shared)
    succeeded(node.run("ADD", node.network(), sandbox, OTHER, CNI_ARGS=Pod("victim").args))
    before = tree(node.shared)
    for below in (node.shared / OTHER[:12], node.shared / OTHER[:12] / "deep" / "er"):
        refused(node.run("ADD", opened(node, below), sandbox, CNI_ARGS=Pod().args), 105, OTHER, "sharedDir")
        assert tree(node.shared) == before
    succeeded(node.run("DEL", node.network(), sandbox, OTHER))
    assert node.leftovers() == {}


@ENTRIES
@pytest.mark.parametrize("own", ["state/attachments", "run/locks", "short"])
def test_no_directory_among_the_plugins_own(node: Node, sandbox: str, own: str) -> None:
    """Even with the widest shared_dirs, a network cannot have a directory among records, locks and mounts."""
    node.settings["USERSPACE_CNI_SHARED_DIRS"] = str(node.directory)
    refused(
        node.run("ADD", opened(node, node.directory / own), sandbox, CNI_ARGS=Pod().args), 7, "sharedDir", own.partition("/")[0]
    )
    assert node.leftovers() == {}


PROVIDER = """
[[provider_network]]
name = "net1"
interface = "no-such-nic"
"""
OPENED = """
[[rule]]
namespaces = ["tenant-*"]
bridges = ["br-net1"]
vlans = [100]
"""


@ENTRIES
def test_bridge_of_a_provider_network(node: Node, sandbox: str) -> None:
    """Such a bridge leads to the node's physical network: pods may use it only with a rule, and only in the rule's VLANs."""
    switch, pod = switch_of(node), Pod(namespace="tenant-a")
    node.empty_dir(pod.uid)
    switch.vsctl("add-br", "br-net1", "--", "set", "Bridge", "br-net1", "datapath_type=netdev")
    switch.vsctl("set", "Bridge", "br-net1", "external_ids:owner=userspace-cni", "external_ids:owner-kind=node")
    network = on(node, "br-net1", vlanId=100)
    try:
        refused(
            node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 7, "'br-net1'", "'tenant-a'", "provider network", "[[rule]]"
        )
        assert node.leftovers()["bridges"] == ["br-net1"]
        rules(node, OPENED)
        node.settings["USERSPACE_CNI_LOG_LEVEL"] = "debug"  # an agent is started anew
        refused(node.run("ADD", on(node, "br-net1", vlanId=200), sandbox, CNI_ARGS=pod.args), 7, "VLAN 200")
        for args in (pod.args, ""):
            succeeded(node.run("ADD", network, sandbox, CNI_ARGS=args))
            assert switch.ports("br-net1") == [f"{CID12}-net1"]
            succeeded(node.run("DEL", network, sandbox, CNI_ARGS=args))
            assert switch.ports("br-net1") == []
    finally:
        switch.vsctl("del-br", "br-net1")


@ENTRIES
def test_bridge_of_a_provider_network_that_is_not_there_yet(node: Node, sandbox: str) -> None:
    """No ADD makes the bridge that is to get an uplink: without a rule it is refused, with one the answer is "try again"."""
    rules(node, PROVIDER)
    pod = Pod(namespace="tenant-a")
    node.empty_dir(pod.uid)
    network = on(node, "br-net1", vlanId=100)
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 7, "'br-net1'", "provider network")
    rules(node, PROVIDER + OPENED)
    node.settings["USERSPACE_CNI_LOG_LEVEL"] = "debug"  # an agent is started anew
    for args in (pod.args, ""):
        refused(node.run("ADD", network, sandbox, CNI_ARGS=args), 11, "br-net1", "not there yet")
    assert node.leftovers() == {}
