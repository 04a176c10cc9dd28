"""Items 42 to 53 of the specification's checklist: ADD."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.cni.spec import (
    LEASED,
    PORT,
    away,
    finish,
    held,
    ipam,
    paused_vswitchd,
    records,
    refused,
    refused_late,
    row_of,
    scripted,
    start,
    succeeded,
    switch_of,
)
from tests.lab.kube.apiserver import ApiServer, Fault
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, Node
from tests.lab.switch.switch import wait_until


def test_042_the_interface_has_its_name_or_add_fails(node: Node, sandbox: str) -> None:
    """The result's interface is named CNI_IFNAME; a name that no socket can have is refused and not changed."""
    for ifname in ("net1", "x" * 15, "eth0.100", "A_b-9"):
        result = succeeded(node.run("ADD", node.network(), sandbox, ifname=ifname))
        assert [entry["name"] for entry in result["interfaces"]] == [ifname]
        succeeded(node.run("DEL", node.network(), sandbox, ifname=ifname))
    for ifname in ("é", "a=b", "a,b", "-x"):
        made = node.run("ADD", node.network(), sandbox, ifname=ifname)
        if made.status:
            refused(made, 4, "CNI_IFNAME", "host.vhost.socketfile")
        else:
            assert made.document["interfaces"][0]["name"] == ifname
            succeeded(node.run("DEL", node.network(), sandbox, ifname=ifname))
    assert node.leftovers() == {}


def test_043_a_name_that_is_taken(node: Node, sandbox: str) -> None:
    """ADD is 101 when the sandbox has a kernel interface of that name, or the container an attachment of any network.

    Both stay.
    """
    subprocess.run(["nsenter", f"--net={sandbox}", "ip", "link", "add", "net1", "type", "bridge"], check=True)
    for ifname in ("net1", "lo"):
        refused(node.run("ADD", node.network(), sandbox, ifname=ifname), 101, ifname)
    assert node.leftovers() == {}
    subprocess.run(["nsenter", f"--net={sandbox}", "ip", "link", "del", "net1"], check=True)
    succeeded(node.run("ADD", node.network(), sandbox))
    before = node.leftovers()
    refused(node.run("ADD", node.network(name="another"), sandbox), 101, "net1", "'net'")
    assert node.leftovers() == before
    succeeded(node.run("DEL", node.network(), sandbox))
    assert node.leftovers() == {}


def test_044_repeated_add(node: Node, sandbox: str) -> None:
    """A second ADD of a live attachment is 101; rows, record and lease of the first stay untouched."""
    network = node.network("1.0.0", ipam=node.host_local())
    result = succeeded(node.run("ADD", network, sandbox))
    row, before, kept = row_of(node), node.leftovers(), records(node)
    refused(node.run("ADD", network, sandbox), 101)
    assert (row_of(node), node.leftovers(), records(node)) == (row, before, kept)
    succeeded(node.run("CHECK", {**network, "prevResult": result}, sandbox))
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}


def test_045_previous_result(node: Node, sandbox: str) -> None:
    """What earlier plugins of the chain report comes first and unchanged; ours is appended, so that no index changes."""
    previous = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "veth1", "mac": "02:00:00:00:00:01"}, {"name": "eth0", "sandbox": sandbox, "mtu": 1400}],
        "ips": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1", "priority": 100}],
        "dns": {"nameservers": ["192.0.2.53"], "search": ["example.org"]},
    }
    delegate = scripted(node).tell("ADD", answer={**LEASED, "routes": [{"dst": "10.0.0.0/8"}]})
    result = succeeded(node.run("ADD", node.network(ipam=ipam(delegate), prevResult=previous), sandbox))
    assert result["interfaces"][:2] == previous["interfaces"]
    assert [entry["name"] for entry in result["interfaces"][2:]] == ["net1"]
    assert result["ips"] == [*previous["ips"], {"address": "10.1.2.3/24", "gateway": "10.1.2.1", "interface": 2}]
    assert result["routes"] == [*previous["routes"], {"dst": "10.0.0.0/8"}]
    assert result["dns"] == previous["dns"]
    succeeded(node.run("DEL", node.network(), sandbox))


class TestRollback:
    """Item 46: a failed ADD leaves nothing. (test_rollback has the same at every point inside the process.)"""

    @pytest.mark.parametrize("mode", ["client", "server"])
    @pytest.mark.parametrize(
        ("obstacle", "code"),
        [
            ("lease", 999),
            ("directory", 106),
            ("socket", 106),
            ("mount", 106),
            ("bridge", 104),
            ("port", 105),
            ("device info", 106),
            ("config file", 106),
        ],
    )
    def test_046_obstacle_at_every_step(self, node: Node, sandbox: str, mode: str, obstacle: str, code: int) -> None:
        """When something obstructs a step, the error says so, and switch, files and leases are as before.

        (999 is host-local's own code when its range is full.)
        """
        network = node.network("1.0.0", ipam=node.host_local(), runtimeConfig={"CNIDeviceInfoFile": f"{node.device_info}/net1"})
        network["host"]["vhost"]["mode"] = mode
        put_in_the_way(node, obstacle, network)
        before = node.leftovers()
        if obstacle == "mount" and mode == "server":
            succeeded(node.run("ADD", network, sandbox))
            succeeded(node.run("DEL", network, sandbox))
        else:
            refused(node.run("ADD", network, sandbox), code)
        assert node.leftovers() == before
        assert not switch_of(node).rows("QoS")
        assert not (node.device_info / "net1").exists()

    def test_046_note_in_the_pod(self, node: Node, sandbox: str, api: ApiServer) -> None:
        """When the pod cannot be written to, ADD fails and undoes everything."""
        pod = Pod(volume={"emptyDir": {}})
        pod.create(api)
        node.empty_dir(pod.uid)
        network = node.network("1.0.0", ipam=node.host_local(), kubeconfig=api.kubeconfig(node.directory))
        api.faults += [Fault("PATCH", status=403), Fault("PUT", status=403)]
        refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 107)
        assert node.leftovers() == {}
        assert pod.annotations(api) == {}

    def test_046_switch_that_is_away(self, node: Node, sandbox: str) -> None:
        """Without OVSDB nothing is begun, so there is nothing to undo."""
        network = node.network("1.0.0", ipam=node.host_local())
        refused(node.run("ADD", network, sandbox, **away(node)), 11)
        assert node.leftovers() == {}


def put_in_the_way(node: Node, obstacle: str, network: dict[str, Any]) -> None:
    """Obstruct one step of the next ADD of CONTAINER."""
    switch = switch_of(node)
    directory = node.shared / CONTAINER[:12]
    if obstacle == "lease":
        network["ipam"] = node.host_local("10.56.0.0/30")
        leases = node.ipam_dir / "net"
        leases.mkdir()
        (leases / "10.56.0.2").write_text("another\r\neth0")
    elif obstacle == "directory":
        node.shared.mkdir()
        directory.touch()
    elif obstacle == "socket":
        (directory / PORT).mkdir(parents=True)
        (directory / PORT / "file").touch()
    elif obstacle == "mount":
        node.short.touch()
    elif obstacle == "bridge":
        switch.vsctl("--no-wait", "add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=system")
    elif obstacle == "port":
        switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
        switch.vsctl("add-port", "br-test", PORT, "--", "set", "Interface", PORT, "type=dpdkvhostuserclient")
    elif obstacle == "device info":
        node.device_info.touch()
    else:
        (directory / f"configData-{PORT}.json").mkdir(parents=True)


def test_047_the_intent_is_recorded_first(node: Node, sandbox: str) -> None:
    """Before the first effect, the lease, a record that names it is on disk."""
    delegate = scripted(node)
    network = json.dumps(node.network(ipam=ipam(delegate))).encode()
    with held(delegate, "ADD", answer=LEASED) as newest, start(node, node.variables("ADD", sandbox), network) as process:
        newest()
        (record,) = records(node)
        assert (record["state"], record["container_id"], record["ifname"]) == ("pending", CONTAINER, "net1")
        assert [(step["step"], step["stdin"].encode()) for step in record["steps"]] == [("lease", network)]
        os.kill(newest(), signal.SIGKILL)
        refused(finish(process, "ADD"), 108)
    assert node.leftovers() == {}


class TestDeadline:
    """Item 48: a call ends by itself, whatever hangs."""

    def test_048_the_delegate_hangs(self, node: Node, sandbox: str) -> None:
        """A delegate that never ends is abandoned at the deadline with 11, and its lease is released."""
        delegate = scripted(node).tell("ADD", hang=True)
        network = node.network(ipam=ipam(delegate))
        refused_late(node, lambda: node.run("ADD", network, sandbox), 11, "scripted", met=lambda: "ADD" in delegate.commands())
        assert delegate.commands()[-2:] == ["ADD", "DEL"]
        assert node.leftovers() == {}

    def test_048_the_switch_hangs(self, node: Node, sandbox: str) -> None:
        """When ovs-vswitchd does not open the port, ADD ends with 11."""
        network = node.network("1.0.0", ipam=node.host_local())
        with paused_vswitchd(switch_of(node)):
            refused_late(node, lambda: node.run("ADD", network, sandbox), 11, "ovs-vswitchd")
        assert node.leftovers() == {}

    def test_048_the_api_server_hangs(self, node: Node, sandbox: str, api: ApiServer) -> None:
        """When the API server does not answer, at once or when the pod is written, ADD ends with 11."""
        pod = Pod(volume={"emptyDir": {}})
        pod.create(api)
        node.empty_dir(pod.uid)
        network = node.network("1.0.0", ipam=node.host_local(), kubeconfig=api.kubeconfig(node.directory))
        for method in ("GET", "PATCH"):
            api.faults[:] = [Fault(method, hang=60)]
            refused_late(node, lambda: node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 11, f"{method} /api/v1")
            assert node.leftovers() == {}


def test_049_a_failing_delegate(node: Node, sandbox: str) -> None:
    """Its DEL is run with what its ADD was given, and its own error is returned."""
    delegate = scripted(node).tell("ADD", answer={"code": 123, "msg": "no room", "details": "range 7"}, exit=1)
    network = json.dumps(node.network(ipam=ipam(delegate))).encode()
    error = refused(node.run("ADD", network, sandbox), 123)
    assert (error["msg"], error["details"]) == ("no room", "range 7")
    add, delete = delegate.calls()
    assert (add["command"], delete["command"]) == ("ADD", "DEL")
    assert add["stdin"] == delete["stdin"] == network.decode()
    assert {**add["env"], "CNI_COMMAND": ""} == {**delete["env"], "CNI_COMMAND": ""}
    assert node.leftovers() == {}


def test_050_codes_of_causes(node: Node, sandbox: str, api: ApiServer) -> None:
    """A cause that may pass by itself is 11, a sandbox that was gone before the call 3, any other cause 100 or more."""
    delegate = scripted(node)
    pod = Pod()
    network = node.network(ipam=ipam(delegate), kubeconfig=api.kubeconfig(node.directory))
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 3, pod.name)
    Pod().create(api)
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 3, pod.uid)
    api.faults.append(Fault("GET", status=503))
    refused(node.run("ADD", network, sandbox, CNI_ARGS=pod.args), 11)
    assert delegate.calls() == []
    assert node.leftovers() == {}
    switch_of(node).vsctl("--no-wait", "add-br", "br-test")
    refused(node.run("ADD", node.network(), sandbox), 104, "br-test")


def test_051_dns_and_addresses_of_the_delegate(node: Node, sandbox: str) -> None:
    """The configuration's dns takes precedence over the delegate's; a result of IPAM without an address fails ADD."""
    delegate = scripted(node).tell("ADD", answer={**LEASED, "dns": {"nameservers": ["10.0.0.53"], "domain": "lease"}})
    network = node.network(ipam=ipam(delegate))
    for keys, expected in (
        ({}, {"nameservers": ["10.0.0.53"], "domain": "lease"}),
        ({"dns": {"domain": "own"}}, {"domain": "own"}),
    ):
        assert succeeded(node.run("ADD", network | keys, sandbox))["dns"] == expected
        succeeded(node.run("DEL", network, sandbox))
    for answer in ({"cniVersion": "1.1.0"}, {"cniVersion": "1.1.0", "ips": []}, {"ips": [{"address": "10.1.2.3"}]}):
        delegate.tell("ADD", answer=answer)
        refused(node.run("ADD", network, sandbox), 108, "ips")
        assert delegate.commands()[-1] == "DEL"
    assert node.leftovers() == {}


class TestRuntimeConfig:
    """Item 52: what the runtime asks for is served or refused; it is never dropped."""

    def test_052_what_is_served(self, node: Node, sandbox: str) -> None:
        """mac, ips and CNIDeviceInfoFile appear in the result, in OVS and on disk; a deviceID does no harm."""
        info = node.device_info / "net1"
        asked = {"mac": "02:AA:00:00:00:01", "ips": ["10.9.8.7/24"], "CNIDeviceInfoFile": str(info), "deviceID": "0000:00:01.0"}
        capabilities = {"mac": True, "ips": True, "CNIDeviceInfoFile": True, "deviceID": True}
        network = node.network("1.0.0", ipam={"type": "static"}, capabilities=capabilities, runtimeConfig=asked)
        result = succeeded(node.run("ADD", network, sandbox))
        assert result["interfaces"][0]["mac"] == "02:aa:00:00:00:01"
        assert [ip["address"] for ip in result["ips"]] == ["10.9.8.7/24"]
        assert switch_of(node).interface(PORT)["external_ids"]["attached-mac"] == "02:aa:00:00:00:01"
        assert info.is_file()
        succeeded(node.run("DEL", network, sandbox))
        assert node.leftovers() == {}

    def test_052_what_cannot_be_honoured(self, node: Node, sandbox: str) -> None:
        """A multicast MAC, an address without IPAM, one that IPAM did not give, and too low a rate are refused."""
        delegate = scripted(node)
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({"runtimeConfig": {"mac": "01:00:5e:00:00:01"}}, 7, "runtimeConfig.mac"),
            ({"runtimeConfig": {"ips": ["10.9.8.7/24"]}}, 7, "10.9.8.7/24"),
            ({"runtimeConfig": {"ips": ["10.9.8.7/24"]}, "ipam": ipam(delegate)}, 7, "10.9.8.7/24"),
            ({"runtimeConfig": {"bandwidth": {"ingressRate": 999}}}, 7, "runtimeConfig.bandwidth.ingressRate"),
        ]
        for keys, code, word in cases:
            refused(node.run("ADD", node.network(**keys), sandbox), code, word)
        assert delegate.commands() == ["ADD", "DEL"]
        assert node.leftovers() == {}


def test_053_the_result_comes_last(node: Node, sandbox: str) -> None:
    """While the result is still being printed, record, port and device-info exist already."""
    info = node.device_info / "info"
    network = node.network(runtimeConfig={"CNIDeviceInfoFile": str(info)})
    reading, writing = os.pipe()
    os.write(writing, b" " * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
    with start(node, node.variables("ADD", sandbox), json.dumps(network).encode(), stdout=writing) as process:
        os.close(writing)
        with open(reading, "rb") as results:  # noqa: PTH123 - a descriptor
            wait_until(lambda: [record["state"] for record in records(node)] == ["ready"], what="a record that is ready")
            assert process.poll() is None
            assert switch_of(node).interface(PORT)["ofport"] > 0
            assert json.loads(info.read_text())["type"] == "vhost-user"
            result = json.loads(results.read())
        assert finish(process, "ADD").status == 0
    assert records(node)[0]["result"] == result
    succeeded(node.run("DEL", network, sandbox))
    assert node.leftovers() == {}
