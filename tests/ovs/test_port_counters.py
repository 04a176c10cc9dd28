"""Counters of a real switch, for our ports alone, asked of ovs-vswitchd or OVSDB; either may hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.cni.spec import paused_ovsdb
from tests.lab.switch.proxy import Proxy
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import BRIDGE, CLIENT, add_bridge, add_port
from userspace_cni.agent.agent_metrics import AgentMetrics
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener, FrontEndOptions
from userspace_cni.switch.ovsdb.switch_database import switch_client
from userspace_cni.switch.ports import PortDriver

OURS = "external_ids:owner=userspace-cni"
SECONDS = 60.0
FRAME = bytes.fromhex("02000000000202000000000188b5") + bytes(86)
SENT = 50
MANY = 400


@pytest.fixture
def resident(switch: Switch, connect: Callable[..., PortDriver]) -> PortDriver:
    driver = connect(switch, resident=True)
    driver.connect(Deadline.after(SECONDS))
    return driver


@pytest.fixture
def sender(switch: Switch) -> Iterator[FrontEnd]:
    """An application connected to our port `sender`, the first port of the bridge."""
    add_bridge(switch)
    with ExitStack() as stack:
        listener = stack.enter_context(closing(FrontEndListener(f"{switch.rundir}/sender", FrontEndOptions())))
        mark(switch, "sender")
        yield stack.enter_context(closing(listener.accept()))


def mark(switch: Switch, name: str) -> None:
    """Add a client port with our marks."""
    marks = [OURS, "external_ids:container-id=c0ffee", f"external_ids:pod-name=pod-{name}"]
    add_port(switch, name, CLIENT, *marks, "--", "set", "Port", name, *marks)


def sent(driver: PortDriver) -> int:
    """Frames that the switch has counted at the port of `sender`."""
    found = {each.name: each.statistics for each in driver.read_counters(Deadline.after(SECONDS))}
    return found["sender"].get("rx_packets", 0)


def send(sender: FrontEnd) -> None:
    """Send SENT frames; the switch receives and counts them soon after this returns."""
    pair = sender.pairs[0]
    for _ in range(SENT):
        wait_until(lambda: pair.send_frames([FRAME]), SECONDS, "room for a frame")


def driver_of(switch: Switch, remote: str) -> PortDriver:
    """A driver that has no session yet."""
    return PortDriver(switch_client(remote), switch.rundir, lambda: "5707e")


@pytest.mark.parametrize("remote_of", [lambda switch: switch.ovsdb, Switch.listen_tcp], ids=["unix", "tcp"])
def test_our_ports_alone(switch: Switch, remote_of: Callable[[Switch], str]) -> None:
    """Ports with our mark are reported with their marks; an administrator's and another program's are not."""
    add_bridge(switch)
    add_port(switch, "ours", CLIENT, OURS, "external_ids:container-id=c0ffee", 'external_ids:pod-name="a\\"b{é"')
    add_port(switch, "unmarked", CLIENT)
    add_port(switch, "theirs", CLIENT, "external_ids:owner=another")
    driver = driver_of(switch, remote_of(switch))
    [counted] = driver.read_counters(Deadline.after(SECONDS))
    assert counted.name == "ours"
    assert counted.marks == {"owner": "userspace-cni", "container-id": "c0ffee", "pod-name": 'a"b{é'}
    assert all(isinstance(number, int) for number in counted.statistics.values())
    switch.vsctl("del-br", "br-fast")
    assert driver.read_counters(Deadline.after(SECONDS)) == []
    assert driver.sessions == 1
    driver.close()


def test_statistics_are_read_and_not_replicated(switch: Switch, tmp_path: Path) -> None:
    """If OVSDB is asked for counters, that is one request in the open session; no counters are replicated."""
    add_bridge(switch)
    mark(switch, "ours")
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        driver = PortDriver(switch_client(proxy.remote, resident=True), str(tmp_path), lambda: "5707e")
        driver.connect(Deadline.after(SECONDS))
        assert b"statistics" not in proxy.sent
        assert [each.name for each in driver.read_counters(Deadline.after(SECONDS))] == ["ours"]
        assert proxy.sent.count(b'"statistics"') == proxy.sent.count(b'"transact"') == 1
        received = proxy.received.count(b'"statistics"')
        mark(switch, "second")
        wait_until(lambda: len(driver.list_owned()) == 2, SECONDS, "the second port is known")
        assert proxy.received.count(b'"statistics"') == received
        assert driver.sessions == 1
        driver.close()


def test_a_database_that_hangs(switch: Switch) -> None:
    """The request ends at the deadline, and the database answers when it runs again; neither leaves a descriptor."""
    driver = driver_of(switch, switch.ovsdb)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with paused_ovsdb(switch), pytest.raises(Unavailable, match="does not answer"):
        driver.read_counters(Deadline.after(0.2))
    assert driver.read_counters(Deadline.after(SECONDS)) == []
    driver.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_database_of_something_else(switch: Switch) -> None:
    """The error names a control socket of ovs-vswitchd, which speaks JSON-RPC too, but is no database."""
    control = f"unix:{switch.rundir}/ovs-vswitchd.{switch.vswitchd_pid}.ctl"
    with pytest.raises(Unavailable, match="OVSDB at unix:"):
        driver_of(switch, control).read_counters(Deadline.after(1))


@pytest.mark.parametrize("versions", ["", "OpenFlow10", "OpenFlow12", "OpenFlow13,OpenFlow15"])
def test_counters_are_of_this_moment(switch: Switch, resident: PortDriver, sender: FrontEnd, versions: str) -> None:
    """ovs-vswitchd is asked, in any common OpenFlow version, even while OVSDB hangs; OVSDB has the same numbers seconds later."""
    switch.vsctl("set", "Bridge", BRIDGE, f"protocols={versions or '[]'}")
    send(sender)
    wait_until(lambda: switch.interface("sender")["ofport"], what="the port open")
    wait_until(lambda: sent(resident) == SENT, SECONDS, "the frames counted")
    with paused_ovsdb(switch):
        [counted] = resident.read_counters(Deadline.after(SECONDS))
    assert counted.marks == {"owner": "userspace-cni", "container-id": "c0ffee", "pod-name": "pod-sender"}
    switch.write_statistics()
    wait_until(lambda: switch.interface("sender")["statistics"].get("rx_packets") == SENT, SECONDS, "the frames in OVSDB")
    told = switch.interface("sender")["statistics"]
    wanted = [f"{way}_{what}" for way in ("rx", "tx") for what in ("packets", "bytes", "dropped", "errors")]
    assert counted.statistics == {name: told[name] for name in wanted if name in told}


def test_a_bridge_of_other_versions(switch: Switch, resident: PortDriver, sender: FrontEnd) -> None:
    """If the bridge allows no OpenFlow version of ours, OVSDB is asked."""
    switch.vsctl("set", "Bridge", BRIDGE, "protocols=OpenFlow15")
    send(sender)
    switch.write_statistics()
    wait_until(lambda: sent(resident) == SENT, SECONDS, "the frames counted")
    with paused_ovsdb(switch), pytest.raises(Unavailable, match="does not answer"):
        resident.read_counters(Deadline.after(0.2))


def test_a_run_directory_without_bridges(switch: Switch, sender: FrontEnd, tmp_path: Path) -> None:
    """If ovs-vswitchd cannot be reached, OVSDB is asked."""
    driver = PortDriver(switch_client(switch.ovsdb, resident=True), str(tmp_path), lambda: "5707e")
    driver.connect(Deadline.after(SECONDS))
    send(sender)
    switch.write_statistics()
    wait_until(lambda: sent(driver) == SENT, SECONDS, "the frames counted")
    driver.close()


def test_a_daemon_that_hangs(switch: Switch, resident: PortDriver, sender: FrontEnd) -> None:
    """The request ends at the deadline, and does not fall back to OVSDB's old numbers. No descriptor is left."""
    assert sender.is_alive()
    wait_until(lambda: len(resident.read_counters(Deadline.after(SECONDS))) == 1, SECONDS, "the port counted")
    before = len(list(Path("/proc/self/fd").iterdir()))
    switch.pause_vswitchd()
    try:
        with pytest.raises(Unavailable, match="no answer in time"):
            resident.read_counters(Deadline.after(0.2))
    finally:
        switch.resume_vswitchd()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(resident.read_counters(Deadline.after(SECONDS))) == 1


class TestManyPorts:
    """On a switch of the test's own, because the next test would wait until the switch has deleted so many ports."""

    @pytest.fixture
    def switch(self, own_switch: Switch) -> Switch:
        return own_switch

    def test_many_ports(self, switch: Switch, resident: PortDriver, sender: FrontEnd) -> None:
        """Among four hundred ports, the one with an application has its counters on the page under its pod's name."""
        send(sender)
        wait_until(lambda: sent(resident) == SENT, SECONDS, "the frames counted")
        names = [f"many{number}" for number in range(MANY)]
        marks = [OURS, "external_ids:container-id=c0ffee", "external_ids:pod-name=another"]
        words = []
        for name in names:
            words += ["--", "add-port", BRIDGE, name, "--", "set", "Port", name, *marks]
            path = f"options:vhost-server-path={switch.rundir}/{name}"
            words += ["--", "set", "Interface", name, f"type={CLIENT}", path, *marks]
        switch.vsctl(*words)
        wait_until(lambda: len(resident.read_counters(Deadline.after(SECONDS))) == MANY + 1, SECONDS, "all ports counted")
        assert sent(resident) == SENT
        page = AgentMetrics(resident.list_ports, {}, lambda: resident.read_counters(Deadline.after(SECONDS))).render().decode()
        [line] = [line for line in page.splitlines() if line.startswith("userspace_cni_port_rx_packets_total{")]
        assert 'port="sender"' in line
        assert 'pod="pod-sender"' in line
        assert line.endswith(f" {SENT}")
        assert sum(line.startswith("userspace_cni_vhost_connected{") for line in page.splitlines()) == MANY + 1
        switch.vsctl("del-port", BRIDGE, names[0])
        wait_until(lambda: len(resident.read_counters(Deadline.after(SECONDS))) == MANY, SECONDS, "the deleted port gone")
        switch.kill_vswitchd()  # else it deletes them one by one, for seconds


def test_what_is_known_of_a_port_follows_its_rows(switch: Switch, resident: PortDriver) -> None:
    """Cached facts of a port (owner, state, bridge, existence) are read again when its rows change."""

    def known() -> list[tuple[str, str, bool, bool]]:
        return [(each.name, each.bridge, each.ours, each.ofport > 0) for each in resident.list_ports()]

    add_bridge(switch)
    mark(switch, "vhost-a")
    wait_until(lambda: known() == [("vhost-a", BRIDGE, True, True)], SECONDS, "the port open")
    switch.vsctl("--no-wait", "remove", "Port", "vhost-a", "external_ids", "owner")
    wait_until(lambda: known() == [("vhost-a", BRIDGE, False, True)], SECONDS, "another owner")
    uuid = switch.port("vhost-a")["_uuid"]
    switch.pause_vswitchd()
    try:
        switch.vsctl("--no-wait", "--id=@b", "create", "Bridge", "name=br-2", "--", "add", "Open_vSwitch", ".", "bridges", "@b")
        switch.vsctl("--no-wait", "add", "Bridge", "br-2", "ports", uuid, "--", "remove", "Bridge", BRIDGE, "ports", uuid)
        wait_until(lambda: known() == [("vhost-a", "br-2", False, True)], SECONDS, "the port on another bridge")
        switch.vsctl("--no-wait", "clear", "Bridge", "br-2", "ports")
        wait_until(lambda: known() == [], SECONDS, "no port")
    finally:
        switch.resume_vswitchd()
