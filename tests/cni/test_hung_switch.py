"""DEL and STATUS while the switch hangs: nothing waits for it longer than it must, and nothing else waits at all."""

from __future__ import annotations

import pytest

from tests.lab.node.node import Node
from userspace_cni.base.errors import NotServing


@pytest.fixture
def hurried(node: Node) -> Node:
    """A node whose verbs have four seconds."""
    node.settings["USERSPACE_CNI_DEADLINE_S"] = "4"
    return node


def test_addresses_return_while_ovsdb_hangs(hurried: Node, sandbox: str) -> None:
    """DEL with a stopped ovsdb-server releases lease, mount and directory and records the port; the next call ends it."""
    assert hurried.switch
    network = hurried.network("1.0.0", ipam=hurried.host_local())
    assert hurried.run("ADD", network, sandbox).status == 0
    hurried.switch.pause_ovsdb()
    try:
        deleted = hurried.run("DEL", network, sandbox)
    finally:
        hurried.switch.resume_ovsdb()
    assert deleted.status == 0, deleted.stdout
    left = hurried.leftovers()
    assert left.keys() == {"bridges", "records"}
    assert len(left["records"]) == 1
    assert hurried.run("DEL", network, sandbox, container="another").status == 0
    assert hurried.leftovers() == {}


def test_status_while_ovsdb_hangs(hurried: Node) -> None:
    """STATUS answers 50 while ovsdb-server is stopped, and works again when it goes on."""
    assert hurried.switch
    hurried.switch.pause_ovsdb()
    try:
        assert hurried.run("STATUS", hurried.network()).code == NotServing.default_code
    finally:
        hurried.switch.resume_ovsdb()
    assert hurried.run("STATUS", hurried.network()).status == 0
