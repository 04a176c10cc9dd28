"""Items 76 to 82 of the specification's checklist: CHECK."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.cni.spec import (
    LEASED,
    OTHER,
    PORT,
    held,
    ipam,
    kill,
    refused,
    refused_soon,
    row_of,
    scripted,
    start,
    succeeded,
    switch_of,
    tree,
)
from tests.lab.node.node import CONTAINER, Node
from tests.lab.runtimes.runtime import netns


def attached(node: Node, sandbox: str, **keys: Any) -> dict[str, Any]:
    network = node.network(**keys)
    return {**network, "prevResult": succeeded(node.run("ADD", network, sandbox))}


def test_076_no_previous_result(node: Node, sandbox: str) -> None:
    """CHECK without prevResult is 7, which names it, with and without an attachment."""
    for _ in range(2):
        for network in (node.network(), node.network(prevResult=None)):
            refused(node.run("CHECK", network, sandbox), 7, "prevResult")
        attached_already = node.run("ADD", node.network(), sandbox)
    refused(attached_already, 101)
    succeeded(node.run("DEL", node.network(), sandbox))


def test_077_not_attached(node: Node, sandbox: str) -> None:
    """An interface that prevResult lacks in this sandbox, or that has no record, is 102, not 3."""
    checked = attached(node, sandbox)
    previous = checked["prevResult"]
    (entry,) = previous["interfaces"]
    for interfaces in ([], [{**entry, "name": "net2"}], [{**entry, "sandbox": "/other"}], [{"name": "net1"}]):
        refused(node.run("CHECK", {**checked, "prevResult": {**previous, "interfaces": interfaces}}, sandbox), 102, "net1")
    refused(node.run("CHECK", checked, sandbox, container=OTHER), 102, OTHER)
    refused(node.run("CHECK", {**checked, "name": "another"}, sandbox), 102, "'net'")
    succeeded(node.run("CHECK", checked, sandbox))
    succeeded(node.run("DEL", checked, sandbox))
    refused(node.run("CHECK", checked, sandbox), 102, "net1")


Change = Callable[[Node], object]


def _vsctl(*args: str) -> Change:
    return lambda node: switch_of(node).vsctl("--no-wait", *args)


def _unmount(node: Node) -> None:
    subprocess.run(["umount", *map(str, node.short.iterdir())], check=True)


def _move_directory(node: Node) -> None:
    _unmount(node)
    (node.shared / CONTAINER[:12]).rename(mkdtemp(prefix="gone-", dir=node.directory))


DRIFTS: dict[str, tuple[tuple[Change, ...], tuple[str, ...]]] = {
    "port": ((_vsctl("--if-exists", "del-port", PORT),), ("expected a port on bridge br-test, found none",)),
    "columns": (
        (
            _vsctl("set", "Interface", PORT, "type=internal", "options:vhost-server-path=/elsewhere", "mtu_request=1400"),
            _vsctl("set", "Interface", PORT, "external_ids:attached-mac=x"),
            _vsctl("set", "Port", PORT, "tag=9", "trunks=5", "vlan_mode=trunk", "external_ids:container-id=y"),
        ),
        (
            "Interface.type: expected dpdkvhostuserclient, found internal",
            "found /elsewhere",
            "mtu_request: expected 2000, found 1400",
            "attached-mac: expected 02:00:00:00:00:08, found x",
            "tag: expected 7, found 9",
            "trunks: expected nothing, found (5,)",
            "vlan_mode: expected nothing, found trunk",
            f"container-id: expected {CONTAINER}, found y",
        ),
    ),
    "mark of the interface": (
        (_vsctl("set", "Interface", PORT, "external_ids:container-id=x"),),
        (f"container-id: expected {CONTAINER}, found x",),
    ),
    "files": (
        (
            lambda node: (node.shared / CONTAINER[:12] / PORT).mkdir(),
            lambda node: (node.shared / CONTAINER[:12] / f"configData-{PORT}.json").unlink(missing_ok=True),
            lambda node: _rewrite(node.device_info / "info"),
        ),
        ("expected a socket or nothing, found a directory", "configData", "'path': '/elsewhere'"),
    ),
    "mount": (
        (_unmount, lambda node: (node.device_info / "info").unlink(missing_ok=True)),
        ("mount", "expected a file, found none"),
    ),
    "directory": ((_move_directory,), (f"/shared/{CONTAINER[:12]}: expected a directory", "found no mount")),
}


def _rewrite(path: Path) -> None:
    content = json.loads(path.read_text())
    content["vhost-user"]["path"] = "/elsewhere"
    path.unlink()
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("drift", DRIFTS)
def test_078_drift(node: Node, sandbox: str, drift: str) -> None:
    """Each part of an attachment that is no longer as ADD made it is reported, with the expected and the found value."""
    changes, words = DRIFTS[drift]
    network = node.network(runtimeConfig={"CNIDeviceInfoFile": str(node.device_info / "info"), "mac": "02:00:00:00:00:08"})
    network["host"] |= {"mtu": 2000, "bridge": {"bridgeName": "br-test", "vlanId": 7}}
    checked = {**network, "prevResult": succeeded(node.run("ADD", network, sandbox))}
    succeeded(node.run("CHECK", checked, sandbox))

    def spoil() -> None:
        for change in changes:
            change(node)

    spoil()
    refused_soon(lambda: node.run("CHECK", checked, sandbox), 103, *words, again=spoil)
    succeeded(node.run("DEL", network, sandbox))


def test_079_what_later_plugins_change(node: Node, sandbox: str) -> None:
    """CHECK accepts interfaces, routes, addresses and a mac that later plugins of the chain added or replaced in the result."""
    checked = attached(node, sandbox)
    previous = checked["prevResult"]
    entry = {**previous["interfaces"][0], "mac": "02:00:00:00:00:99", "mtu": 1300}
    interfaces = [{"name": "tap0"}, entry, {"name": "net9", "sandbox": sandbox}]
    changed = {**previous, "interfaces": interfaces, "routes": [{"dst": "0.0.0.0/0"}], "ips": [{"address": "10.0.0.9/8"}]}
    succeeded(node.run("CHECK", {**checked, "prevResult": changed}, sandbox))
    succeeded(node.run("DEL", checked, sandbox))


@pytest.mark.parametrize("mode", ["client", "server"])
def test_080_right_after_add(node: Node, sandbox: str, mode: str) -> None:
    """CHECK passes while no application has connected yet."""
    network = node.network()
    network["host"]["vhost"]["mode"] = mode
    result = succeeded(node.run("ADD", network, sandbox))
    assert switch_of(node).interface(PORT)["link_state"] == "down"
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(node.run("DEL", network, sandbox))


class TestReadOnly:
    """Item 81: CHECK looks, asks the delegate, and changes nothing."""

    def test_081_nothing_is_written(self, node: Node, sandbox: str) -> None:
        """Neither a passing nor a failing CHECK changes a file or a row, not even to repair it."""
        checked = attached(node, sandbox)
        for tag in ([], ["tag=9"]):
            if tag:
                switch_of(node).vsctl("set", "Port", PORT, *tag)
            files, row, port = tree(node.directory), row_of(node), switch_of(node).port(PORT)
            assert node.run("CHECK", checked, sandbox).status == len(tag)
            assert (tree(node.directory), row_of(node), switch_of(node).port(PORT)) == (files, row, port)
        succeeded(node.run("DEL", checked, sandbox))

    def test_081_the_namespace_is_gone(self, node: Node) -> None:
        """CHECK of an attachment whose namespace is gone is 4."""
        with netns() as gone:
            checked = attached(node, gone)
        refused(node.run("CHECK", checked, gone), 4, "CNI_NETNS", gone)
        succeeded(node.run("DEL", checked, gone))
        assert node.leftovers() == {}

    def test_081_the_delegate(self, node: Node, sandbox: str) -> None:
        """The delegate's CHECK gets stdin unchanged, and its error is returned."""
        delegate = scripted(node)
        checked = json.dumps(attached(node, sandbox, ipam=ipam(delegate)), indent=3).encode()
        succeeded(node.run("CHECK", checked, sandbox))
        assert delegate.calls()[-1]["command"] == "CHECK"
        assert delegate.calls()[-1]["stdin"].encode() == checked
        delegate.tell("CHECK", answer={"code": 141, "msg": "lease lost"}, exit=1)
        assert refused(node.run("CHECK", checked, sandbox), 141)["msg"] == "lease lost"
        succeeded(node.run("DEL", checked, sandbox))

    def test_081_real_ipam(self, node: Node, sandbox: str) -> None:
        """host-local notices in CHECK that its lease is gone."""
        network = node.network("1.0.0", ipam=node.host_local())
        checked = {**network, "prevResult": succeeded(node.run("ADD", network, sandbox))}
        succeeded(node.run("CHECK", checked, sandbox))
        (node.ipam_dir / "net" / "10.56.0.2").unlink()
        assert node.run("CHECK", checked, sandbox).code not in (None, 0)
        succeeded(node.run("DEL", network, sandbox))


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
def test_082_check_waits_for_nobody(node: Node, sandbox: str, version: str) -> None:
    """CHECK does not wait while another interface of the container is attached: CRI-O calls it with every pod status."""
    network = node.network(version)
    checked = {**network, "prevResult": succeeded(node.run("ADD", network, sandbox))}
    delegate = scripted(node)
    another = json.dumps(node.network(ipam=ipam(delegate))).encode()
    environ = node.variables("ADD", sandbox, ifname="net2")
    with held(delegate, "ADD", answer=LEASED) as newest, start(node, environ, another) as process:
        newest()
        for _ in range(2):
            succeeded(node.run("CHECK", checked, sandbox))
        assert process.poll() is None
        kill(process)
