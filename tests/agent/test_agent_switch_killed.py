"""Server mode when ovs-vswitchd is killed: no dead socket prevents a port from being opened, and none is given to a pod."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.living import LiveNode, container, port_of, serving
from tests.agent.test_agent_crash_table import RESTART_S, connects, open_ports
from tests.cni.spec import refused, succeeded, switch_of
from tests.cni.test_cli_node import decoded
from tests.lab.node.agent import get
from tests.lab.node.node import CONTAINER
from tests.lab.runtimes.dockerfile import ROOT
from tests.lab.switch.switch import Switch, pause, wait_until

DROP_IN = ROOT / "deploy" / "ovs-vswitchd.service.d" / "userspace-cni.conf"


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch() as started:
        yield started


def placed(live: LiveNode, name: str = CONTAINER) -> Path:
    """Where the pod sees its socket."""
    return live.shared / name[:12] / port_of(name)


def source(live: LiveNode, name: str = CONTAINER) -> Path:
    return Path(switch_of(live).rundir, port_of(name))


@contextmanager
def paused(live: LiveNode) -> Iterator[None]:
    """The agent is stopped during the block, and sees nothing of what happens."""
    pause(live.pid)
    try:
        yield
    finally:
        os.kill(live.pid, signal.SIGCONT)


def leave_dead(path: Path) -> None:
    """Leave a socket whose process was killed."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def test_killed_twice_before_a_socket_is_placed(live: LiveNode, sandbox: str) -> None:
    """The second daemon dies right after it bound its sockets: the third binds them all, and pods get those."""
    switch, names = switch_of(live), [container(number) for number in range(4)]
    live.start()
    for name in names:
        succeeded(live.run("ADD", serving(live), sandbox, name))
    ports = open_ports(switch)
    for _ in range(2):
        switch.kill_vswitchd()
        switch.restart_vswitchd()
    wait_until(lambda: open_ports(switch) == ports, RESTART_S, "the ports")
    wait_until(lambda: all(connects(placed(live, name)) for name in names), RESTART_S, "the sockets")
    assert not any(source(live, name).exists() for name in names)
    for name in names:
        succeeded(live.run("DEL", serving(live), sandbox, name))
    live.require_clean()


def test_its_end_is_in_the_log_and_the_metrics(live: LiveNode) -> None:
    """The end of ovs-vswitchd is logged, and a metric shows it until the next daemon answers."""
    switch = switch_of(live)
    live.start()
    good = ("\nuserspace_cni_vswitchd_alive 1\n", "\nuserspace_cni_ovsdb_connected 1\n")
    wait_until(lambda: all(each in exposed(live) for each in good), what="the metrics of a good switch")
    switch.kill_vswitchd()
    try:
        wait_until(lambda: "ovs-vswitchd has ended" in live.log.read_text(), what="the line of its end")
        found = exposed(live)
        assert "\nuserspace_cni_vswitchd_alive 0\n" in found
        assert "\nuserspace_cni_ovsdb_connected 1\n" in found
        assert "was restarted" not in live.log.read_text()
    finally:
        switch.restart_vswitchd()
    wait_until(lambda: good[0] in exposed(live), what="the metric of the next one")
    wait_until(lambda: "ovs-vswitchd was restarted" in live.log.read_text(), what="the line of the next one")


def exposed(live: LiveNode) -> str:
    """The agent's metrics; one that is not known yet is missing."""
    return get(live.socket, "/metrics")[1].decode()


def test_a_dead_socket_goes_with_its_daemon(live: LiveNode, sandbox: str) -> None:
    """The agent frees the names of a daemon as soon as it dies, before the next one can start."""
    live.start()
    succeeded(live.run("ADD", serving(live), sandbox))
    leave_dead(source(live))
    switch_of(live).kill_vswitchd()
    try:
        wait_until(lambda: not source(live).exists(), what="the end of the dead socket")
    finally:
        switch_of(live).restart_vswitchd()
    wait_until(lambda: connects(placed(live)), RESTART_S, "the socket")
    succeeded(live.run("DEL", serving(live), sandbox))
    live.require_clean()


def test_an_agent_that_starts_before_the_next_daemon(live: LiveNode, sandbox: str) -> None:
    """After two deaths of ovs-vswitchd without an agent, an agent that starts before the third daemon removes dead sockets."""
    switch, names = switch_of(live), [container(number) for number in range(3)]
    live.start()
    for name in names:
        succeeded(live.run("ADD", serving(live), sandbox, name))
    ports = open_ports(switch)
    live.kill()
    switch.kill_vswitchd()
    switch.restart_vswitchd()
    wait_until(lambda: all(source(live, name).is_socket() for name in names), RESTART_S, "sockets that are not placed")
    switch.kill_vswitchd()
    live.start()
    wait_until(lambda: not any(source(live, name).exists() for name in names), RESTART_S, "the end of the dead sockets")
    switch.restart_vswitchd()
    wait_until(lambda: all(connects(placed(live, name)) for name in names), RESTART_S, "the sockets")
    wait_until(lambda: open_ports(switch) == ports, RESTART_S, "the rows, which are written after the sockets")
    for name in names:
        succeeded(live.run("DEL", serving(live), sandbox, name))
    live.require_clean()


def test_without_an_agent_systemd_removes_dead_sockets(live: LiveNode, sandbox: str) -> None:
    """Two deaths of ovs-vswitchd while the agent is stopped: with the drop-in for its unit the third daemon binds every socket.

    Sockets of living processes in that directory, and other files, stay.
    """
    switch, names = switch_of(live), [container(number) for number in range(3)]
    live.start()
    for name in names:
        succeeded(live.run("ADD", serving(live), sandbox, name))
    ports = open_ports(switch)
    kept = Path(switch.rundir, "kept")
    kept.touch()
    with paused(live):
        for _ in range(2):
            switch.kill_vswitchd()
            before_vswitchd_starts(switch)
            assert not any(source(live, name).exists() for name in names)
            assert (kept.exists(), Path(switch.rundir, "db.sock").is_socket()) == (True, True)
            switch.restart_vswitchd()
            wait_until(lambda: all(connects(source(live, name)) for name in names), RESTART_S, "sockets that are not placed")
    wait_until(lambda: all(connects(placed(live, name)) for name in names), RESTART_S, "the sockets")
    wait_until(lambda: open_ports(switch) == ports, RESTART_S, "the rows, which are written after the sockets")
    kept.unlink()
    for name in names:
        succeeded(live.run("DEL", serving(live), sandbox, name))
    live.require_clean()


def before_vswitchd_starts(switch: Switch) -> None:
    """Run the drop-in's command as systemd does before ovs-vswitchd starts."""
    _, _, line = DROP_IN.read_text().replace("\\\n", " ").partition("\nExecStartPre=-")
    words = [word.replace("$$", "$") for word in shlex.split(line)]
    subprocess.run(words, env=os.environ | {"OVS_RUNDIR": switch.rundir}, check=True, timeout=60)


def test_the_name_is_free_for_add(live: LiveNode, sandbox: str) -> None:
    """A dead socket with the name of a port, of a daemon that was killed during its ADD, does not make later ADDs fail."""
    live.start()
    for call in (live.run, live.run_standalone):
        leave_dead(source(live))
        succeeded(call("ADD", serving(live), sandbox))
        assert connects(placed(live))
        leave_dead(source(live))
        succeeded(call("DEL", serving(live), sandbox))
        assert not source(live).exists()
    live.require_clean()


def test_a_socket_that_lives_stays(live: LiveNode, sandbox: str) -> None:
    """A process that listens at the name of a port keeps it, and the error of ADD has the switch's words.

    No other test uses this name: once it has failed to bind a name, this ovs-vswitchd may fail again after the socket is gone.
    """
    live.start()
    name = container(0xA11FE)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(source(live, name)))
        theirs.listen()
        refused(live.run("ADD", serving(live), sandbox, name), 104, "could not open network device")
        assert source(live, name).exists()
    source(live, name).unlink()
    live.await_clean()


def test_check_tells_a_dead_socket(live: LiveNode, sandbox: str) -> None:
    """CHECK and `check` look behind the name: a socket in place whose daemon is dead is a difference."""
    live.start()
    result = succeeded(live.run("ADD", serving(live), sandbox))
    live.kill()
    switch_of(live).kill_vswitchd()
    try:
        told = live.run_standalone("CHECK", {**serving(live), "prevResult": result}, sandbox)
        assert told.status == 1
        assert "a dead socket" in [drift["found"] for drift in decoded(live, "check", code=1)["drifts"]]
    finally:
        switch_of(live).restart_vswitchd()
    live.start()
    wait_until(lambda: connects(placed(live)), RESTART_S, "the socket")
    wait_until(lambda: live.run("CHECK", {**serving(live), "prevResult": result}, sandbox).status == 0, what="a good CHECK")
    succeeded(live.run("DEL", serving(live), sandbox))
    live.require_clean()


FAILED = ["ofport=-1", 'error="could not open network device"']


def test_a_port_that_could_not_be_opened(live: LiveNode, sandbox: str) -> None:
    """A port with Interface.error counts as lost: CHECK reports it, and the
    agent makes ovs-vswitchd try again, on the same rows.
    """
    switch, network = switch_of(live), live.network()
    live.start()
    result = succeeded(live.run("ADD", network, sandbox))
    before = switch.interface(port_of())

    def is_told() -> bool:
        # ovs-vswitchd goes through all rows, and writes what is true, when the kernel tells it of links: also after ADD has ended
        switch.vsctl("--no-wait", "set", "Interface", port_of(), *FAILED)
        return live.run_standalone("CHECK", {**network, "prevResult": result}, sandbox).status == 1

    with paused(live):
        wait_until(is_told, what="CHECK tells it")
    wait_until(lambda: open_ports(switch) == [port_of()] and not switch.interface(port_of())["error"], what="the port open again")
    after = switch.interface(port_of())
    assert (after["_uuid"], after["error"], after["ofport"]) == (before["_uuid"], [], before["ofport"])
    live.await_done("again-port", 1)
    assert live.run("CHECK", {**network, "prevResult": result}, sandbox).status == 0
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_a_socket_that_could_not_be_made(live: LiveNode, sandbox: str) -> None:
    """A server-mode port that failed is reported with the remedy and left alone: a second attempt can hang the same daemon."""
    switch, network = switch_of(live), serving(live)
    live.start()
    result = succeeded(live.run("ADD", network, sandbox))
    [before] = switch.rows("Open_vSwitch")
    switch.vsctl("--no-wait", "set", "Interface", port_of(), *FAILED)
    wait_until(lambda: "it makes after a restart" in live.log.read_text(), what="the remedy in the log")
    live.tick(3)
    assert live.log.read_text().count("could not open network device") == 1
    assert live.run("CHECK", {**network, "prevResult": result}, sandbox).status == 1
    [after] = switch.rows("Open_vSwitch")
    assert (after["next_cfg"], open_ports(switch)) == (before["next_cfg"], [])
    switch.restart_vswitchd()
    wait_until(lambda: open_ports(switch) == [port_of()], RESTART_S, "the port")
    wait_until(lambda: connects(placed(live)), RESTART_S, "the socket")
    assert live.run("CHECK", {**network, "prevResult": result}, sandbox).status == 0
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()


def test_crashes_that_no_agent_saw(live: LiveNode, sandbox: str) -> None:
    """Dead sockets that a daemon has met stay, because it would hang at the next change; the next daemon repairs all.

    Nothing more is asked of that daemon: it may hang all the same, because it closed descriptors that are no longer its sockets'.
    """
    switch, names = switch_of(live), [container(number) for number in range(3)]
    live.start()
    for name in names:
        succeeded(live.run("ADD", serving(live), sandbox, name))
    ports = open_ports(switch)
    with paused(live):
        for _ in range(2):
            switch.kill_vswitchd()
            switch.restart_vswitchd()
        wait_until(lambda: open_ports(switch) == [], RESTART_S, "ports that failed")
    live.tick(3)
    assert "it makes after a restart" in live.log.read_text()
    assert all(source(live, name).is_socket() for name in names)
    switch.restart_vswitchd()
    wait_until(lambda: open_ports(switch) == ports, RESTART_S, "the ports")
    wait_until(lambda: all(connects(placed(live, name)) for name in names), RESTART_S, "the sockets")
    for name in names:
        succeeded(live.run("DEL", serving(live), sandbox, name))
    live.require_clean()


def test_a_port_that_cannot_be_opened_is_tried_less_and_less(live: LiveNode, sandbox: str) -> None:
    """Each attempt makes ovs-vswitchd go through all its ports: two dozen passes make one or two attempts, logged once."""
    switch, network = switch_of(live), live.network()
    network["host"]["bridge"]["bridgeName"] = "br-admin"
    live.start()
    succeeded(live.run("ADD", network, sandbox))
    live.tick()
    with paused(live):
        switch.vsctl("--no-wait", "set", "Interface", port_of(), "type=nonsense", "options={}")
        wait_until(lambda: open_ports(switch) == [], what="the port closed")
    try:
        live.tick(24)
    finally:
        live.kill()
    log = live.log.read_text()
    assert log.count("restoring a lost part") <= 2
    assert log.count("could not be repaired now") <= 2
    live.start()
    succeeded(live.run("DEL", network, sandbox))
    live.require_clean()
