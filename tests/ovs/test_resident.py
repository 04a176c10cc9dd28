"""The driver of a long-lived process: what it knows from its replica, and how it notices that its replica is no longer true."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.switch.proxy import Proxy
from tests.lab.switch.switch import FOR_EVER_S, Switch, wait_until
from tests.ovs.conftest import STORE, attach
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base import threads
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Interrupted, NotServing, Unavailable
from userspace_cni.ovsdb import client, groups, replica
from userspace_cni.switch import switch_view, vswitchd
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
Connect = Callable[..., PortDriver]
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
SILENT_S = 0.8
IN_USE = frozenset({"vring_0_size", "vring_1_size", "num_of_vrings", "numa", "socket", "features"})
"""Keys of Interface.status of a vhost-user port while an application is connected."""


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


@pytest.fixture
def resident(switch: Switch, connect: Connect) -> PortDriver:
    driver = connect(switch, resident=True)
    driver.connect(soon())
    return driver


@pytest.fixture
def own(own_switch: Switch, connect: Connect) -> PortDriver:
    driver = connect(own_switch, resident=True)
    driver.connect(soon())
    return driver


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is abandoned after two seconds instead of ten."""
    monkeypatch.setattr(replica, "PROBE_SECONDS", 1.0)


def watch(driver: PortDriver) -> None:
    """See the switch alive, as an agent does all the time: else 30 ms without an answer, on a busy machine, are silence."""
    wait_until(lambda: driver.watch_liveness().state == "alive", what="an answer of ovs-vswitchd")


def refused(driver: PortDriver) -> NotServing:
    """The error of STATUS, which must not wait for an answer: only a first
    glance has a limit here, and a longer look would not end.
    """
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(vswitchd, "ANSWER_SECONDS", FOR_EVER_S)
        limits.setattr(switch_view, "JUDGED_SECONDS", FOR_EVER_S)
        limits.setattr(switch_view, "SERVING_SECONDS", FOR_EVER_S)
        with pytest.raises(NotServing) as caught:
            driver.require_serving("br-test", Deadline.after(FOR_EVER_S))
    return caught.value


@contextmanager
def application(prefix: str, device: str) -> Iterator[None]:
    """An application without hugepages at a port of the switch."""
    argv = ["dpdk-testpmd", "--lcores=0@0,1@0", "--no-pci", "-m", "64", "--no-huge", f"--file-prefix={prefix}"]
    argv += ["--single-file-segments", f"--vdev={device}", "--", "--total-num-mbufs=4096", "--no-mlockall"]
    with subprocess.Popen(argv, stdin=-1, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.communicate(b"\n", timeout=60)


def test_sessions_are_counted(own_switch: Switch, own: PortDriver) -> None:
    """Connecting twice opens one session.

    After a restart of the database the driver is disconnected, and the next session counts.
    """
    own.connect(soon())
    assert (own.connected, own.sessions) == (True, 1)
    own_switch.restart_ovsdb()
    wait_until(lambda: not own.connected, what="the driver noticed")
    own.connect(soon())
    assert (own.connected, own.sessions) == (True, 2)


def test_a_database_that_is_away_is_an_error_with_its_reason(switch: Switch, connect: Connect, tmp_path: Path) -> None:
    """Without a session connect, owned and known raise, and STATUS is 50 at once, with the reason."""
    driver = connect(switch, f"unix:{tmp_path}/no.sock", resident=True)
    assert "has not connected yet" in str(refused(driver))
    for call in (lambda: driver.connect(soon()), driver.list_owned, driver.list_ports):
        with pytest.raises(Unavailable, match=r"no\.sock.*No such file"):
            call()
    assert (driver.connected, driver.sessions) == (False, 0)
    answer = refused(driver)
    assert answer.code == 50
    assert "No such file" in str(answer)


def test_known_facts_cost_no_transaction(switch: Switch, connect: Connect, port: MakePort, tmp_path: Path) -> None:
    """With a session, reach, check, find, marked and STATUS send nothing; only a difference is confirmed by the server."""
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        driver = connect(switch, proxy.remote, resident=True)
        attach(driver, port(), soon())
        before = len(proxy.sent)
        driver.reach(port().name, "br-test", soon())
        assert driver.check(port(), soon()) == []
        found = driver.find(port().name, soon())
        assert found is not None
        assert found.server_path == port().server_path
        assert [step.name for step in driver.list_marked(soon())] == [port().name]
        assert driver.read_vhost_sock_dir(soon()) == ""
        assert list(driver.list_owned()) == [port().name]
        watch(driver)
        driver.require_serving("br-test", soon())
        assert len(proxy.sent) == before
        assert len(driver.check(port(tag=7), soon())) == 1
        assert driver.find("missing", soon()) is None
        assert proxy.sent[before:].count(b'"transact"') == 2
        assert b"statistics" not in proxy.sent


def test_owned_are_all_ports_with_our_mark(switch: Switch, resident: PortDriver, driver: PortDriver, port: MakePort) -> None:
    """`owned` has all ports with our owner mark and all their marks, whichever
    program made them, and loses a port that is deleted.
    """
    switch.vsctl("--no-wait", "add-br", "br-theirs", "--", "add-port", "br-theirs", "theirs")
    for number in (1, 2):
        attach(driver, port(number), soon())
    wait_until(lambda: len(resident.list_owned()) == 2, what="both are known")
    assert resident.list_owned()[port(1).name] == {
        "owner": "userspace-cni",
        "owner-kind": "pod",
        "schema": "1",
        "store": STORE,
        **port(1).marks,
    }
    switch.vsctl("--no-wait", "set", "Port", port(1).name, "external_ids:pod-name=another")
    wait_until(lambda: resident.list_owned()[port(1).name].get("pod-name") == "another", what="the mark has changed")
    driver.undo(port(1), soon())
    wait_until(lambda: list(resident.list_owned()) == [port(2).name], what="one is left")


def test_what_is_known_of_every_port(switch: Switch, resident: PortDriver, port: MakePort) -> None:
    """`known` has bridge, type, owner, link state, status and error of our ports and of others, but not of bridges' own."""
    attach(resident, port(1), soon())
    attach(resident, port(2, interface_type="dpdkvhostuser", server_path=""), soon())
    switch.vsctl("--no-wait", "add-port", "br-test", "broken", "--", "set", "Interface", "broken", "type=nosuchtype")
    wait_until(lambda: any(each.error for each in resident.list_ports()), what="ovs-vswitchd has seen the broken one")
    known = {each.name: each for each in resident.list_ports()}
    client, server, broken = known[port(1).name], known[port(2).name], known["broken"]
    assert len(known) == 3
    assert (client.bridge, client.interface_type, client.ours, client.link_state) == (
        "br-test",
        "dpdkvhostuserclient",
        True,
        "down",
    )
    assert (client.status["mode"], client.status["status"]) == ("client", "disconnected")
    assert (server.interface_type, server.status["mode"], server.status["status"]) == ("dpdkvhostuser", "server", "disconnected")
    assert (broken.ours, broken.status) == (False, {})
    assert "could not open network device" in broken.error


def test_a_port_that_failed_a_moment_ago(switch: Switch, connect: Connect, port: MakePort, tmp_path: Path) -> None:
    """The server is asked before a port counts as not failed, because its socket is removed then: the replica may be late."""
    step = port(interface_type="dpdkvhostuser", server_path="")
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        driver = connect(switch, proxy.remote, resident=True)
        attach(driver, step, soon())
        proxy.lag()
        switch.vsctl("--no-wait", "set", "Interface", step.name, "ofport=-1", 'error="could not open network device"')
        assert driver.has_failed(step.name, soon())
        assert proxy.prompt.is_set()


def test_a_bridge_that_was_made_a_moment_ago(switch: Switch, connect: Connect, port: MakePort, tmp_path: Path) -> None:
    """Whose it is is known, although its row is still on its way: else the port's step would say that we make the bridge."""
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        driver = connect(switch, proxy.remote, resident=True)
        driver.connect(soon())
        proxy.lag()
        switch.vsctl("--no-wait", "add-br", "br-moment", "--", "set", "Bridge", "br-moment", "datapath_type=netdev")
        try:
            assert driver.reach(port().name, "br-moment", soon()) == "another"
        finally:
            switch.vsctl("--no-wait", "del-br", "br-moment")
        assert driver.reach(port().name, "br-never", soon()) == ""


def test_what_a_connected_application_changes(switch: Switch, resident: PortDriver, port: MakePort) -> None:
    """A fact: OVS reports a vhost-user port in use as connected and up, with features and rings, and none of it afterwards.

    Open vSwitch 4.0 also has keys for a port without an application.
    """
    client, server = port(1), port(2, interface_type="dpdkvhostuser", server_path="")
    for step in (client, server):
        attach(resident, step, soon())

    def states() -> dict[str, tuple[str, str]]:
        return {each.name: (each.status["status"], each.link_state) for each in resident.list_ports()}

    with (
        application("client", f"net_virtio_user0,path={client.server_path},server=1"),
        application("server", f"net_virtio_user0,path={switch.rundir}/{server.name}"),
    ):
        connected = dict.fromkeys((client.name, server.name), ("connected", "up"))
        wait_until(lambda: states() == connected, what="both are connected")
        known = {each.name: each.status for each in resident.list_ports()}
        for step, path in ((client, client.server_path), (server, f"{switch.rundir}/{server.name}")):
            status = known[step.name]
            assert status["socket"] == path
            assert status["num_of_vrings"] == "2"
            assert int(status["features"], 16) != 0
            assert {*IN_USE, "mode"} <= status.keys()
    gone = dict.fromkeys((client.name, server.name), ("disconnected", "down"))
    wait_until(lambda: states() == gone, what="both are gone")
    left = resident.list_ports()[0].status
    assert {"mode", "status"} <= left.keys()
    assert not left.keys() & IN_USE


def test_status_while_the_switch_is_stopped(own_switch: Switch, own: PortDriver) -> None:
    """When ovs-vswitchd does not answer, what was seen last counts, so that a busy moment is no fault.

    A lasting silence is 51.
    """
    assert own.watch_liveness().state == "alive"
    own_switch.pause_vswitchd()
    try:
        own.require_serving("br-test", soon())
        assert own.watch_liveness().state == "silent"
        answer = refused(own)
        assert answer.code == 51
        assert "silent" in str(answer)
    finally:
        own_switch.resume_vswitchd()
    watch(own)
    own.require_serving("br-test", soon())


def test_a_silence_of_a_moment(own_switch: Switch, own: PortDriver, connect: Connect) -> None:
    """Newer switches do not answer for a second when a polling thread ends: a watch, and a single STATUS, wait for that."""

    def answers() -> None:
        assert own.watch_liveness().state == "alive"

    once = connect(own_switch)
    for look in (answers, lambda: once.require_serving("br-test", soon())):
        own_switch.pause_vswitchd()
        resumed = threading.Timer(SILENT_S, own_switch.resume_vswitchd)
        resumed.start()
        try:
            look()
        finally:
            resumed.join()


def test_status_of_a_silent_switch_without_a_watch(own_switch: Switch, own: PortDriver) -> None:
    """Without an earlier observation, silence is 51 soon."""
    own_switch.pause_vswitchd()
    try:
        assert refused(own).code == 51
    finally:
        own_switch.resume_vswitchd()


def test_status_after_the_switch_was_killed(own_switch: Switch, own: PortDriver) -> None:
    """kill -9 of ovs-vswitchd is 51 at once, whatever was seen before; with the next daemon STATUS succeeds."""
    first = own.watch_liveness()
    assert first.pid == own_switch.vswitchd_pid
    own_switch.kill_vswitchd()
    answer = refused(own)
    assert answer.code == 51
    assert "dead" in str(answer)
    assert own.watch_liveness().state == "dead"
    own_switch.restart_vswitchd()
    second = own.watch_liveness()
    assert (second.state, second.pid) == ("alive", own_switch.vswitchd_pid)
    assert second.pid != first.pid
    assert second.born > first.born
    own.require_serving("br-test", soon())


def test_status_after_the_database_was_killed(own_switch: Switch, own: PortDriver, port: MakePort) -> None:
    """kill -9 of ovsdb-server is 50 as soon as its socket closes; the next call reconnects."""
    attach(own, port(), soon())
    os.kill(own_switch.ovsdb_pid, signal.SIGKILL)
    wait_until(lambda: not own.connected, what="the driver noticed")
    answer = refused(own)
    assert answer.code == 50
    assert "no session" in str(answer)
    with pytest.raises(Unavailable):
        own.connect(soon())
    with pytest.raises(Unavailable, match="no session"):
        own.list_owned()
    own_switch.restart_ovsdb()
    own.connect(soon())
    watch(own)
    own.require_serving("br-test", soon())
    assert list(own.list_owned()) == [port().name]
    assert own.sessions == 2


@pytest.mark.usefixtures("impatient")
def test_a_hung_database_is_noticed_by_itself(own_switch: Switch, connect: Connect) -> None:
    """When ovsdb-server is stopped, the session's own probe notices, on a unix socket, too; STATUS answers meanwhile."""
    own = connect(own_switch, resident=True)
    own.connect(soon())
    watch(own)
    own_switch.pause_ovsdb()
    try:
        own.require_serving("br-test", soon())
        wait_until(lambda: not own.connected, what="the driver noticed")
        answer = refused(own)
        assert answer.code == 50
        assert "does not answer" in str(answer)
    finally:
        own_switch.resume_ovsdb()
    own.connect(soon())
    own.require_serving("br-test", soon())
    assert own.sessions == 2


@pytest.mark.usefixtures("impatient")
def test_a_session_whose_thread_has_ended_is_lost(own_switch: Switch, own: PortDriver, port: MakePort) -> None:
    """Its rows would be taken for true for ever: the next call opens another session."""

    def fail(*_: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    session = own.client.require_session()
    setattr(session.replica.index, "change", fail)  # noqa: B010 - a method
    own_switch.vsctl("--no-wait", "add-br", "br-other")
    wait_until(lambda: session.lost, what="the end of the session")
    assert "dictionary changed size" in session.lost
    with pytest.raises(Unavailable):
        session.transact([], soon())
    attach(own, port(), soon())
    assert own.sessions == 2


def test_an_idle_session_stays(own_switch: Switch, connect: Connect, tmp_path: Path) -> None:
    """An idle server is probed, answers, and the session stays."""
    with Proxy(tmp_path / "a.sock", own_switch.dir / "db.sock") as proxy:
        own = connect(own_switch, proxy.remote, resident=True)
        own.connect(soon())
        wait_until(lambda: proxy.sent.count(b'"echo"') >= 3, what="three probes")
        assert (own.connected, own.sessions) == (True, 1)


def test_who_has_little_time_does_not_end_the_session(
    own_switch: Switch, own: PortDriver, port: MakePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadline sooner than a server counts as hung makes the result unknown but does not end the session; undo finds a landed
    commit."""
    monkeypatch.setattr(groups, "HUNG_SECONDS", float(FOR_EVER_S))
    own_switch.pause_ovsdb()
    try:
        with pytest.raises(Unavailable, match="unknown"):
            own.apply(port(), Deadline.after(1))
        assert own.connected
    finally:
        own_switch.resume_ovsdb()
    own.undo(port(), soon())
    assert own_switch.bridges() == []
    assert own.sessions == 1


def test_closing_ends_all_waiting(own_switch: Switch, own: PortDriver, port: MakePort) -> None:
    """A read-back while ovs-vswitchd sleeps, a commit while ovsdb-server does, and a new call all fail soon after close."""
    ends: list[BaseException] = []

    def call(what: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                what()
            except BaseException as error:
                ends.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    own_switch.pause_vswitchd()
    rest = own.apply(port(1), Deadline.after(FOR_EVER_S))
    own_switch.pause_ovsdb()
    try:
        threads = [call(rest), call(lambda: own.apply(port(2), Deadline.after(FOR_EVER_S)))]
        session = own.client.require_session()
        assert session is not None
        wait_until(lambda: session.replica._outstanding_txns, what="the commit is on its way")
        own.close()
        for thread in threads:
            thread.join(60)
        assert [type(error) for error in ends] == [Unavailable] * 2
        with pytest.raises(Unavailable, match="closed"):
            own.connect(soon())
    finally:
        own_switch.resume_ovsdb()
        own_switch.resume_vswitchd()


def test_a_database_made_anew_is_learnt_anew(own_switch: Switch, own: PortDriver, port: MakePort) -> None:
    """When conf.db is removed and made anew, the old rows are forgotten, and ports can be made again."""
    attach(own, port(), soon())
    own_switch.appctl("-t", "ovsdb-server", "exit")
    wait_until(lambda: not own.connected, what="the driver noticed")
    database = own_switch.dir / "conf.db"
    database.unlink()
    create = ["ovsdb-tool", "create", str(database), SCHEMA]
    wait_until(lambda: subprocess.run(create, check=False).returncode == 0, what="the former server's lock is free")
    own_switch.restart_ovsdb()
    own.connect(soon())
    assert own.list_owned() == {}
    own.undo(port(), soon())
    with pytest.raises(Unavailable, match="empty"):
        attach(own, port(), soon())
    own_switch.vsctl("--no-wait", "init")
    attach(own, port(), soon())
    assert own.check(port(), soon()) == []


def test_a_schema_that_is_converted_under_a_session_ends_it(own_switch: Switch, own: PortDriver, port: MakePort) -> None:
    """An upgrade of the database replaces all rows: the session ends, and the next call reads them anew."""
    attach(own, port(), soon())
    subprocess.run(["ovsdb-client", "convert", own_switch.ovsdb, SCHEMA], check=True, timeout=60)
    wait_until(lambda: not own.connected, what="the driver noticed")
    assert own.check(port(), soon()) == []
    assert list(own.list_owned()) == [port().name]
    assert own.sessions == 2


def test_a_signal_as_the_session_stands(switch: Switch, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal while the session's thread starts ends that thread before what it uses: there is no traceback of it."""
    begun: list[threading.Thread] = []

    def start(thread: threading.Thread, what: str) -> None:
        threads.start(thread, what)
        begun.append(thread)
        raise Interrupted("stopped by SIGTERM")

    monkeypatch.setattr(client, "start", start)
    with pytest.raises(Unavailable, match="stopped by SIGTERM"):
        connect(switch).connect(soon())
    [thread] = begun
    assert not thread.is_alive()
