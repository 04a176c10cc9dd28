"""What happens when OVSDB or ovs-vswitchd is away, hangs, dies or loses an answer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.switch.proxy import Babbler, Proxy
from tests.lab.switch.switch import FOR_EVER_S, Switch, wait_until
from tests.ovs.conftest import attach
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import NotServing, Unavailable
from userspace_cni.ovsdb.client import Session
from userspace_cni.switch.ovsdb.switch_database import open_vswitch
from userspace_cni.switch.ports import PortDriver

MakePort = Callable[..., OvsPort]
Connect = Callable[..., PortDriver]
ROOT = Path(__file__).resolve().parents[2]


def soon() -> Deadline:
    """A deadline that leaves enough time for one call."""
    return Deadline.after(60)


def ages() -> Deadline:
    """A deadline so far away that a call which waits for it does not end within a test."""
    return Deadline.after(FOR_EVER_S)


def test_a_database_that_is_not_there_fails_at_once(switch: Switch, connect: Connect, port: MakePort, tmp_path: Path) -> None:
    """Without a socket, Unavailable names remote and reason without waiting for the deadline; STATUS is 50."""
    driver = connect(switch, f"unix:{tmp_path}/no.sock")
    for call in (driver.apply, driver.undo, driver.check):
        with pytest.raises(Unavailable, match=r"no\.sock.*No such file"):
            call(port(), ages())
    with pytest.raises(NotServing, match=r"no\.sock") as refused:
        driver.require_serving("br0", ages())
    assert refused.value.code == 50


def test_a_refused_tcp_connection_fails_at_once(switch: Switch, connect: Connect, port: MakePort) -> None:
    """Without a listener Unavailable says so."""
    driver = connect(switch, "tcp:127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.*refused"):
        attach(driver, port(), ages())


@pytest.mark.parametrize("remote", ["nonsense", "udp:127.0.0.1:1", "unix:"])
def test_a_remote_that_is_none_is_an_error(switch: Switch, connect: Connect, port: MakePort, remote: str) -> None:
    """A setting that is no OVSDB remote is Unavailable, like a server that does not answer."""
    with pytest.raises(Unavailable, match=remote):
        attach(connect(switch, remote), port(), ages())


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"id":0,"result":[]}{"id":0', b'{"method":"steal"}', b"\xff\xfe{", b"{]}", b"[1]"],
)
def test_a_server_that_is_no_ovsdb_ends_within_the_deadline(
    switch: Switch, connect: Connect, port: MakePort, tmp_path: Path, answer: bytes
) -> None:
    """Whatever the server sends, the call ends by its deadline as Unavailable."""
    with Babbler(tmp_path / "db.sock", answer) as server:
        driver = connect(switch, server.remote)
        with pytest.raises(Unavailable, match=r"db\.sock"):
            attach(driver, port(), Deadline.after(0.5))


def test_a_hung_database_ends_at_the_deadline(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """While ovsdb-server is stopped, new and open sessions end at their deadline; they work again when it continues."""
    opened, fresh = connect(own_switch), connect(own_switch)
    attach(opened, port(1), soon())
    own_switch.pause_ovsdb()
    try:
        for driver in (opened, fresh):
            begin = time.monotonic()
            with pytest.raises(Unavailable, match="does not answer"):
                driver.undo(port(1), Deadline.after(0.5))
            assert time.monotonic() - begin > 0.4
        with pytest.raises(NotServing) as refused:
            fresh.require_serving("br-test", Deadline.after(0.5))
        assert refused.value.code == 50
    finally:
        own_switch.resume_ovsdb()
    for driver in (opened, fresh):
        driver.undo(port(1), soon())
    wait_until(lambda: own_switch.bridges() == [], what="the port is gone, whichever undo did it")


def test_a_process_exits_though_the_database_hangs(own_switch: Switch) -> None:
    """After the deadline the interpreter ends at once, and nothing was printed by ovs or ovsdbapp."""
    code = (
        "import sys\nfrom userspace_cni.switch.ovsdb.switch_database import switch_client\n"
        "from userspace_cni.switch.ports import PortDriver\n"
        "from userspace_cni.base.deadline import Deadline\n"
        "from userspace_cni.base.errors import Unavailable\n"
        "d = PortDriver(switch_client(sys.argv[1]), sys.argv[2], lambda: 's'); d.read_vhost_sock_dir(Deadline.after(60))\n"
        "print('open', flush=True); sys.stdin.readline()\n"
        "try:\n    d.read_vhost_sock_dir(Deadline.after(0.5))\nexcept Unavailable:\n    print('unavailable', flush=True)\n"
    )
    argv = [sys.executable, "-c", code, own_switch.ovsdb, own_switch.rundir]
    with subprocess.Popen(argv, cwd=ROOT, stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        own_switch.pause_ovsdb()
        try:
            assert process.communicate("\n", timeout=60) == ("unavailable\n", "")
        finally:
            own_switch.resume_ovsdb()
    assert process.returncode == 0


def test_many_open_files_are_no_obstacle(switch: Switch) -> None:
    """A process with more than 1024 open files can use OVSDB."""
    code = (
        "import os, resource, sys; from userspace_cni.switch.ovsdb.switch_database import switch_client\n"
        "from userspace_cni.switch.ports import PortDriver\n"
        "from userspace_cni.base.deadline import Deadline\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000)); kept = [os.dup(0) for _ in range(1100)]\n"
        "print(PortDriver(switch_client(sys.argv[1]), '/', lambda: 's').find('p', Deadline.after(60)))\n"
    )
    argv = [sys.executable, "-c", code, switch.ovsdb]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_nothing_is_printed_when_the_database_is_away(tmp_path: Path) -> None:
    """The libraries print nothing to stdout or stderr; only our error is raised."""
    code = (
        "import sys\nfrom userspace_cni.switch.ovsdb.switch_database import switch_client\n"
        "from userspace_cni.switch.ports import PortDriver\n"
        "from userspace_cni.base.deadline import Deadline\n"
        "from userspace_cni.base.errors import Unavailable\n"
        "d = PortDriver(switch_client(sys.argv[1]), '/', lambda: 's')\n"
        "try:\n    d.find('p', Deadline.after(1))\nexcept Unavailable:\n    sys.exit(11)\n"
    )
    argv = [sys.executable, "-c", code, f"unix:{tmp_path}/no.sock"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (11, "", "")


def test_a_restarted_database_is_no_matter(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """When ovsdb-server is restarted between two calls, the next call opens a new session by itself."""
    driver = connect(own_switch)
    attach(driver, port(1), soon())
    own_switch.restart_ovsdb()
    attach(driver, port(2), soon())
    assert own_switch.ports("br-test") == [port(1).name, port(2).name]
    own_switch.restart_ovsdb()
    driver.undo(port(1), soon())
    driver.undo(port(2), soon())
    assert own_switch.bridges() == []


def test_undo_is_not_satisfied_with_an_old_replica(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """When the server hangs, undo does not conclude from an old replica that the port is absent."""
    driver = connect(own_switch)
    driver.undo(port(), soon())
    own_switch.pause_ovsdb()
    try:
        with pytest.raises(Unavailable):
            driver.undo(port(), Deadline.after(0.3))
    finally:
        own_switch.resume_ovsdb()


def test_a_landed_commit_whose_answer_was_lost_is_found(switch: Switch, connect: Connect, port: MakePort, tmp_path: Path) -> None:
    """The connection breaks after the commit: a new session finds the rows with our marks, and apply succeeds; undo likewise."""
    server = switch.dir / "db.sock"
    with Proxy(tmp_path / "a.sock", server, lose_answer_to=b'"op":"insert"') as proxy:
        attach(connect(switch, proxy.remote), port(), soon())
        assert proxy.lost.is_set()
    assert switch.ports("br-test") == [port().name]
    with Proxy(tmp_path / "b.sock", server, lose_answer_to=b'"op":"mutate"') as proxy:
        connect(switch, proxy.remote).undo(port(), soon())
        assert proxy.lost.is_set()
    assert switch.bridges() == []


def test_a_commit_without_an_answer_is_unknown_and_undone_later(
    switch: Switch, connect: Connect, port: MakePort, tmp_path: Path
) -> None:
    """When the server never answers, apply is Unavailable at the deadline though the rows exist, and undo removes them."""
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock", lose_answer_to=b'"op":"insert"', then="mute") as proxy:
        driver = connect(switch, proxy.remote)
        driver.connect(soon())
        with pytest.raises(Unavailable, match="unknown"):
            attach(driver, port(), Deadline.after(2))
        assert switch.ports("br-test") == [port().name]
        driver.undo(port(), soon())
    assert switch.bridges() == []


def test_one_transaction_and_no_row_too_many(switch: Switch, connect: Connect, port: MakePort, tmp_path: Path) -> None:
    """Bridge, port and interface are one transaction.

    No schema but the server's own is fetched, and no statistics are replicated.
    """
    switch.vsctl("add-br", "br-test", "--", "set", "Bridge", "br-test", "datapath_type=netdev")
    for number in range(50):
        switch.vsctl(
            "--no-wait", "add-port", "br-test", f"other{number}", "--", "set", "Interface", f"other{number}", "type=internal"
        )
    with Proxy(tmp_path / "a.sock", switch.dir / "db.sock") as proxy:
        attach(connect(switch, proxy.remote), port(), soon())
        assert proxy.sent.count(b'"op":"insert"') == 2
        assert proxy.sent.count(b'"transact"') == 1
        assert b"statistics" not in proxy.sent
        assert b"other1" not in proxy.received


def test_a_stopped_vswitchd_ends_the_read_back_at_the_deadline(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """Rows that no switch opens are unknown, not failed; undo works meanwhile; STATUS is 51."""
    driver = connect(own_switch)
    driver.connect(soon())
    own_switch.pause_vswitchd()
    try:
        begin = time.monotonic()
        with pytest.raises(Unavailable, match="silent"):
            attach(driver, port(), Deadline.after(3))
        assert time.monotonic() - begin > 2.9
        assert own_switch.port(port().name) != {}
        with pytest.raises(NotServing, match="silent") as refused:
            driver.require_serving("br-test", soon())
        assert refused.value.code == 51
        driver.undo(port(), soon())
        assert own_switch.bridges() == []
    finally:
        own_switch.resume_vswitchd()


def test_a_killed_vswitchd_is_noticed_long_before_the_deadline(own_switch: Switch, connect: Connect, port: MakePort) -> None:
    """After kill -9 the read-back gives up in about a second, undo works, STATUS is 51; a restart brings all back."""
    driver = connect(own_switch)
    attach(driver, port(1), soon())
    own_switch.kill_vswitchd()
    with pytest.raises(Unavailable, match="ovs-vswitchd is dead"):
        attach(driver, port(2), ages())
    driver.undo(port(2), soon())
    with pytest.raises(NotServing, match="dead") as refused:
        driver.require_serving("br-test", soon())
    assert refused.value.code == 51
    own_switch.restart_vswitchd()
    driver.require_serving("br-test", soon())
    attach(driver, port(1), soon())
    assert driver.check(port(1), soon()) == []


def test_a_switch_without_dpdk_does_not_serve(own_switch: Switch, connect: Connect) -> None:
    """With dpdk_initialized false STATUS is 51: no vhost-user port of this node can work."""
    own_switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:dpdk-init=false", "dpdk_initialized=false")
    own_switch.restart_ovsdb()
    own_switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", "dpdk_initialized=false")
    with pytest.raises(NotServing, match="without DPDK") as refused:
        connect(own_switch).require_serving("br0", soon())
    assert refused.value.code == 51


def test_a_deadline_that_has_passed_does_nothing(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """A call whose deadline has passed is Unavailable and sends nothing."""
    driver.read_vhost_sock_dir(soon())
    with pytest.raises(Unavailable, match="out of time"):
        attach(driver, port(), Deadline.after(0))
    assert switch.bridges() == []


def test_a_session_for_a_long_life_sees_every_row(switch: Switch, port: MakePort, driver: PortDriver) -> None:
    """With `everything`, a session replicates all rows unasked, those that exist and those that are made later."""
    attach(driver, port(1), soon())
    session = Session(switch.ovsdb, open_vswitch(), frozenset(), soon(), everything=True)
    try:
        assert session.look(lambda _: session.row("Port", port(1).name)) is not None
        attach(driver, port(2), soon())
        assert session.watch("Interface", port(2).name, lambda: session.row("Interface", port(2).name)).wait(60) is not None
    finally:
        session.close()


def test_a_closed_driver_opens_a_new_session(switch: Switch, driver: PortDriver, port: MakePort) -> None:
    """After close() ended the session, the driver's next call opens a new one."""
    attach(driver, port(), soon())
    driver.close()
    driver.close()
    driver.undo(port(), soon())
    assert switch.bridges() == []
