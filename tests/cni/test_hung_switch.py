"""DEL and STATUS while the switch hangs: what needs the switch waits no longer than it must, and the rest does not wait."""

from __future__ import annotations

from tests.cni.spec import finish_by_others
from tests.lab.node.node import Node
from userspace_cni.base.errors import NotServing


def test_addresses_return_while_ovsdb_hangs(node: Node, sandbox: str) -> None:
    """With ovsdb-server stopped, DEL releases lease, mount and directory and records the port; the next call removes that."""
    assert node.switch
    network = node.network("1.0.0", ipam=node.host_local())
    assert node.run("ADD", network, sandbox).status == 0
    node.switch.pause_ovsdb()
    try:
        deleted = node.run("DEL", network, sandbox)
    finally:
        node.switch.resume_ovsdb()
    assert deleted.status == 0, deleted.stdout
    left = node.leftovers()
    assert left.keys() == {"bridges", "records"}
    assert len(left["records"]) == 1
    finish_by_others(node)
    assert node.leftovers() == {}


def test_status_while_ovsdb_hangs(node: Node) -> None:
    """STATUS answers 50 while ovsdb-server is stopped, and works again when it goes on."""
    assert node.switch
    node.switch.pause_ovsdb()
    try:
        assert node.run("STATUS", node.network()).code == NotServing.default_code
    finally:
        node.switch.resume_ovsdb()
    assert node.run("STATUS", node.network()).status == 0
