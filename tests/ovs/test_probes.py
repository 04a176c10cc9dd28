"""Probes in a real switch: what they make, what they remove, and what a killed one leaves."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cni.spec import paused_vswitchd
from tests.lab.switch.probing import probing
from tests.lab.switch.switch import Switch, wait_until
from tests.ovs.conftest import attach
from userspace_cni.attachment.run_ids import RunId
from userspace_cni.attachment.steps import OvsPort
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import BadRequest, SwitchRefused, Unavailable
from userspace_cni.base.settings import Settings
from userspace_cni.fastpath.vhost.front_end import FrontEndListener, FrontEndOptions
from userspace_cni.node import probes
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.probes import ProbePorts
from userspace_cni.switch.ports import PortDriver

NETDEV = ("--", "set", "Bridge", "br-test", "datapath_type=netdev")
VICTIM = """
import os, socket, sys, time
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.probes import ProbePorts
from userspace_cni.base.settings import load
node = LocalNode(load(os.environ), os.environ, resident=True)
with ProbePorts(node.installation, node, node.switch.ports) as ports:
    port = ports.reserve(sys.argv[1] or None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(port.socket)
    listener.listen()
    ports.plug(port)
    ports.reflect(port)
    print(port.name, flush=True)
    while True:  # signal.pause() would miss one that comes just before it
        time.sleep(0.1)
"""


DYING = """
import os, signal, sys
from userspace_cni.node.local_node import LocalNode
from userspace_cni.node.probes import ProbePorts
from userspace_cni.base.settings import load

class Dying:
    left = int(sys.argv[2])
    def __init__(self, driver):
        self.driver = driver
    def point(self):
        if Dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Dying.left -= 1
    def apply(self, step, deadline):
        self.point()
        rest = self.driver.apply(step, deadline)
        self.point()
        return rest
    def undo(self, step, deadline):
        self.point()
        self.driver.undo(step, deadline)
        self.point()

class Node(LocalNode):
    def driver(self, step):
        return Dying(super().driver(step))

node = Node(load(os.environ), os.environ, resident=True)
with ProbePorts(node.installation, node, node.switch.ports) as ports:
    port = ports.reserve(sys.argv[1] or None)
    ports.plug(port)
    ports.reflect(port)
"""


@pytest.fixture
def settings(switch: Switch) -> Iterator[Settings]:
    """A node's settings, with directories of the test's own."""
    with TemporaryDirectory(prefix="uc-") as directory:
        yield settings_of(switch, directory)
        assert list(Path(directory, "short").glob("*")) == []


def settings_of(switch: Switch, directory: str) -> Settings:
    """The settings of a node with this switch whose directories are below `directory`."""
    return Settings(
        ovsdb=switch.ovsdb,
        ovs_rundir=switch.rundir,
        state_dir=f"{directory}/state",
        run_dir=f"{directory}/run",
        short_dir=f"{directory}/short",
    )


@pytest.fixture
def bridge(switch: Switch) -> str:
    switch.vsctl("add-br", "br-test", *NETDEV)
    return "br-test"


@contextmanager
def listening(path: str) -> Iterator[None]:
    """A socket that accepts connections and sends nothing, like an application that hangs."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        yield


def flows(switch: Switch, bridge: str, version: str = "OpenFlow13") -> list[str]:
    """The bridge's flows that have a cookie of ours, without the values that change with time."""
    argv = ["ovs-ofctl", "--no-stats", "-O", version, "dump-flows", f"{switch.rundir}/{bridge}.mgmt"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return sorted(line.strip() for line in shown.splitlines() if "cookie=0x55636e" in line)


def environ_of(settings: Settings) -> dict[str, str]:
    names = ("ovsdb", "state_dir", "run_dir", "short_dir")
    chosen = {f"USERSPACE_CNI_{name.upper()}": getattr(settings, name) for name in names}
    return {**os.environ, **chosen, "OVS_RUNDIR": settings.ovs_rundir}


@contextmanager
def victim(settings: Settings, bridge: str = "") -> Iterator[subprocess.Popen[str]]:
    """A run in another process whose port is added, and which then waits for a signal."""
    argv = [sys.executable, "-c", VICTIM, bridge]
    with subprocess.Popen(argv, env=environ_of(settings), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("probe-")
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("protocols", ["OpenFlow10", "OpenFlow13", "OpenFlow14,OpenFlow15"])
def test_a_port_and_its_flow_come_and_go(switch: Switch, settings: Settings, bridge: str, protocols: str) -> None:
    """A reflected port has one flow of the highest priority, with any OpenFlow version of the bridge.

    Both are removed together.
    """
    switch.vsctl("set", "Bridge", bridge, f"protocols={protocols}")
    version = protocols.partition(",")[0]
    with probing(settings) as ports:
        port = ports.reserve(bridge)
        with listening(port.socket):
            ports.plug(port, mtu=9000)
            ports.reflect(port)
            row, state = switch.interface(port.name), ports.state(port)
            [flow] = flows(switch, bridge, version)
            assert (row["type"], row["mtu_request"]) == ("dpdkvhostuserclient", 9000)
            assert row["options"] == {"vhost-server-path": port.server_path}
            assert (state.ofport, state.error) == (row["ofport"], "")
            assert f"priority=65535,in_port={row['ofport']} actions=IN_PORT" in flow
            assert "idle_timeout=60, hard_timeout=900" in flow
            ports.unplug(port)
        assert flows(switch, bridge, version) == []
        assert switch.ports(bridge) == []
    assert switch.bridges() == [bridge]


def test_marks(switch: Switch, settings: Settings, bridge: str, driver: PortDriver) -> None:
    """A probe's marks name its owner, and a search for attachments does not find it."""
    with probing(settings, "load") as ports:
        port = ports.reserve(bridge)
        ports.plug(port)
        marks = switch.port(port.name)["external_ids"]
        assert (marks["owner-kind"], marks["purpose"], marks["pid"]) == ("run", "load", str(os.getpid()))
        assert driver.list_marked(Deadline.after(60)) == []
        found = driver.find(port.name, Deadline.after(60))
        assert found
        assert found.marks["owner-kind"] == "run"


def test_probes_are_made_on_the_session_of_the_process(settings: Settings, bridge: str) -> None:
    """All probes of a process use one OVSDB session, which stays open afterwards."""
    with closing(LocalNode(settings, {}, resident=True)) as node:
        node.switch.ports.connect(Deadline.after(60))
        with ProbePorts(node.installation, node, node.switch.ports) as ports:
            ports.connect()
            ports.plug(ports.reserve(bridge))
        assert (node.switch.ports.connected, node.switch.ports.sessions) == (True, 1)


def test_where_sockets_are(settings: Settings, bridge: str) -> None:
    """Each run has a directory that root owns and only OVS's group may enter; no path in it is too long."""
    with probing(settings) as ports:
        directory = Path(ports.reserve(bridge).socket).parent
        facts = directory.stat()
        assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (0, 0o2750)
        assert facts.st_gid == Path(settings.ovs_rundir).stat().st_gid
        assert len(f"{'x' * 60}/{directory.name}/f") <= 107
    assert not directory.exists()


def test_sockets_for_a_switch_of_another_user(settings: Settings, tmp_path: Path) -> None:
    """Directory and socket belong to the group of OVS's run directory, which may enter the one and connect to the other."""
    os.chown(tmp_path, -1, 4711)
    with probing(replace(settings, ovs_rundir=str(tmp_path))) as ports:
        port = ports.reserve("br-any")
        with FrontEndListener(port.socket):
            place, file = Path(port.socket).parent.stat(), Path(port.socket).stat()
            assert (place.st_gid, stat.S_IMODE(place.st_mode)) == (4711, 0o2750)
            assert (file.st_gid, stat.S_IMODE(file.st_mode)) == (4711, 0o660)


def test_below_a_root_of_another_name(switch: Switch, settings: Settings, bridge: str) -> None:
    """When the host's root is mounted elsewhere, the program listens there and gives the switch the host's own path."""
    with probing(replace(settings, host_root="/proc/self/root")) as ports:
        port = ports.reserve(bridge)
        assert port.socket == f"/proc/self/root{port.server_path}"
        with FrontEndListener(port.socket, FrontEndOptions(queue_size=64)) as listener:
            ports.plug(port)
            with listener.accept() as front_end:
                assert front_end.is_alive()
                ports.reflect(port)
        assert len(flows(switch, bridge)) == 1
    assert flows(switch, bridge) == []


def test_who_is_dead() -> None:
    """A run is dead when process, start time or boot differ; a process that cannot be seen does not count as dead."""
    run = RunId.new()
    assert RunId.parse(run.name) == run
    assert not run.is_dead
    assert replace(run, started=run.started - 1).is_dead
    assert replace(run, boot="000000").is_dead
    assert replace(run, boot="000000", namespace="0000").is_dead
    assert not replace(run, started=run.started - 1, namespace="0000").is_dead
    for name in ("", "x", run.name + "0", run.name.upper() + "Z", f"../{run.name}"):
        assert RunId.parse(name) is None


def test_two_ports_on_a_temporary_bridge(switch: Switch, settings: Settings) -> None:
    """A run's own bridge is made with its first port and removed with its last; joined ports have a flow each."""
    with probing(settings) as ports:
        first = ports.reserve()
        second = ports.reserve(first.bridge)
        for port in (first, second):
            ports.plug(port)
        ports.join(first, second)
        a, b = (switch.interface(port.name)["ofport"] for port in (first, second))
        assert [flow.partition("in_port=")[2] for flow in flows(switch, first.bridge)] == [
            f"{a} actions=output:{b}",
            f"{b} actions=output:{a}",
        ]
        assert ports.bridges() == ()
        ports.unplug(first)
        assert flows(switch, first.bridge) == []
        assert switch.ports(first.bridge) == [second.name]
    assert switch.bridges() == []


def test_two_runs_at_once(switch: Switch, settings: Settings, bridge: str) -> None:
    """Each run removes only what is its own."""
    with probing(settings) as one, probing(settings) as other:
        kept, gone = one.reserve(bridge), other.reserve(bridge)
        for ports, port in ((one, kept), (other, gone)):
            ports.plug(port)
            ports.reflect(port)
        assert other.adopt() == []
        other.close()
        assert switch.ports(bridge) == [kept.name]
        assert len(flows(switch, bridge)) == 1


def test_a_plugin_bridge_goes_with_its_last_port(
    switch: Switch, settings: Settings, driver: PortDriver, port: Callable[..., OvsPort]
) -> None:
    """When the last attachment of a bridge of ours is deleted during a probe, the bridge is removed with the probe's port."""
    step = port()
    attach(driver, step, Deadline.after(60))
    with probing(settings) as ports:
        [found] = ports.bridges()
        assert (found.name, found.ours, found.connected, found.waiting, found.broken) == ("br-test", True, 0, 1, 0)
        mine = ports.reserve("br-test")
        ports.plug(mine)
        driver.undo(step, Deadline.after(60))
        assert switch.ports("br-test") == [mine.name]
    assert switch.bridges() == []


def test_bridges_that_cannot_be_probed(switch: Switch, settings: Settings) -> None:
    """A bridge of the kernel's datapath is refused; a missing bridge is not made."""
    switch.vsctl("--no-wait", "add-br", "br-kernel")
    with probing(settings) as ports:
        assert [(bridge.name, bridge.has_vhost) for bridge in ports.bridges()] == [("br-kernel", False)]
        with pytest.raises(SwitchRefused, match="datapath_type system"):
            ports.plug(ports.reserve("br-kernel"))
        with pytest.raises(Unavailable, match="br-absent is missing"):
            ports.plug(ports.reserve("br-absent"))
    assert switch.bridges() == ["br-kernel"]


def test_bridges_that_are_named(switch: Switch, settings: Settings, bridge: str) -> None:
    """A name that is not a bridge for vhost-user ports is refused, and the error lists these bridges."""
    switch.vsctl("--no-wait", "add-br", "br-kernel")
    with probing(settings) as ports:
        assert ports.require_bridge(bridge).name == bridge
        for name, text in (("br-kernel", "system"), ("br-no", "no bridge br-no; there are: br-kernel, br-test"), ("", "''")):
            with pytest.raises(BadRequest, match=text):
                ports.require_bridge(name)


def del_flows(switch: Switch, bridge: str) -> None:
    subprocess.run(["ovs-ofctl", "-O", "OpenFlow13", "del-flows", f"{switch.rundir}/{bridge}.mgmt"], check=True)


def test_flows_of_a_long_run(switch: Switch, settings: Settings, bridge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run lives, its flows are renewed before they expire, as long as their ports exist."""
    monkeypatch.setattr(probes, "RENEW_S", 0.02)
    with probing(settings) as ports:
        first, second = ports.reserve(bridge), ports.reserve(bridge)
        for port in (first, second):
            ports.plug(port)
            ports.reflect(port)
        for _ in range(2):
            del_flows(switch, bridge)
            wait_until(lambda: len(flows(switch, bridge)) == 2)
        ports.unplug(first)
        wait_until(lambda: len(flows(switch, bridge)) == 1)
        switch.vsctl("del-port", second.name)
        del_flows(switch, bridge)
        wait_until(lambda: ports.state(second).ofport == 0)
    assert flows(switch, bridge) == []


def test_a_switch_that_hangs_at_the_end(switch: Switch, settings: Settings, bridge: str) -> None:
    """A port whose flow cannot be deleted stays, and so does the run's directory, until the flow is gone."""
    with probing(settings) as ports:
        port = ports.reserve(bridge)
        ports.plug(port)
        ports.reflect(port)
        with paused_vswitchd(switch):
            with pytest.raises(Unavailable, match="OpenFlow"):
                ports.unplug(port)
            assert switch.ports(bridge) == [port.name]
            assert Path(port.socket).parent.is_dir()
        assert len(flows(switch, bridge)) == 1
    assert flows(switch, bridge) == []
    assert switch.ports(bridge) == []


def test_a_temporary_bridge_when_the_switch_hangs(switch: Switch, settings: Settings) -> None:
    """A run's own bridge is deleted without confirmation that its flows are gone: they go with the bridge."""
    with ExitStack() as stack:
        ports = stack.enter_context(probing(settings))
        port = ports.reserve()
        ports.plug(port)
        ports.reflect(port)
        with paused_vswitchd(switch):
            stack.close()
            assert switch.bridges() == []
            assert not Path(port.socket).parent.exists()
    wait_until(lambda: not Path(switch.rundir, f"{port.bridge}.mgmt").exists())


def test_flows_of_a_dead_run_without_ports(switch: Switch, settings: Settings, bridge: str) -> None:
    """Flows of a killed run are removed even if another process deleted its port; only then is the run forgotten."""
    switch.vsctl("add-br", "br-other", *(part.replace("br-test", "br-other") for part in NETDEV))
    with victim(settings, bridge) as dead:
        dead.kill()
        dead.wait(60)
    [port] = switch.ports(bridge)
    with paused_vswitchd(switch):
        switch.vsctl("--no-wait", "del-port", port)
        with probing(settings, timeout_s=3.0) as ports:
            assert ports.adopt() == []
        assert len(list(Path(settings.short_dir).glob("probe-*"))) == 1
    assert len(flows(switch, bridge)) == 1
    with probing(settings) as ports:
        assert len(ports.adopt()) == 1
    assert flows(switch, bridge) == []


def test_a_dead_switch_has_no_flows(own_switch: Switch) -> None:
    """What a killed run left in a switch that has ended since is removed at once, because its flows ended with the switch."""
    own_switch.vsctl("add-br", "br-test", *NETDEV)
    with TemporaryDirectory(prefix="uc-") as directory:
        settings = settings_of(own_switch, directory)
        with victim(settings, "br-test") as dead:
            dead.kill()
            dead.wait(60)
        own_switch.kill_vswitchd()
        with probing(settings) as ports:
            assert len(ports.adopt()) == 1
        assert own_switch.ports("br-test") == []
        assert list(Path(settings.short_dir).glob("probe-*")) == []


def test_a_signal_that_got_lost(settings: Settings) -> None:
    """A signal whose exception was swallowed still ends the run, and so does the next signal."""
    heard = []

    def hear(number: int, _: object) -> None:
        heard.append(number)

    former = signal.signal(signal.SIGTERM, hear)
    try:
        with probing(settings) as ports:
            ports.heed()
            for _ in range(2):
                with suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGTERM)
                with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
                    ports.heed()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert heard == [signal.SIGTERM, signal.SIGTERM]


def test_a_switch_that_hangs(switch: Switch, settings: Settings, bridge: str) -> None:
    """With a hung switch a run ends at its deadline, and what it made is removed when the switch answers again."""
    with probing(settings, timeout_s=3.0) as ports:
        port = ports.reserve(bridge)
        ports.plug(port)
        with paused_vswitchd(switch), pytest.raises(Unavailable):
            ports.reflect(port)
    assert switch.ports(bridge) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_stop(switch: Switch, settings: Settings, bridge: str, number: signal.Signals) -> None:
    """After each signal by which people and systems end a command, nothing is left."""
    with victim(settings, bridge) as process:
        process.send_signal(number)
        assert process.wait(60) != 0
    assert switch.ports(bridge) == []
    assert flows(switch, bridge) == []


@pytest.mark.parametrize("temporary", [False, True])
def test_a_killed_run_is_adopted(switch: Switch, settings: Settings, bridge: str, temporary: bool) -> None:
    """The next run removes port, flow, socket and temporary bridge of a killed one, and leaves a living one's."""
    with victim(settings, "" if temporary else bridge) as dead, victim(settings, bridge) as living:
        dead.kill()
        wait_until(lambda: "Z" in Path(f"/proc/{dead.pid}/stat").read_text().rpartition(")")[2])
        left = {name for each in switch.bridges() for name in switch.ports(each)}
        assert len(left) == 2
        with probing(settings) as ports:
            [adopted] = ports.adopt()
            assert ports.adopt() == []
        assert adopted in left
        assert switch.bridges() == [bridge]
        assert switch.ports(bridge) == sorted(left - {adopted})
        assert len(flows(switch, bridge)) == 1
        living.send_signal(signal.SIGTERM)
        living.wait(60)
    assert flows(switch, bridge) == []


@pytest.mark.parametrize("left", ["all", "no port", "no directory"])
def test_a_killed_run_whose_record_is_lost(switch: Switch, settings: Settings, bridge: str, left: str) -> None:
    """Port, flows and directory are found by marks and by the directory's name, and removed; a living run's stay."""
    with victim(settings, bridge) as dead, victim(settings, bridge) as living:
        dead.kill()
        dead.wait(60)
        for record in Path(settings.state_dir, "runs").glob("*"):
            record.unlink()
        [port] = [each["name"] for each in switch.rows("Port") if each["external_ids"].get("pid") == str(dead.pid)]
        [directory] = [each for each in Path(settings.short_dir).iterdir() if each.name.startswith(f"probe-{dead.pid:x}.")]
        if left == "no port":
            switch.vsctl("del-port", port)
        elif left == "no directory":
            shutil.rmtree(directory)
        assert len(flows(switch, bridge)) == 2
        with probing(settings) as ports:
            assert len(ports.adopt()) == 1
            assert ports.adopt() == []
        assert (len(flows(switch, bridge)), directory.exists(), len(switch.ports(bridge))) == (1, False, 1)
        living.send_signal(signal.SIGTERM)
        living.wait(60)
    assert (switch.ports(bridge), flows(switch, bridge)) == ([], [])


def test_ports_of_another_installation(switch: Switch, settings: Settings, bridge: str) -> None:
    """What a killed run of another state directory left is not ours to remove."""
    with TemporaryDirectory(prefix="uc-") as elsewhere:
        other = settings_of(switch, elsewhere)
        with victim(other, bridge) as dead:
            dead.kill()
            dead.wait(60)
            with probing(settings) as ports:
                assert ports.adopt() == []
            assert len(switch.ports(bridge)) == 1
            with probing(other) as ports:
                assert len(ports.adopt()) == 1
    assert switch.ports(bridge) == []


@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("point", range(12))
def test_a_run_that_dies_at_any_point(switch: Switch, settings: Settings, bridge: str, point: int, temporary: bool) -> None:
    """After death before or after the effect or undo of any step, exactly one of two cleaners finds the record and undoes it."""
    argv = [sys.executable, "-c", DYING, "" if temporary else bridge, str(point)]
    assert subprocess.run(argv, env=environ_of(settings), timeout=60, check=False).returncode == -signal.SIGKILL
    with probing(settings) as one, probing(settings) as other, ThreadPoolExecutor(2) as threads:
        removed = [name for names in threads.map(lambda ports: ports.adopt(), (one, other)) for name in names]
    assert len(set(removed)) == 1
    assert (switch.bridges(), switch.ports(bridge), flows(switch, bridge)) == ([bridge], [], [])
    assert list(Path(settings.state_dir, "runs").glob("*")) == []
