"""What may die around the agent: ovs-vswitchd, ovsdb-server, the database, the node, records. Running pods get it back."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.cni.spec import records, refused, row_of, succeeded, switch_of
from tests.lab.kube.pods import Pod
from tests.lab.node.node import CONTAINER, mounts_below
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.attachment.journal import Journal
from userspace_cni.linux.boot import boot_id

RESTART_S = 60
OF_PORTS = ("name", "tag", "trunks", "vlan_mode", "external_ids")
OF_INTERFACES = ("name", "type", "options", "external_ids", "mtu_request", "mac", "error")
OF_BRIDGES = ("name", "datapath_type", "external_ids")
FOREIGN = "a port of another installation's state directory"
EARLIER_BOOT = "00000000-0000-4000-8000-000000000000"


def connects(path: Path) -> bool:
    """Whether a process listens there; the path may be longer than a socket's may be."""
    directory = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            return peer.connect_ex(f"/proc/self/fd/{directory}/{path.name}") == 0
    finally:
        os.close(directory)


def rows_of(switch: Switch) -> dict[str, list[dict[str, Any]]]:
    """What programs wrote into the database, without what the switch wrote and without UUIDs."""
    wanted = {"Bridge": OF_BRIDGES, "Port": OF_PORTS, "Interface": OF_INTERFACES}
    return {
        table: sorted(
            ({column: row[column] for column in columns} for row in switch.rows(table)), key=lambda row: str(row["name"])
        )
        for table, columns in wanted.items()
    }


def open_ports(switch: Switch) -> list[str]:
    """Names of the vhost-user interfaces that the switch has opened."""
    rows = [row for row in switch.rows("Interface") if row["type"].startswith("dpdkvhost")]
    return sorted(row["name"] for row in rows if isinstance(row["ofport"], int) and row["ofport"] > 0)


def forget_record(live: LiveNode, name: str = CONTAINER) -> None:
    """Remove the attachment's record, as a faulty disk might; the lists of holders stay."""
    [path] = (live.state / "attachments").glob(f"{name}*.json")
    path.unlink()


@contextmanager
def mortal_sandbox(beside: str, name: str = "cni-mortal") -> Iterator[tuple[str, Callable[[], None]]]:
    """A network namespace in another's directory, and a function that ends it."""
    path = Path(beside).with_name(name)
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)

    def end() -> None:
        if path.exists():
            subprocess.run(["umount", "--lazy", str(path)], check=True)
            path.unlink()

    try:
        yield str(path), end
    finally:
        end()


def sweep_another(live: LiveNode, beside: str) -> None:
    """Wait until another attachment that is proven dead is swept: then every dead one was seen twice, far enough apart."""
    network, name = live.network(name="another"), container(0xDEAD)
    network["host"]["bridge"]["bridgeName"] = "br-another"
    with mortal_sandbox(beside, "cni-another") as (path, end):
        succeeded(live.run("ADD", network, path, name))
        end()
    swept = live.done("removed-sandbox-gone")
    wait_until(lambda: (live.reconcile(), live.done("removed-sandbox-gone") > swept)[1], what="the end of another attachment")


def add_client_port(switch: Switch, bridge: str, name: str, marks: Mapping[str, str]) -> None:
    """A port that is not ours, with these external_ids."""
    columns = [f"external_ids:{key}={json.dumps(value)}" for key, value in {"mine": "1", **marks}.items()]
    add = ["add-port", bridge, name, "--", "set", "Interface", name, "type=dpdkvhostuserclient", *columns]
    switch.vsctl("--no-wait", *add, "--", "set", "Port", name, *columns)


def add_bridge(switch: Switch, name: str) -> None:
    switch.vsctl("--no-wait", "add-br", name, "--", "set", "Bridge", name, "datapath_type=netdev", "external_ids:mine=1")


@contextmanager
def in_memory(directory: Path) -> Iterator[None]:
    """A directory with a file system of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "none", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def check(live: LiveNode, network: Mapping[str, Any], result: Mapping[str, Any], sandbox: str, name: str, ifname: str) -> bool:
    """Whether CHECK passes."""
    return live.run("CHECK", {**network, "prevResult": result}, sandbox, name, ifname).status == 0


def test_vswitchd_dies(live: LiveNode, sandbox: str) -> None:
    """STATUS and readyz report it; after a restart, client ports come back by themselves and server sockets are placed again.

    In the default directory they are placed by a link, in an emptyDir in memory by a mount.
    """
    switch, pod = switch_of(live), Pod()
    live.start()
    volume = live.empty_dir(pod.uid)
    with in_memory(volume):
        succeeded(live.run("ADD", live.network(), sandbox))
        succeeded(live.run("ADD", serving(live), sandbox, container(1)))
        succeeded(live.run("ADD", serving(live), sandbox, container(2), CNI_ARGS=pod.args))
        placed = [live.shared / container(1)[:12] / port_of(container(1)), volume / port_of(container(2))]
        before, names = rows_of(switch), open_ports(switch)
        uuids = {name: switch.interface(name)["_uuid"] for name in names}
        switch.kill_vswitchd()
        try:
            refused(live.run("STATUS", live.network()), 51, "ovs-vswitchd is dead")
            status, page = live.page("/readyz")
            assert (status, "ovs-vswitchd is dead" in page["problems"][0]) == (503, True)
            assert live.page("/healthz")[0] == 200
            refused(live.run("ADD", live.network(), sandbox, container(3)), 11, "ovs-vswitchd is dead")
            assert len(live.states()) == 3
            assert not any(map(connects, placed))
            assert sum(each["socket_dead"] for each in live.page("/api/v1/attachments")[1]) == 2
            live.tick()
            assert [live.metric("socket_dead", port=port_of(container(number))) for number in (1, 2)] == [1, 1]
        finally:
            switch.restart_vswitchd()
        wait_until(lambda: open_ports(switch) == names, RESTART_S, "the ports")
        wait_until(lambda: all(map(connects, placed)), RESTART_S, "the sockets")
        wait_until(lambda: live.done("again-placed-socket") >= 2, what="both to be counted")
        wait_until(lambda: live.metric("socket_dead") == 0, RESTART_S, "no dead socket")
        assert live.done("again-port") == 0
        assert rows_of(switch) == before
        assert {name: switch.interface(name)["_uuid"] for name in names} == uuids
        wait_until(lambda: live.run("STATUS", live.network()).status == 0, what="STATUS")
        status, page = live.page("/readyz")
        assert (status, page["problems"]) == (200, [])
        for name in (CONTAINER, container(1)):
            succeeded(live.run("DEL", live.network(), sandbox, name))
        succeeded(live.run("DEL", live.network(), sandbox, container(2), CNI_ARGS=pod.args))
        assert switch.bridges() == []
        assert list(volume.iterdir()) == []


def test_vswitchd_restarts_without_an_agent(live: LiveNode, sandbox: str) -> None:
    """An agent that starts repairs what happened to the switch in its absence."""
    live.start()
    succeeded(live.run("ADD", serving(live), sandbox))
    live.kill()
    switch_of(live).restart_vswitchd()
    placed = live.shared / CONTAINER[:12] / port_of()
    assert not connects(placed)
    live.start()
    wait_until(lambda: connects(placed), RESTART_S, "the socket")
    succeeded(live.run("DEL", serving(live), sandbox))
    live.require_clean()


def every_kind(live: LiveNode) -> list[tuple[dict[str, Any], str, str]]:
    """Networks of several bridges with every column that a network can set, each with a container and an interface."""
    access, trunk, plain = (live.network("1.0.0", ipam=live.host_local()) for _ in range(3))
    access["host"] |= {"mtu": 1450, "bridge": {"bridgeName": "br-one", "vlanId": 100}}
    trunk["host"] |= {"bridge": {"bridgeName": "br-two", "trunks": [{"id": 10}, {"minID": 20, "maxID": 22}], "vlanMode": "trunk"}}
    plain["host"] |= {"mac": "02:00:00:00:00:07"}
    server, tagged = serving(live, version="1.0.0"), serving(live, version="1.0.0")
    tagged["host"] |= {"mtu": 2000, "bridge": {"bridgeName": "br-two", "vlanId": 7}}
    return [
        (access, CONTAINER, "net1"),
        (trunk, CONTAINER, "net2"),
        (plain, container(1), "net1"),
        (server, container(2), "net1"),
        (tagged, container(2), "net2"),
    ]


@pytest.mark.parametrize("agent", ["running", "away"])
def test_database_recreated(live: LiveNode, sandbox: str, agent: str) -> None:
    """After the database was emptied, every port comes back on its bridge with the same options, columns and marks."""
    switch = switch_of(live)
    live.start()
    kinds = every_kind(live)
    results = [succeeded(live.run("ADD", network, sandbox, name, ifname)) for network, name, ifname in kinds]
    before, names = rows_of(switch), open_ports(switch)
    assert len(names) == len(kinds)
    kept = records(live)
    if agent == "away":
        live.kill()
    switch.recreate_database()
    if agent == "away":
        live.start()
    wait_until(lambda: open_ports(switch) == names, RESTART_S, "the ports")
    wait_until(lambda: rows_of(switch) == before, what="the same rows")
    assert records(live) == kept
    live.await_done("again-port", len(kinds))
    for (network, name, ifname), result in zip(kinds, results, strict=True):
        wait_until(lambda: check(live, network, result, sandbox, name, ifname), what=f"CHECK of {name} {ifname}")  # noqa: B023
    assert connects(live.shared / container(2)[:12] / port_of(container(2)))
    for network, name, ifname in kinds:
        succeeded(live.run("DEL", network, sandbox, name, ifname))
    live.require_clean()


def test_an_administrators_bridge_is_awaited(live: LiveNode, sandbox: str) -> None:
    """A bridge that was not ours is not made in an empty database; its port comes back with the administrator's bridge."""
    switch, theirs, ours = switch_of(live), live.network(), live.network()
    theirs["host"]["bridge"]["bridgeName"] = "br-admin"
    live.start()
    add_bridge(switch, "br-admin")
    succeeded(live.run("ADD", theirs, sandbox))
    succeeded(live.run("ADD", ours, sandbox, container(1)))
    before, names = rows_of(switch), open_ports(switch)
    switch.recreate_database()
    wait_until(lambda: open_ports(switch) == [port_of(container(1))], RESTART_S, "our bridge's port")
    live.tick()
    assert switch.bridges() == ["br-test"]
    assert "bridge br-admin is missing" in live.log.read_text()
    add_bridge(switch, "br-admin")
    wait_until(lambda: open_ports(switch) == names, what="the port on their bridge")
    assert rows_of(switch) == before
    succeeded(live.run("DEL", theirs, sandbox))
    succeeded(live.run("DEL", ours, sandbox, container(1)))
    assert switch.bridges() == ["br-admin"]


def test_ovsdb_server_stops_and_starts(live: LiveNode, sandbox: str) -> None:
    """While it is away STATUS is 50, ADD 11, and DEL succeeds by its record; afterwards a new session finishes the DEL."""
    switch, network = switch_of(live), live.network("1.0.0", ipam=live.host_local())
    live.start()
    for number in (1, 2):
        succeeded(live.run("ADD", network, sandbox, container(number)))
    before = row_of(live, port_of(container(2)))
    assert live.metric("ovsdb_reconnects_total") == 0
    switch.stop_ovsdb()
    try:
        wait_until(lambda: live.page("/readyz")[0] != 200, what="the agent to see it")
        refused(live.run("STATUS", live.network()), 50)
        status, page = live.page("/readyz")
        assert (status, "OVSDB" in page["problems"][0]) == (503, True)
        refused(live.run("ADD", network, sandbox, container(3)), 11, "OVSDB")
        succeeded(live.run("DEL", network, sandbox, container(1)))
        assert len(list(live.ipam_dir.rglob("10.56.*"))) == 1
        assert sorted(live.states()) == ["deleting", "ready"]
        live.tick()
    finally:
        switch.restart_ovsdb()
    wait_until(lambda: live.metric("ovsdb_reconnects_total") == 1, RESTART_S, "a new session")
    wait_until(lambda: switch.ports("br-test") == [port_of(container(2))], what="the end of the deleted port")
    assert row_of(live, port_of(container(2))) == before
    wait_until(lambda: live.run("STATUS", live.network()).status == 0, what="STATUS")
    succeeded(live.run("ADD", network, sandbox, container(3)))
    for number in (2, 3):
        succeeded(live.run("DEL", network, sandbox, container(number)))
    live.await_clean()
    assert live.done("again-port") == 0


def test_started_before_the_database(live: LiveNode, sandbox: str) -> None:
    """An agent that finds no OVSDB serves all the same: DEL succeeds, and is finished when OVSDB comes."""
    switch, network = switch_of(live), live.network("1.0.0", ipam=live.host_local())
    live.start()
    for number in (1, 2):
        succeeded(live.run("ADD", network, sandbox, container(number)))
    before = row_of(live, port_of(container(2)))
    live.kill()
    switch.stop_ovsdb()
    try:
        live.start()
        assert live.page("/healthz")[0] == 200
        assert live.page("/readyz")[0] == 503
        refused(live.run("STATUS", live.network()), 50)
        refused(live.run("ADD", network, sandbox, container(3)), 11)
        succeeded(live.run("DEL", network, sandbox, container(1)))
        assert len(live.page("/api/v1/attachments")[1]) == 2
        assert live.metric("build_info") == 1
    finally:
        switch.restart_ovsdb()
    wait_until(lambda: switch.ports("br-test") == [port_of(container(2))], RESTART_S, "the end of the deleted port")
    assert row_of(live, port_of(container(2))) == before
    assert live.metric("ovsdb_reconnects_total") == 0
    wait_until(lambda: live.page("/readyz")[0] == 200, what="readyz")
    succeeded(live.run("DEL", network, sandbox, container(2)))
    live.await_clean()


@pytest.mark.parametrize("mode", ["client", "server"])
def test_reboot(live: LiveNode, sandbox: str, mode: str) -> None:
    """An agent's start removes what an earlier boot made, of which rows and records exist, but no mounts and sockets."""
    network = live.network("1.0.0", ipam=live.host_local())
    network["host"]["vhost"]["mode"] = mode
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    succeeded(live.run("ADD", network, sandbox, container(1)))
    live.kill()
    journal = Journal(str(live.state), f"{live.directory}/run", print, boot_id)
    record = journal.read(CONTAINER, "net1")
    assert record
    journal.write(replace(record, boot_id=EARLIER_BOOT))
    for point in mounts_below(live.directory):
        if CONTAINER[:12] in point:
            subprocess.run(["umount", point], check=True)
    live.start()
    wait_until(lambda: len(live.states()) == 1, what="the end of the earlier boot's attachment")
    live.await_done("removed-rebooted", 1)
    assert switch_of(live).ports("br-test") == [port_of(container(1))]
    assert len(live.leftovers()["leases"]) == 1
    succeeded(live.run("DEL", network, sandbox, container(1)))
    live.await_clean()


def test_sandbox_is_gone(live: LiveNode, sandbox: str) -> None:
    """An attachment whose DEL never comes is removed when its namespace was missing twice, and no other one."""
    live.start()
    network = live.network("1.0.0", ipam=live.host_local())
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", network, path))
        succeeded(live.run("ADD", network, sandbox, container(1)))
        sweep_another(live, sandbox)
        assert len(live.states()) == 2
        end()
    wait_until(lambda: len(live.states()) == 1, what="the end of the dead one's attachment")
    live.await_done("removed-sandbox-gone", 2)
    assert switch_of(live).ports("br-test") == [port_of(container(1))]
    succeeded(live.run("DEL", network, sandbox, container(1)))
    live.await_clean()


def test_one_look_is_not_enough(live: LiveNode, sandbox: str) -> None:
    """However often a pass is asked for, an attachment stays that was not seen dead half a tick ago."""
    live.settings["USERSPACE_CNI_TICK_S"] = "1000"
    live.start()
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", live.network(), path))
        end()
    live.tick(5)
    assert switch_of(live).ports("br-test") == [port_of()]
    succeeded(live.run("DEL", live.network(), path))
    live.require_clean()


def test_pod_is_there_still(live: LiveNode, sandbox: str) -> None:
    """A pod whose namespace is gone keeps its ports while the kubelet has its directory; without both they are removed."""
    live.start()
    pod = Pod()
    live.empty_dir(pod.uid)
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", live.network(), path, CNI_ARGS=pod.args))
        end()
    sweep_another(live, sandbox)
    assert switch_of(live).ports("br-test") == [port_of()]
    shutil.rmtree(live.kubelet / "pods" / pod.uid)
    wait_until(lambda: switch_of(live).bridges() == [], what="the end of the port")
    live.await_clean()


def test_the_pod_has_another_sandbox(live: LiveNode, sandbox: str) -> None:
    """A runtime that forgot a sandbox sends no DEL for it: its attachment is removed though the pod lives on in another one."""
    live.start()
    pod = Pod()
    live.empty_dir(pod.uid)
    network = live.network("1.0.0", ipam=live.host_local())
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", network, path, CNI_ARGS=pod.args))
        succeeded(live.run("ADD", network, sandbox, container(1), CNI_ARGS=pod.args))
        end()
    wait_until(lambda: len(live.states()) == 1, what="the end of the dead one's attachment")
    assert switch_of(live).ports("br-test") == [port_of(container(1))]
    assert len(live.leftovers()["leases"]) == 1
    succeeded(live.run("DEL", network, sandbox, container(1), CNI_ARGS=pod.args))
    live.await_clean()


def test_a_gone_sandbox_does_not_keep_its_pod(live: LiveNode, sandbox: str) -> None:
    """Our mount keeps the kubelet from removing a volume on another device, and only the volume's end shows that the pod is gone.

    So when a namespace was missing twice, the mounts go first; record, port and lease go with the pod, if no other sandbox of it
    has the interface. What that one needs stays.
    """
    live.settings["USERSPACE_CNI_TICK_S"] = "10000"
    live.settings["USERSPACE_CNI_MOUNT_POD_DIRS"] = "always"
    live.start(APART_S=0.5)
    pod, network = Pod(), live.network("1.0.0", ipam=live.host_local())
    volume = live.empty_dir(pod.uid)
    with in_memory(volume), mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", network, path, CNI_ARGS=pod.args))
        succeeded(live.run("ADD", serving(live), path, CNI_ARGS=pod.args, ifname="net2"))
        succeeded(live.run("ADD", serving(live), sandbox, container(1), "net3", CNI_ARGS=pod.args))
        succeeded(live.run("ADD", live.network(), sandbox, container(2), "net3", CNI_ARGS=pod.args))
        first, second = volume / port_of(ifname="net2"), volume / port_of(container(1), "net3")
        assert {str(first), str(second)} <= set(mounts_below(live.directory))
        assert live.reconcile() == {}
        end()
        assert live.reconcile() == {}
        wait_until(live.reconcile, what="the second look")
        assert live.done("removed-namespace-gone") == 1
        assert connects(second)
        assert not first.exists()
        assert mounts_below(live.short)
        assert len(live.states()) == 4
        assert len(switch_of(live).ports("br-test")) == 4
        assert live.reconcile() == {}
        for name in (container(1), container(2)):
            succeeded(live.run("DEL", live.network(), sandbox, name, "net3"))
        wait_until(live.reconcile, what="the second look at the mount that is needed no more")
        assert not mounts_below(live.short)
        assert [point for point in mounts_below(live.directory) if point != str(volume)] == []
        assert len(live.states()) == 2
    shutil.rmtree(live.kubelet / "pods" / pod.uid)
    live.reconcile()
    wait_until(lambda: live.reconcile() or not live.states(), what="the end of the pod's attachments")
    live.await_clean()


@pytest.mark.parametrize("mode", ["client", "server"])
def test_record_is_lost(live: LiveNode, sandbox: str, mode: str) -> None:
    """While the sandbox lives the port stays; when the sandbox is gone, too, port, directory, mount and socket are removed."""
    live.start()
    network = live.network()
    network["host"]["vhost"]["mode"] = mode
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", network, path))
        succeeded(live.run("ADD", network, path, container(1)))
        before = row_of(live)
        forget_record(live)
        sweep_another(live, sandbox)
        assert row_of(live) == before
        end()
    live.await_clean()
    live.await_done("removed-record-lost", 1)
    live.await_done("removed-sandbox-gone", 2)


def test_torn_record(live: LiveNode, sandbox: str) -> None:
    """A record that cannot be read is moved aside, its port stays with the sandbox, and the runtime's DEL removes it."""
    live.start()
    succeeded(live.run("ADD", live.network(), sandbox))
    before = row_of(live)
    [path] = (live.state / "attachments").glob("*.json")
    path.write_text('{"torn')
    sweep_another(live, sandbox)
    assert row_of(live) == before
    assert len(list((live.state / "quarantine").iterdir())) == 1
    assert live.page("/readyz")[0] == 200
    succeeded(live.run("DEL", live.network(), sandbox))
    live.await_clean()


def test_ports_of_others(live: LiveNode, sandbox: str) -> None:
    """Unmarked ports, another store's, and an administrator's bridge are not changed by any pass or restart."""
    switch = switch_of(live)
    live.start()
    network = live.network()
    network["host"]["bridge"]["bridgeName"] = "br-admin"
    add_bridge(switch, "br-admin")
    with mortal_sandbox(sandbox) as (path, end):
        succeeded(live.run("ADD", network, path))
        marks = {**switch.interface(port_of())["external_ids"], "store": "another", "container-id": "f" * 64}
        end()
    add_client_port(switch, "br-admin", "unmarked", {})
    add_client_port(switch, "br-admin", "foreign", marks)
    wait_until(lambda: switch.ports("br-admin") == ["foreign", "unmarked"], what="the end of ours")
    before = rows_of(switch)
    for lines in (1, 2):
        sweep_another(live, sandbox)
        assert rows_of(switch) == before
        assert live.log.read_text().count(FOREIGN) == lines
        assert live.metric("reconcile_actions_total") == live.done("removed-sandbox-gone")
        live.kill()
        live.start()
    assert records(live) == []


def test_a_port_somebody_deleted(live: LiveNode, sandbox: str) -> None:
    """A port that was removed by hand is made again, with its mount if that is gone, too."""
    live.start()
    switch, network = switch_of(live), live.network()
    network["host"]["bridge"] |= {"vlanId": 5}
    result = succeeded(live.run("ADD", network, sandbox))
    before = rows_of(switch)
    switch.vsctl("--no-wait", "del-port", port_of())
    for point in mounts_below(live.short):
        subprocess.run(["umount", point], check=True)
    actions = live.reconcile()
    assert set(actions) <= {"again-port", "again-pod-mount"}
    wait_until(lambda: check(live, network, result, sandbox, CONTAINER, "net1"), what="a good CHECK")
    assert rows_of(switch) == before
    live.await_done("again-port", 1)
    live.await_done("again-pod-mount", 1)
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()
