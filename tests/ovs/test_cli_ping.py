"""`userspace-cni ping` on real ports: those of pods whose applications are absent, and temporary ones. It leaves nothing."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from tests.lab.frames.idle import SECONDS, Idle, Pods, pods_on
from tests.lab.node.node import Node
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import agreed_features
from userspace_cni.fastpath.vhost.front_end import FrontEnd, FrontEndListener
from userspace_cni.fastpath.vhost.vhost_messages import Feature
from userspace_cni.linux.unix_sockets import connections_anywhere

PING = ("ping", "--count", "50")
FOREVER = ("--interval", "0.01", "--count", "1000000")


@pytest.fixture
def pods(warm: None, node: Node, switch: Switch, sandbox: str) -> Iterator[Pods]:
    with pods_on(node, switch, sandbox) as made:
        yield made


@pytest.mark.parametrize("modes", [("client", "client"), ("server", "server")], ids="-".join)
def test_round_trips_between_pods(pods: Pods, modes: tuple[str, str]) -> None:
    """Frames come back, whichever side of the socket OVS is; ports and sockets are as before."""
    a, b = pods.attach("a", modes[0]), pods.attach("b", modes[1])
    told = round_trips(pods, a.name, b.name)
    assert 0 < told["nanoseconds"]["min"] <= told["nanoseconds"]["p50"] <= told["nanoseconds"]["max"]
    assert (told["a"]["port"], told["b"]["port"], told["b"]["bridge"]) == (a.port, b.port, "br-test")
    wait_until(pods.at_rest, what="ports down, and no socket of ours")
    assert a.socket.is_socket() == (modes[0] == "server")


def test_frames_as_long_as_the_mtu(pods: Pods) -> None:
    """Jumbo frames pass ports made for them, with a VLAN and without, also while the program sleeps between frames."""
    a, b = (pods.attach(name, "server", 9000, vlanId=100) for name in "ab")
    told = round_trips(pods, "--sleep", "--size", "9014", a.name, b.name)
    assert (told["size"], told["mode"], told["a"]["vlan"]) == (9014, "sleep", 100)
    assert "at most 9014" in pods.run(*PING, "--size", "9015", a.name, b.name, code=2).stderr


def test_a_bridge_that_drops_everything(pods: Pods, switch: Switch) -> None:
    """When no frame arrives, it ends with 1 and says where to look; the ports are as before."""
    a, b = pods.attach("a", "server"), pods.attach("b", "server")
    flows = [f"{switch.rundir}/br-test.mgmt", "priority=9,actions=drop"]
    subprocess.run(["ovs-ofctl", "add-flow", *flows], check=True)
    stderr = pods.run(*PING, a.name, b.name, code=1).stderr
    assert "no frame arrived at default/a/net1, default/b/net1" in stderr
    [hint] = re.findall(r"\((ovs-ofctl .*?)\)", stderr)
    assert "drop" in subprocess.run(["sh", "-c", hint], capture_output=True, text=True, check=True).stdout
    [hint] = re.findall(r"\((ovs-vsctl .*? list Port .*?)\)", stderr)
    assert a.port in subprocess.run(["sh", "-c", hint], capture_output=True, text=True, check=True).stdout
    wait_until(pods.at_rest, what="ports down")


def test_an_application_that_is_connected(pods: Pods) -> None:
    """A connected application keeps its port, of either kind, and its frames go on; the other pod's port is not used either."""
    a, b, c = pods.attach("a", "client"), pods.attach("b", "server"), pods.attach("c", "client")
    with (
        FrontEndListener(str(a.socket)) as listener,
        listener.accept(SECONDS) as one,
        FrontEnd.connect(str(b.socket), timeout_s=SECONDS) as other,
    ):
        for idle in (a, b):
            pods.wait_link(idle, "up")
        for names in ((a.name, c.name), (c.name, b.name)):
            stderr = pods.run(*PING, *names, code=1).stderr
            assert "is in use: its pod is connected" in stderr
            assert "--bridge br-test" in stderr
        frame = b"\xff" * 6 + bytes.fromhex("020000000001") + b"\x88\xb5" + bytes(50)
        wait_until(lambda: one.pairs[0].send_frames([frame]) and frame in other.pairs[0].receive_frames(), SECONDS, "a frame")
        assert pods.link(c) == "down"
        assert not c.socket.exists()


def test_an_application_that_listens(pods: Pods, switch: Switch) -> None:
    """Its socket is left alone, though OVS is not connected to it; a dead socket is replaced."""
    a, b = pods.attach("a"), pods.attach("b")
    switch.vsctl("set", "Interface", a.port, "options:vhost-server-path=/nowhere/socket")
    with FrontEndListener(str(a.socket)):
        assert "another process has a socket there" in pods.run(*PING, a.name, b.name, code=1).stderr
        assert a.socket.is_socket()
    path = f"{pods.node.short}/{a.socket.parents[2].name}/{a.socket.name}"
    switch.vsctl("set", "Interface", a.port, f"options:vhost-server-path={path}")
    bind = f"import socket; socket.socket(socket.AF_UNIX).bind({a.socket.name!r})"
    subprocess.run([sys.executable, "-c", bind], cwd=a.socket.parent, check=True)
    assert a.socket.is_socket()
    round_trips(pods, a.name, b.name)
    wait_until(pods.at_rest, what="no socket")


def test_an_application_that_comes_meanwhile(pods: Pods) -> None:
    """In client mode its name is free, and OVS connects to it in the end; in server mode it takes the port and keeps it."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    with pods.running("ping", *FOREVER, a.name, b.name) as process:
        pods.wait_link(a, "up")
        pods.wait_link(b, "up")
        wait_until(lambda: not a.socket.exists(), what="a free name")
        with FrontEndListener(str(a.socket)) as listener, FrontEnd.connect(str(b.socket), timeout_s=SECONDS) as other:
            stdout, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 1
            assert "the way is cut, or an application took over a port" in stdout
            with listener.accept(SECONDS) as one:
                frame = b"\xff" * 6 + bytes.fromhex("020000000001") + b"\x88\xb5" + bytes(50)
                wait_until(lambda: one.pairs[0].send_frames([frame]) and frame in other.pairs[0].receive_frames(), SECONDS, "it")
                assert (pods.link(a), pods.link(b)) == ("up", "up")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_amid_it(pods: Pods, number: signal.Signals) -> None:
    """A signal prints what was measured so far, and everything is put back."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    with pods.running("ping", *FOREVER, a.name, b.name) as process:
        pods.wait_link(a, "up")
        pods.wait_link(b, "up")
        before = switch_counts(pods)
        wait_until(lambda: switch_counts(pods) > before + 10, what="frames")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, (stdout, stderr)
    assert "Traceback" not in stderr
    assert "ended by a signal before 1000000" in stdout
    wait_until(pods.at_rest, what="ports down, and no socket")


def test_a_kill_amid_it(pods: Pods) -> None:
    """SIGKILL leaves no socket in a pod's directory, and the next ping works."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    with pods.running("ping", *FOREVER, a.name, b.name) as process:
        pods.wait_link(a, "up")
        pods.wait_link(b, "up")
        wait_until(lambda: not a.socket.exists(), what="a free name")
        process.kill()
        process.wait()
    wait_until(pods.at_rest, what="ports down, and no socket")
    round_trips(pods, a.name, b.name)


@pytest.mark.parametrize("by", ["gc", "ping"])
def test_a_kill_before_the_switch_has_come(pods: Pods, switch: Switch, by: str) -> None:
    """SIGKILL before the switch connects leaves a socket that blocks the
    application's name: gc removes it, and so does a ping.
    """
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    hide(switch, a)
    with pods.running("ping", *FOREVER, a.name, b.name) as process:
        wait_until(a.socket.is_socket, SECONDS, "its socket")
        process.kill()
        process.wait()
    assert a.socket.is_socket()
    if by == "gc":
        found = json.loads(pods.run("gc", "--dry-run", "--json", code=1).stdout)["found"]
        assert [each["action"] for each in found if each["problem"] == "dead-test"] == [f"remove {a.socket}"]
    else:
        assert f"removed what a killed run had left: {a.socket}" in pods.run(*PING).stderr
        assert not a.socket.exists()
    assert "nothing left" in pods.run("gc").stderr
    assert not a.socket.exists()
    assert "nothing to do" in pods.run("gc", "--dry-run").stderr
    round_trips(pods, a.name, b.name)


def test_a_switch_that_does_not_come(pods: Pods, switch: Switch) -> None:
    """When the switch does not connect, the names are free again after some seconds, and the error says why."""
    a, b = pods.attach("a", "client"), pods.attach("b", "client")
    hide(switch, a)
    assert "the switch has not connected within" in pods.run(*PING, a.name, b.name, code=1).stderr
    wait_until(pods.at_rest, what="ports down, and no socket")
    pods.run("gc")


def hide(switch: Switch, idle: Idle) -> None:
    """Hide the pod's directory from the switch, so that it finds no socket there."""
    path = Path(switch.interface(idle.port)["options"]["vhost-server-path"])
    subprocess.run(["umount", path.parent], check=True)


def test_a_connection_that_the_switch_has_not_accepted(pods: Pods, switch: Switch) -> None:
    """A switch that hangs may not have accepted an application yet: nothing is changed, and nothing is made."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    with socket.socket(socket.AF_UNIX) as application, chdir(b.socket.parent):
        switch.pause_vswitchd()
        try:
            application.connect(b.socket.name)
            assert connections_anywhere(b.port) == 1
            refused = pods.run(*PING, a.name, b.name, "--json", code=3)
            assert "ovs-vswitchd is silent" in json.loads(refused.stdout)["error"]
            assert not a.socket.exists()
        finally:
            switch.resume_vswitchd()
        wait_until(lambda: switch.appctl("version"), SECONDS, "the switch")
        assert "is in use: its pod is connected" in pods.run(*PING, a.name, b.name, code=1).stderr
        with pytest.raises(BlockingIOError):
            application.recv(1, socket.MSG_DONTWAIT)
    wait_until(lambda: connections_anywhere(b.port) == 0, what="no connection")
    round_trips(pods, a.name, b.name)


def test_a_socket_of_a_switch_that_was_restarted(pods: Pods) -> None:
    """When the socket in the pod is dead, the error names the command that replaces it."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    b.socket.unlink()
    bind = f"import socket; socket.socket(socket.AF_UNIX).bind({b.socket.name!r})"
    subprocess.run([sys.executable, "-c", bind], cwd=b.socket.parent, check=True)
    stderr = pods.run(*PING, a.name, b.name, code=1).stderr
    assert f"{b.name} cannot be used" in stderr.replace("default/", "")
    assert "userspace-cni gc puts its new socket in place" in stderr


def test_a_del_amid_it(pods: Pods) -> None:
    """The runtime's DEL does not wait for the ping, which ends and says why."""
    a, b = pods.attach("a", "client"), pods.attach("b", "server")
    with pods.running("ping", *FOREVER, a.name, b.name) as process:
        pods.wait_link(a, "up")
        pods.wait_link(b, "up")
        pods.detach(b)
        stdout, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "the switch hung up on default/b/net1" in stdout
    wait_until(pods.at_rest, what="ports down, and no socket")


def test_temporary_ports(pods: Pods, switch: Switch) -> None:
    """Without names, two ports on a bridge of their own, or on the named one, are made and removed."""
    switch.vsctl("add-br", "br-admin", "--", "set", "Bridge", "br-admin", "datapath_type=netdev")
    own = round_trips(pods)
    assert own["a"]["bridge"] == own["b"]["bridge"]
    assert own["a"]["bridge"] not in switch.bridges()
    named = round_trips(pods, "--bridge", "br-admin")
    assert named["b"]["bridge"] == "br-admin"
    assert switch.bridges() == ["br-admin"]
    assert switch.ports("br-admin") == []
    for name, words in (("br-nowhere", "there is no bridge br-nowhere"), ("", "there is no bridge ''")):
        refused = pods.run(*PING, "--bridge", name, "--json", code=2)
        assert words in json.loads(refused.stdout)["error"]
        assert words in refused.stderr
    assert not any(Path(pods.node.short).glob("*"))


@pytest.mark.parametrize(
    ("command", "packed"), [(("ping", *FOREVER), False), (("load", "--seconds", "60"), True)], ids=["ping", "load"]
)
def test_rings_that_are_agreed(pods: Pods, switch: Switch, command: tuple[str, ...], packed: bool) -> None:
    """Single frames are timed over split rings, where they are faster; bursts go over packed ones."""
    with pods.running(*command) as process:
        ports = wait_until(lambda: len(found := up_ports(switch)) == 2 and found, SECONDS, "both ports")
        for port in ports:
            assert (Feature.RING_PACKED in agreed_features(switch, port)) == packed
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)


def test_a_kill_amid_temporary_ports(pods: Pods, switch: Switch) -> None:
    """The next run removes what SIGKILL left in the switch, and says so."""
    with pods.running("ping", *FOREVER) as process:
        wait_until(lambda: len(up_ports(switch)) == 2, SECONDS, "both ports")
        process.kill()
        process.wait()
    assert switch.bridges() != []
    done = pods.run(*PING)
    assert "removed what a killed run had left" in done.stderr
    assert switch.bridges() == []


def round_trips(pods: Pods, *arguments: str) -> dict[str, Any]:
    """The output of a ping in which nearly all round trips were completed, and all are counted.

    A switch that changes its ports, or does not run for half a second, may drop a frame: then the ping is repeated.
    """

    def told() -> dict[str, Any] | None:
        found: dict[str, Any] = pods.told(*PING, *arguments)
        assert found["received"] > 0
        assert found["received"] + found["lost"] == 50
        assert found["problem"] == ""
        return found if found["received"] >= 40 else None

    found: dict[str, Any] = wait_until(told, SECONDS, "nearly all frames to come back")
    return found


def up_ports(switch: Switch) -> list[str]:
    rows = switch.rows("Interface", "type=dpdkvhostuserclient")
    return [row["name"] for row in rows if row["link_state"] == "up"]


def switch_counts(pods: Pods) -> int:
    """How many packets found a flow in the datapath."""
    shown = pods.switch.appctl("dpctl/show")
    return int(shown.partition("lookups: hit:")[2].partition(" ")[0])


def test_a_connection_is_seen_at_once(pods: Pods) -> None:
    """A connection counts before OVS reports that its port is up, and until the application has left."""
    b = pods.attach("b", "server")
    assert connections_anywhere(b.port) == 0
    with FrontEnd.connect(str(b.socket), timeout_s=SECONDS):
        assert connections_anywhere(b.port) == 1
    wait_until(lambda: connections_anywhere(b.port) == 0, what="no connection")
