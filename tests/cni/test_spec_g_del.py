"""Items 63 to 75 of the specification's checklist: DEL."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

from tests.cni.spec import (
    LEASED,
    OTHER,
    PORT,
    away,
    finish,
    finish_by_others,
    held,
    ipam,
    kill,
    read_only,
    records,
    refused,
    refused_late,
    row_of,
    scripted,
    start,
    succeeded,
    switch_of,
)
from tests.lab.node.node import CONTAINER, Node

NO_NETNS = ["", "/var/run/netns/absent", "relative", "/proc/self/ns/mnt"]


def test_063_again_and_again(node: Node, sandbox: str) -> None:
    """DEL without any ADD, and a second DEL, succeed and print nothing."""
    network = node.network("1.0.0", ipam=node.host_local())
    for _ in range(3):
        succeeded(node.run("DEL", network, sandbox))
    succeeded(node.run("ADD", network, sandbox))
    for _ in range(3):
        succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_064_any_previous_result(node: Node, sandbox: str) -> None:
    """DEL removes everything without prevResult and with an invalid one."""
    network = node.network("1.0.0", ipam=node.host_local())
    any_result: list[Any] = [None, [], "x", {"cniVersion": "9.9.9"}, {"interfaces": [None]}]
    for previous in any_result:
        succeeded(node.run("ADD", network, sandbox))
        succeeded(node.run("DEL", {**network, "prevResult": previous}, sandbox))
        assert node.leftovers() == {}


def test_065_any_netns(node: Node, sandbox: str) -> None:
    """DEL removes everything when CNI_NETNS is empty, gone or something else."""
    network = node.network("1.0.0", ipam=node.host_local())
    for netns in NO_NETNS:
        succeeded(node.run("ADD", network, sandbox))
        succeeded(node.run("DEL", network, netns))
        assert node.leftovers() == {}


def test_066_the_delegate_is_always_reached(node: Node, sandbox: str) -> None:
    """The delegate's DEL runs whatever has become of namespace, prevResult and record."""
    delegate = scripted(node)
    network = node.network(ipam=ipam(delegate))
    calls = 0
    for netns in NO_NETNS:
        for keys in ({}, {"prevResult": "x"}):
            succeeded(node.run("DEL", network | keys, netns))
            calls += 1
            assert delegate.commands().count("DEL") == calls
    succeeded(node.run("ADD", network, sandbox))
    (record,) = (node.state / "attachments").iterdir()
    record.unlink()
    succeeded(node.run("DEL", network))
    assert delegate.commands().count("DEL") == calls + 1
    assert node.leftovers() == {}


def test_067_a_failing_step_does_not_stop_the_others(node: Node, sandbox: str) -> None:
    """When the delegate's DEL fails, the rest is removed, its error is returned, and the next DEL finishes it."""
    delegate = scripted(node).tell("DEL", answer={"code": 123, "msg": "not now", "details": "disk"}, exit=1)
    network = node.network(ipam=ipam(delegate))
    succeeded(node.run("ADD", network, sandbox))
    error = refused(node.run("DEL", network, sandbox), 123)
    assert (error["msg"], error["details"]) == ("not now", "disk")
    assert node.leftovers().keys() == {"records"}
    assert [(record["state"], [step["step"] for step in record["steps"]]) for record in records(node)] == [
        ("deleting", ["lease"])
    ]
    delegate.tell("DEL")
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_068_options_are_not_validated(node: Node, sandbox: str) -> None:
    """Options that ADD would refuse do not stop DEL."""
    wrong: list[dict[str, Any]] = [
        {"host": 3},
        {"host": {"iftype": "memif", "mtu": "x"}, "HOST": {}},
        {"container": [], "bandwidth": {"ingressRate": 1}},
        {"runtimeConfig": "x", "args": 4, "dns": []},
        {"ipMasq": True, "sharedDir": "relative", "kubeconfig": 1, "consumer": "none", "logLevel": 9},
    ]
    for keys in wrong:
        succeeded(node.run("ADD", node.network(), sandbox))
        succeeded(node.run("DEL", node.network() | keys, sandbox))
        assert node.leftovers() == {}


class TestSwitchAway:
    """Item 69: DEL while OVS cannot be reached."""

    def test_069_is_recorded_and_finished_later(self, node: Node, sandbox: str) -> None:
        """DEL succeeds, everything but the port is removed at once, and the next calls on the node remove the port."""
        network = node.network("1.0.0", ipam=node.host_local())
        succeeded(node.run("ADD", network, sandbox))
        succeeded(node.run("DEL", network, sandbox, **away(node)))
        assert node.leftovers().keys() == {"bridges", "records"}
        assert [record["state"] for record in records(node)] == ["deleting"]
        finish_by_others(node)
        assert node.leftovers() == {}

    def test_069_cannot_be_recorded(self, node: Node, sandbox: str) -> None:
        """When the run directory cannot be written either, DEL answers 11, and the next DEL removes everything."""
        network = node.network()
        succeeded(node.run("ADD", network, sandbox))
        with read_only(node.state), read_only(node.directory / "run"):
            refused(node.run("DEL", network, sandbox, **away(node)), 11)
        succeeded(node.run("DEL", network, sandbox))
        assert node.leftovers() == {}

    def test_069_is_recorded_where_there_is_room(self, node: Node, sandbox: str) -> None:
        """DEL succeeds when the state directory cannot be written: the run directory records what is left to do."""
        network = node.network()
        succeeded(node.run("ADD", network, sandbox))
        with read_only(node.state):
            succeeded(node.run("DEL", network, sandbox, **away(node)))
            assert [record["state"] for record in records(node)] == ["deleting"]
        finish_by_others(node)
        assert node.leftovers() == {}


def test_070_words_that_runtimes_take_for_success(node: Node) -> None:
    """No error of DEL has "not found" or "no such file or directory", not even in a delegate's words."""
    spoken = {"code": 100, "msg": "lease Not Found", "details": "open x: No such file or directory"}
    network = node.network(ipam=ipam(scripted(node).tell("DEL", answer=spoken, exit=1)))
    stranger = node.network(ipam={"type": "absent"})
    calls = [node.run("DEL", network), node.run("DEL", stranger, ifname="net2")]
    calls += [node.run("DEL", network, ifname="net3", USERSPACE_CNI_CONFIG="/absent.toml"), node.run("DEL", b"{}")]
    for made in calls:
        assert made.status == 1
        assert b"not found" not in made.stdout.lower()
        assert b"no such file" not in made.stdout.lower()


def test_071_only_this_attachment(node: Node, sandbox: str) -> None:
    """Another interface of the container, the same name in another container, and another network's attachment stay."""
    network = node.network()
    for container, ifname in ((CONTAINER, "net1"), (CONTAINER, "net2"), (OTHER, "net1")):
        succeeded(node.run("ADD", network, sandbox, container=container, ifname=ifname))
    succeeded(node.run("DEL", {**network, "name": "another"}, sandbox))
    assert row_of(node)
    others = [row_of(node, f"{CONTAINER[:12]}-net2"), row_of(node, f"{OTHER[:12]}-net1")]
    succeeded(node.run("DEL", network, sandbox))
    assert sorted(switch_of(node).ports("br-test")) == sorted(row["name"] for row in others)
    assert [row_of(node, row["name"]) for row in others] == others
    succeeded(node.run("DEL", network, sandbox, ifname="net2"))
    succeeded(node.run("DEL", network, sandbox, container=OTHER))
    assert node.leftovers() == {}


class TestOwnership:
    """Item 72: what is not ours stays, whatever its name is."""

    def test_072_a_port(self, node: Node, sandbox: str) -> None:
        """A port without our marks, or with another container's, stays with its bridge."""
        network = node.network()
        switch = switch_of(node)
        for marks in ("", "owner=userspace-cni,container-id=other,network=net,ifname=net1"):
            succeeded(node.run("ADD", network, sandbox))
            for table in ("Interface", "Port"):
                switch.vsctl("clear", table, PORT, "external_ids")
                if marks:
                    switch.vsctl("set", table, PORT, *(f"external_ids:{mark}" for mark in marks.split(",")))
            succeeded(node.run("DEL", network, sandbox))
            assert switch.ports("br-test") == [PORT]
            assert node.leftovers().keys() == {"bridges"}
            switch.vsctl("del-br", "br-test")

    def test_072_files_and_sockets(self, node: Node, sandbox: str) -> None:
        """Only the attachment's own socket is removed from a directory; a regular file of that name stays."""
        network = node.network()
        directory = node.shared / CONTAINER[:12]
        succeeded(node.run("ADD", network, sandbox))
        for name in (PORT, "another"):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(directory / name))
        (directory / f"{PORT}.log").touch()
        succeeded(node.run("DEL", network, sandbox))
        assert sorted(path.name for path in directory.iterdir()) == ["another", f"{PORT}.log"]
        succeeded(node.run("ADD", network, sandbox))
        (directory / PORT).touch()
        succeeded(node.run("DEL", network, sandbox))
        assert (directory / PORT).is_file()


def test_073_poorer_arguments(node: Node, sandbox: str) -> None:
    """What Multus omits at DEL (the runtime's requests, CNI_ARGS) is in the record."""
    info = node.device_info / "info"
    asked = {"mac": "02:00:00:00:00:05", "ips": ["10.9.8.7/24"], "CNIDeviceInfoFile": str(info)}
    node.empty_dir("0123-uid")
    network = node.network("1.0.0", ipam={"type": "static"}, capabilities={"ips": True}, runtimeConfig=asked)
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=app;K8S_POD_UID=0123-uid"
    succeeded(node.run("ADD", network, sandbox, CNI_ARGS=args))
    assert info.exists()
    succeeded(node.run("DEL", node.network("1.0.0"), sandbox))
    assert not info.exists()
    assert node.leftovers() == {}


def test_074_order(node: Node, sandbox: str) -> None:
    """The port is removed first, then socket and files, then the lease, and the record last."""
    delegate = scripted(node)
    network = node.network(ipam=ipam(delegate), runtimeConfig={"CNIDeviceInfoFile": str(node.device_info / "info")})
    succeeded(node.run("ADD", network, sandbox))
    stdin = json.dumps(network).encode()
    with held(delegate, "DEL") as newest, start(node, node.variables("DEL", sandbox), stdin) as process:
        newest()
        assert node.leftovers().keys() == {"records"}
        assert not (node.device_info / "info").exists()
        assert [record["state"] for record in records(node)] == ["deleting"]
        os.kill(newest(), signal.SIGKILL)
        refused(finish(process, "DEL"), 108)
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_075_the_child_of_a_killed_add(node: Node, sandbox: str) -> None:
    """DEL waits for a limited time for a delegate that outlived its ADD, and then removes everything."""
    delegate = scripted(node)
    network = json.dumps(node.network(ipam=ipam(delegate))).encode()
    with held(delegate, "ADD", answer=LEASED) as newest:
        with start(node, node.variables("ADD", sandbox), network) as process:
            newest()
            kill(process)
        refused_late(node, lambda: node.run("DEL", network, sandbox), 11, "attachment")
        assert delegate.commands() == ["ADD"]
        with start(node, node.variables("DEL", sandbox), network) as waiting:
            os.kill(newest(), signal.SIGKILL)
            succeeded(finish(waiting, "DEL"))
    assert delegate.commands() == ["ADD", "DEL"]
    assert node.leftovers() == {}
