"""`userspace-cni tap` at a real OVS-DPDK: two namespaces, as two pods without DPDK, talk through the kernel's own sockets."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.lab.frames.exchanges import datagrams, transfer
from tests.lab.frames.taps import SECONDS, TapProcess, echoes, links
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from tests.lab.switch.vhost_ports import agreed_features
from userspace_cni.fastpath.vhost.vhost_messages import Feature
from userspace_cni.pod import document

LEFT, RIGHT = "10.9.0.1", "10.9.0.2"
MAC = "02:00:00:0a:09:02"


@pytest.fixture
def pods() -> Iterator[tuple[str, str]]:
    """Two network namespaces."""
    with netns() as left, netns() as right:
        yield left, right


def add_bridge(switch: Switch) -> None:
    switch.vsctl("add-br", "br-tap", "--", "set", "bridge", "br-tap", "datapath_type=netdev")


def add_client_port(switch: Switch, path: Path, mtu: int = 1500) -> None:
    """A port whose switch connects to `path`, where a tap listens already."""
    wait_until(path.exists, SECONDS, f"a socket at {path}")
    options = [f"mtu_request={mtu}", f"options:vhost-server-path={path}"]
    name = f"tap-{path.name}"
    switch.vsctl("add-port", "br-tap", name, "--", "set", "Interface", name, "type=dpdkvhostuserclient", *options)


def listening_tap(stack: ExitStack, pod: str, path: Path, address: str, *more: str) -> TapProcess:
    """A tap in the pod that makes the socket."""
    arguments = [str(path), "--mode", "server", "--name", "net1", "--address", f"{address}/24", *more]
    return stack.enter_context(TapProcess(pod, *arguments))


def test_two_taps_talk(switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """At a port of either kind, by split rings, one tap connecting and the other being connected to: ping, TCP and UDP arrive."""
    left, right = pods
    add_bridge(switch)
    switch.vsctl("add-port", "br-tap", "tap-server", "--", "set", "Interface", "tap-server", "type=dpdkvhostuser")
    server_path = Path(switch.rundir) / "tap-server"
    with ExitStack() as stack:
        wait_until(server_path.exists, SECONDS, "the switch's socket")
        one = stack.enter_context(TapProcess(left, str(server_path), "--address", f"{LEFT}/24"))
        other = listening_tap(stack, right, place / "b", RIGHT, "--mac", MAC)
        add_client_port(switch, place / "b")
        assert (one.until("ready")["mode"], other.until("ready")["mode"]) == ("client", "server")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        for port in ("tap-server", "tap-b"):
            assert Feature.RING_PACKED not in agreed_features(switch, port)
        transfer(left, right, RIGHT, 32 << 20)
        datagrams(left, right, RIGHT, range(1, 60000, 3001))
        (name,) = set(links(left)) - {"lo"}
        link = links(right)["net1"]
        assert (link["address"], link["mtu"], link["operstate"]) == (MAC, 1500, "UP")
        assert name.startswith("tap")
        for tap in (one, other):
            assert tap.end(signal.SIGTERM) == 0
            ended = tap.until("ended")
            assert min(ended["to_switch"]["bytes"], ended["from_switch"]["bytes"]) > 100_000
        assert (set(links(left)), set(links(right))) == ({"lo"}, {"lo"})
        assert not (place / "b").exists()
        assert server_path.exists()


def test_jumbo_frames(switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """With an MTU of 9000 at port and tap, packets of 9000 bytes pass in one frame and a transfer arrives intact."""
    left, right = pods
    add_bridge(switch)
    with ExitStack() as stack:
        one = listening_tap(stack, left, place / "a", LEFT, "--mtu", "9000")
        other = listening_tap(stack, right, place / "b", RIGHT, "--mtu", "9000")
        for name in ("a", "b"):
            add_client_port(switch, place / name, 9000)
        one.until("ready")
        other.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        assert echoes(left, RIGHT, 9000 - 28, SECONDS)
        assert not echoes(left, RIGHT, 9001 - 28, SECONDS)
        transfer(left, right, RIGHT, 32 << 20)
        assert one.end(signal.SIGINT) == 0
        assert one.until("ended")["to_switch"]["dropped"] == 0


def test_switch_restarts(own_switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """When ovs-vswitchd ends the links lose carrier, and when it is back they carry again: no tap is restarted."""
    left, right = pods
    add_bridge(own_switch)
    own_switch.vsctl("add-port", "br-tap", "tap-server", "--", "set", "Interface", "tap-server", "type=dpdkvhostuser")
    with ExitStack() as stack:
        one = listening_tap(stack, left, place / "a", LEFT)
        path = f"{own_switch.rundir}/tap-server"
        other = stack.enter_context(TapProcess(right, path, "--mode", "client", "--address", f"{RIGHT}/24"))
        add_client_port(own_switch, place / "a")
        one.until("ready")
        other.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        own_switch.kill_vswitchd()
        assert "hung up" in one.until("lost")["text"]
        other.until("lost")
        wait_until(lambda: links(left)["net1"]["operstate"] == "DOWN", SECONDS, "no carrier")
        Path(path).unlink()  # a killed switch leaves it, and could not make it again
        own_switch.restart_vswitchd()
        one.until("ready")
        other.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")


def test_killed_and_started_again(switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """After SIGKILL a dead socket is left, and no link; the next run takes its place and traffic flows."""
    left, right = pods
    add_bridge(switch)
    with ExitStack() as stack:
        one = listening_tap(stack, left, place / "a", LEFT)
        add_client_port(switch, place / "a")
        one.until("ready")
        assert one.end(signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: set(links(left)) == {"lo"}, SECONDS, "no link")
        assert (place / "a").exists()
        one, other = listening_tap(stack, left, place / "a", LEFT), listening_tap(stack, right, place / "b", RIGHT)
        add_client_port(switch, place / "b")
        one.until("ready")
        other.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")


def test_settings_from_the_pods_document(switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """Without a socket on the command line the pod's own document gives all: socket, role, name, MAC, MTU, address."""
    pod, _ = pods
    add_bridge(switch)
    link = {"name": "net1", "mac": MAC, "mtu": 1400}
    result = {"interfaces": [link], "ips": [{"address": f"{RIGHT}/24", "interface": 0}]}
    config = {"engine": "ovs-dpdk", "iftype": "vhostuser", "vhost": {"mode": "server", "socketfile": "b"}}
    entry = document.build_entry("c" * 64, "net1", "network", config, result)
    with TapProcess(pod, "--dir", str(place)) as tap:
        (place / "configData-1.json").write_text(json.dumps(entry))
        add_client_port(switch, place / "b")
        ready = tap.until("ready")
        assert (ready["name"], ready["socket"], ready["mode"]) == ("net1", f"{place}/b", "server")
        found = links(pod)["net1"]
        assert (found["address"], found["mtu"]) == (MAC, 1400)
        assert RIGHT in [address["local"] for address in found["addr_info"]]
        assert tap.end(signal.SIGTERM) == 0


def test_a_port_that_is_in_use(switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """A dpdkvhostuser port that a tap of the pod has is refused to a second one, also when it was moved; force takes it over."""
    left, right = pods
    add_bridge(switch)
    switch.vsctl("add-port", "br-tap", "tap-server", "--", "set", "Interface", "tap-server", "type=dpdkvhostuser")
    made = Path(switch.rundir) / "tap-server"
    wait_until(made.exists, SECONDS, "the switch's socket")
    path = str(made.rename(made.with_name("moved")))
    with ExitStack() as stack:
        one = stack.enter_context(TapProcess(left, path, "--name", "net1", "--address", f"{LEFT}/24"))
        other = listening_tap(stack, right, place / "b", RIGHT)
        add_client_port(switch, place / "b")
        one.until("ready")
        other.until("ready")
        second = stack.enter_context(TapProcess(left, path))
        assert second.finished() == 1
        assert f"{path}: another program is connected to it" in second.errors()
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
        third = stack.enter_context(TapProcess(left, path, "--name", "net2", "--force"))
        third.until("ready")
        assert one.end(signal.SIGTERM) == 0
        subprocess.run(["nsenter", f"--net={left}", "ip", "address", "add", f"{LEFT}/24", "dev", "net2"], check=True)
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo through the port that was taken")
    Path(path).rename(made)  # where the switch removes it


def test_a_port_that_is_attached_again_at_once(switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """However a tap ends at a dpdkvhostuser port, the next one gets it without being told to take it, and traffic flows."""
    left, right = pods
    add_bridge(switch)
    switch.vsctl("add-port", "br-tap", "tap-server", "--", "set", "Interface", "tap-server", "type=dpdkvhostuser")
    path = Path(switch.rundir) / "tap-server"
    wait_until(path.exists, SECONDS, "the switch's socket")
    with ExitStack() as stack:
        other = listening_tap(stack, right, place / "b", RIGHT)
        add_client_port(switch, place / "b")
        other.until("ready")
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
            with TapProcess(left, str(path), "--name", "net1", "--address", f"{LEFT}/24") as one:
                one.until("ready")
                wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
                one.end(number)
                wait_until(lambda: "net1" not in links(left), SECONDS, "no link")
        assert path.exists()


def test_removed_socket_and_restarted_switch(own_switch: Switch, pods: tuple[str, str], place: Path) -> None:
    """A tap whose socket another process removed makes it again when the switch has gone, and the restarted switch finds it."""
    left, right = pods
    add_bridge(own_switch)
    with ExitStack() as stack:
        one, other = listening_tap(stack, left, place / "a", LEFT), listening_tap(stack, right, place / "b", RIGHT)
        for name, tap in (("a", one), ("b", other)):
            add_client_port(own_switch, place / name)
            tap.until("ready")
        (place / "a").unlink()
        own_switch.kill_vswitchd()
        one.until("lost")
        assert "was made again" in one.until("waiting")["text"]
        own_switch.restart_vswitchd()
        one.until("ready")
        other.until("ready")
        wait_until(lambda: echoes(left, RIGHT), SECONDS, "an echo")
