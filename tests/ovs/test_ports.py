"""Apply, check and undo of ports, compared with what ovs-vsctl shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.node.ports import changed
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import STORE, attach
from userspace_cni.attachment.drift import Absent
from userspace_cni.attachment.steps import OvsPort, PortRef, VhostUserClient
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NameTaken, NotServing, SwitchRefused
from userspace_cni.switch.ports import PortDriver
from userspace_cni.switch.switch_view import FoundPort

MakePort = Callable[..., OvsPort]


class NoSuchType(VhostUserClient):
    """An interface that ovs-vswitchd cannot open."""

    type = "nosuchtype"  # type: ignore[assignment]


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


def with_marks(step: OvsPort) -> PortRef:
    """The reference by which the port is found."""
    return replace(step.ref, marks={"owner": "userspace-cni", "owner-kind": "pod", "schema": "1", "store": STORE, **step.marks})


def test_a_port_is_opened_on_a_bridge_made_on_demand(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A missing bridge is made as netdev with our mark and a local port, and the interface is open when apply returns."""
    step = port()
    attach(driver, step, soon())
    bridge, interface = switch.bridge("br-test"), switch.interface(step.name)
    assert (bridge["datapath_type"], bridge["external_ids"]) == ("netdev", {"owner": "userspace-cni", "owner-kind": "pod"})
    assert switch.interface("br-test")["type"] == "internal"
    assert switch.ports("br-test") == [step.name]
    assert interface["ofport"] > 0
    assert interface["error"] == []
    assert interface["options"] == {"vhost-server-path": step.server_path}
    assert interface["external_ids"] == with_marks(step).marks


@pytest.mark.parametrize(
    "changes",
    [
        {"tag": 100},
        {"tag": 0},
        {"trunks": (10, 20, 4095)},
        {"trunks": (7,), "tag": 5, "vlan_mode": "native-untagged"},
        {"vlan_mode": "access", "tag": 4095},
        {"mtu": 9000},
        {"mac": "02:aa:bb:cc:dd:ee"},
        {"interface_type": "dpdkvhostuser", "server_path": ""},
    ],
    ids=str,
)
def test_every_property_is_written_and_read_back(driver: PortDriver, port: MakePort, changes: dict[str, object]) -> None:
    """A port with the property is made, CHECK finds no difference, and the rows have the marks by which they are deleted."""
    step = port(**changes)
    attach(driver, step, soon())
    assert driver.check(step, soon()) == []
    assert driver.list_marked(soon()) == [with_marks(step)]


def test_properties_reach_the_columns_of_ovs(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Tag, trunks, VLAN mode, MTU and MAC are in the columns that ovs-vswitchd.conf.db(5) names."""
    step = port(tag=5, trunks=(8, 7), vlan_mode="native-tagged", mtu=1600, mac="02:00:00:00:00:01")
    attach(driver, step, soon())
    row, interface = switch.port(step.name), switch.interface(step.name)
    assert (row["tag"], row["trunks"], row["vlan_mode"]) == (5, [7, 8], "native-tagged")
    assert interface["mtu_request"] == 1600
    assert interface["external_ids"]["attached-mac"] == "02:00:00:00:00:01"


def test_a_server_port_makes_its_socket(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """When apply of a dpdkvhostuser port returns, OVS has bound the socket of that name."""
    step = port(interface_type="dpdkvhostuser", server_path="")
    attach(driver, step, soon())
    assert Path(switch.rundir, step.name).is_socket()
    driver.undo(step, soon())
    wait_until(lambda: not Path(switch.rundir, step.name).exists(), what="ovs-vswitchd removes the socket")


def test_apply_again_changes_nothing_and_another_value_is_written(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Apply of the same attachment keeps its rows, and brings columns and marks up to date without losing foreign keys."""
    step = port(tag=5)
    attach(driver, step, soon())
    before = switch.port(step.name)["_uuid"]
    switch.vsctl("--no-wait", "set", "Interface", step.name, "external_ids:iface-id=lsp1", "options:tx-retries-max=3")
    attach(driver, step, soon())
    attach(driver, changed(step, tag=None, mtu=1400, server_path=step.server_path + "x"), soon())
    row, interface = switch.port(step.name), switch.interface(step.name)
    assert (row["_uuid"], row["tag"], interface["mtu_request"]) == (before, [], 1400)
    assert interface["options"] == {"vhost-server-path": step.server_path + "x", "tx-retries-max": "3"}
    assert interface["external_ids"]["iface-id"] == "lsp1"


def test_undo_deletes_the_port_and_our_bridge_with_its_last_port(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """The bridge that we made stays while it has a port, and goes with the last one."""
    for step in (port(1), port(2)):
        attach(driver, step, soon())
    driver.undo(port(1), soon())
    assert switch.ports("br-test") == [port(2).name]
    driver.undo(port(2), soon())
    assert switch.bridges() == []
    assert switch.rows("Port") == []
    assert switch.rows("Interface") == []


def test_undo_of_what_is_absent_succeeds(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A second undo, and an undo of what was never made, succeed."""
    driver.undo(port(), soon())
    attach(driver, port(), soon())
    driver.undo(port(), soon())
    driver.undo(port(), soon())
    assert switch.bridges() == []


def test_an_administrators_bridge_is_never_deleted_nor_changed(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A bridge without our mark keeps its columns, whether our port comes or goes."""
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev", "fail_mode=secure")
    before = switch.bridge("br-test")
    attach(driver, port(), soon())
    driver.undo(port(), soon())
    after = switch.bridge("br-test")
    assert {key: after[key] for key in ("_uuid", "ports", "external_ids", "fail_mode", "datapath_type")} == {
        key: before[key] for key in ("_uuid", "ports", "external_ids", "fail_mode", "datapath_type")
    }


@pytest.mark.parametrize("kind", ["system", ""])
def test_a_bridge_of_another_datapath_type_is_refused(switch: Switch, driver: PortDriver, port: MakePort, kind: str) -> None:
    """No row is written to a bridge whose datapath_type is not netdev, and the message names bridge and value."""
    switch.vsctl("--no-wait", "add-br", "br-test", "--", "set", "Bridge", "br-test", f'datapath_type="{kind}"')
    with pytest.raises(SwitchRefused, match=r"br-test.*system"):
        attach(driver, port(), soon())
    assert switch.ports("br-test") == []
    with pytest.raises(NotServing, match=r"br-test.*system") as refused:
        driver.require_serving("br-test", soon())
    assert refused.value.code == 50


def test_what_ovs_reports_after_the_commit_is_an_error(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A commit succeeds though the interface cannot be opened: only the read-back shows OVS's error; the rows stay."""
    step = replace(port(), interface=NoSuchType("/nowhere"))
    with pytest.raises(SwitchRefused, match="could not open network device"):
        attach(driver, step, soon())
    assert switch.interface(step.name)["ofport"] == -1
    [drift] = driver.check(step, soon())
    assert (drift.subject, drift.field) == (f"port {step.name}", "state")
    assert (drift.expected, drift.found) == ("an open interface", switch.interface(step.name)["error"])
    driver.undo(step, soon())
    assert switch.bridges() == []


def test_a_value_that_ovsdb_rejects_is_an_error(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A tag out of range fails with ovsdb-server's own reason, and nothing is left."""
    with pytest.raises(SwitchRefused, match=r"constraint violation.*4097"):
        attach(driver, port(tag=4097), soon())
    assert switch.bridges() == []


def test_ovs_takes_an_mtu_that_it_cannot_serve(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A fact of OVS 3.1: it logs "unsupported MTU" and reports no error, so that apply cannot know."""
    attach(driver, port(mtu=20000), soon())
    assert switch.interface(port().name)["error"] == []
    log = switch.dir / "ovs-vswitchd.log"  # which a thread of its own writes
    wait_until(lambda: "unsupported MTU 20000" in log.read_text(), what="the line of the log")


def test_a_row_of_another_container_is_not_ours_to_use(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A port of the same name and another container is left as it is by apply and by undo, and its owner is named."""
    theirs = port(marks={"container-id": "other", "network": "dpdk-net", "ifname": "net1"})
    attach(driver, theirs, soon())
    before = switch.port(theirs.name)
    with pytest.raises(NameTaken, match=r"container-id other"):
        attach(driver, port(), soon())
    driver.undo(port(), soon())
    assert switch.port(theirs.name) == before


@pytest.mark.parametrize("key", ["network", "ifname"])
def test_undo_needs_all_marks_to_agree(
    switch: Switch, driver: PortDriver, port: MakePort, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of the same container but of another network or interface is left alone, with a line on stderr."""
    theirs = port(marks={**port().marks, key: "other"})
    attach(driver, theirs, soon())
    driver.undo(port(), soon())
    assert switch.ports("br-test") == [theirs.name]
    said = capsys.readouterr()
    assert said.out == ""
    assert "left alone" in said.err


def test_undo_leaves_rows_of_another_store(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A step that knows its store does not delete the row of another installation; one that does not know it does."""
    attach(driver, port(), soon())
    driver.undo(port(marks={**port().marks, "store": "another"}), soon())
    assert switch.ports("br-test") == [port().name]
    driver.undo(port(), soon())
    assert switch.bridges() == []


def test_an_unmarked_row_is_not_ours(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A port that was made by hand is neither taken over nor deleted."""
    name = port().name
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    switch.vsctl("add-port", "br-test", name, "--", "set", "Interface", name, "type=dpdkvhostuser")
    with pytest.raises(NameTaken, match="does not mark its rows"):
        attach(driver, port(), soon())
    driver.undo(port(), soon())
    assert switch.ports("br-test") == [name]
    assert driver.list_marked(soon()) == []
    assert driver.find(name, soon()) == FoundPort(name, "br-test", "dpdkvhostuser", "", {})


@pytest.mark.parametrize(("kind", "left"), [("dpdkvhostuser", []), ("dpdkvhostuserclient", []), ("internal", ["legacy"])])
def test_a_record_of_the_old_plugin_deletes_only_vhost_ports(
    switch: Switch, driver: PortDriver, kind: str, left: list[str]
) -> None:
    """A legacy step deletes an unmarked port of a vhost-user type and no other; the bridge stays."""
    switch.vsctl("add-br", "br-old", "--", "set", "Bridge", "br-old", "datapath_type=netdev")
    path = f"options:vhost-server-path={switch.rundir}/legacy.sock"
    switch.vsctl("add-port", "br-old", "legacy", "--", "set", "Interface", "legacy", f"type={kind}", path)
    driver.undo(PortRef("legacy", "br-old", legacy=True), soon())
    assert switch.ports("br-old") == left


def test_a_legacy_step_does_not_delete_a_marked_port(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A legacy step, from a record of the former plugin, does not apply to a port with marks."""
    attach(driver, port(), soon())
    driver.undo(replace(port().ref, marks={}, legacy=True), soon())
    assert switch.ports("br-test") == [port().name]


def test_a_port_on_another_bridge_is_refused_and_undone_there(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """The attachment's port on another bridge than the requested one is not moved; undo finds it where it is."""
    attach(driver, port(bridge="br-one"), soon())
    with pytest.raises(NameTaken, match="not on bridge br-two"):
        attach(driver, port(bridge="br-two"), soon())
    assert switch.bridges() == ["br-one"]
    driver.undo(port(bridge="br-two"), soon())
    assert switch.bridges() == []


def test_a_bridge_cannot_have_the_name_of_a_port(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A missing bridge whose name a port has is an error at once, which says so."""
    attach(driver, port(), soon())
    with pytest.raises(NameTaken, match="cannot be made"):
        attach(driver, port(2, bridge=port().name), soon())


def test_the_qos_row_goes_with_the_port(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """When ovs-vsctl deletes a port its QoS row stays; undo deletes it with the port."""
    for step in (port(1), port(2)):
        attach(driver, step, soon())
        policer = ["--id=@qos", "create", "QoS", "type=egress-policer", "other_config:cir=1000", "other_config:cbs=1000"]
        switch.vsctl("--no-wait", "--", *policer, "--", "set", "Port", step.name, "qos=@qos")
    switch.vsctl("--no-wait", "del-port", port(2).name)
    assert len(switch.rows("QoS")) == 2
    kept = [row["_uuid"] for row in switch.rows("QoS") if row["_uuid"] != switch.port(port(1).name)["qos"]]
    driver.undo(port(1), soon())
    assert [row["_uuid"] for row in switch.rows("QoS")] == kept


def test_a_qos_row_of_two_ports_stays_with_the_other(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """The QoS row of another port does not prevent the deletion of the port, and stays."""
    for step in (port(1), port(2)):
        attach(driver, step, soon())
    policer = ["--id=@qos", "create", "QoS", "type=egress-policer", "other_config:cir=1000", "other_config:cbs=1000"]
    switch.vsctl(
        "--no-wait", "--", *policer, "--", "set", "Port", port(1).name, "qos=@qos", "--", "set", "Port", port(2).name, "qos=@qos"
    )
    driver.undo(port(1), soon())
    assert switch.ports("br-test") == [port(2).name]
    assert [row["_uuid"] for row in switch.rows("QoS")] == [switch.port(port(2).name)["qos"]]


def test_check_names_every_difference(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Each changed column is one Drift with its expected and found value."""
    step = port(tag=5, mtu=1500)
    attach(driver, step, soon())
    switch.vsctl("--no-wait", "set", "Port", step.name, "tag=6", "trunks=1,2", "external_ids:network=other")
    switch.vsctl("--no-wait", "set", "Interface", step.name, "options:vhost-server-path=/elsewhere", "mtu_request=1400")
    assert [(drift.field, drift.expected, drift.found) for drift in driver.check(step, soon())] == [
        ("options:vhost-server-path", step.server_path, "/elsewhere"),
        ("tag", 5, 6),
        ("trunks", Absent(), (1, 2)),
        ("mtu_request", 1500, 1400),
        ("Port external_ids:network", "dpdk-net", "other"),
    ]
    [gone] = driver.check(port(2), soon())
    assert (gone.field, gone.expected, gone.found) == ("", "a port on bridge br-test", Absent("none"))


def test_marked_chooses_by_network_container_and_interface(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """Rows with our mark are found by any of their marks, whatever store they are of, and nothing else is."""
    first, second = port(1), port(2, marks={**port(2).marks, "network": "other", "store": "another"})
    for step in (first, second):
        attach(driver, step, soon())
    switch.vsctl("--no-wait", "add-port", "br-test", "foreign", "--", "set", "Interface", "foreign", "type=internal")
    assert [step.name for step in driver.list_marked(soon())] == [first.name, second.name]
    assert driver.list_marked(soon(), network="other") == [with_marks(second)]
    assert driver.list_marked(soon(), container_id=first.marks["container-id"]) == [with_marks(first)]
    assert driver.list_marked(soon(), network="other", ifname="net2") == []
    assert second.marks["store"] == driver.list_marked(soon(), network="other")[0].marks["store"]


def test_vhost_sock_dir_is_what_ovs_has(switch: Switch, driver: PortDriver) -> None:
    """The switch's setting is returned unchanged, or "" without one."""
    assert driver.read_vhost_sock_dir(soon()) == ""
    switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:vhost-sock-dir=sub/dir")
    try:
        assert driver.read_vhost_sock_dir(soon()) == "sub/dir"
    finally:
        switch.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "other_config", "vhost-sock-dir")


def test_serving_writes_nothing(switch: Switch, driver: PortDriver) -> None:
    """STATUS of a healthy switch succeeds with and without the bridge, and leaves the database unchanged."""
    database = switch.dir / "conf.db"
    before = database.read_bytes()
    driver.require_serving("br-none", soon())
    assert database.read_bytes() == before
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    driver.require_serving("br-test", soon())


def test_tcp_serves_as_well(switch: Switch, connect: Callable[..., PortDriver], port: MakePort) -> None:
    """Everything works over tcp:, where the state of ovs-vswitchd is unknown."""
    driver = connect(switch, switch.listen_tcp())
    driver.require_serving("br-test", soon())
    attach(driver, port(), soon())
    assert driver.check(port(), soon()) == []
    driver.undo(port(), soon())
    assert switch.bridges() == []
