"""A VM moves from one launcher pod to another, both attached by the plugin: what the switch and the VM's peer see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.lab.guests.guest_peer import ADDRESS, PORT, Peer, Stream, peer_at
from tests.lab.guests.hooks import HookManager, Sidecar
from tests.lab.guests.libvirt_domain import Vm
from tests.lab.guests.monitor import MonitorError
from tests.lab.guests.qemu import HERE, TRIXIE, migrate
from tests.lab.guests.qemu_pods import BRIDGE, GUEST, IFNAME, NETWORK, Launcher, forwarded_to
from tests.lab.node.node import Node
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import Switch, wait_until
from userspace_cni.pod.launcher import socket_path

STREAM_EVERY_S = 0.005
MORE_ANSWERS = 50


@pytest.fixture
def launchers(node: Node, request: pytest.FixtureRequest) -> Iterator[tuple[Launcher, Launcher]]:
    """The source's pod, in which the VM runs, and the target's; both are attached. The parameter is their QEMU."""
    emulator = getattr(request, "param", TRIXIE)
    with netns() as one, netns() as other:
        source, target = Launcher(node, "aaaaa", one, emulator), Launcher(node, "bbbbb", other, emulator)
        source.add()
        target.add()
        yield source, target


@pytest.fixture
def peer(launchers: tuple[Launcher, Launcher], switch: Switch) -> Iterator[Peer]:
    """Another machine on the VM's network."""
    with TemporaryDirectory(prefix="uc-") as directory, peer_at(switch, BRIDGE, Path(directory)) as peer:
        yield peer


def goes_on(stream: Stream) -> bool:
    """Whether requests that are sent from now on are answered."""
    last = len(stream.sent)
    return bool(wait_until(lambda: sum(number > last for number in list(stream.answered)) >= MORE_ANSWERS, what="answers"))


@pytest.mark.parametrize("launchers", [HERE, TRIXIE], ids=["here", "trixie"], indirect=True)
def test_a_running_vm_moves_to_another_pod(launchers: tuple[Launcher, Launcher], peer: Peer, switch: Switch) -> None:
    """The VM answers at the target's port as before at the source's, with the same MAC, and DEL of each pod ends its own port."""
    source, target = launchers
    mac = source.attached["mac"]
    assert target.attached["mac"] == mac
    numbers = [launcher.interface["ofport"] for launcher in launchers]
    assert len(set(numbers)) == 2
    with source.qemu() as left:
        booted = left.until("GUEST up")
        with peer.stream(mac, GUEST, STREAM_EVERY_S) as stream:
            assert forwarded_to(switch, mac) == numbers[0]
            with target.qemu(incoming=True) as arrived:
                migrate(left, arrived)
                assert goes_on(stream)
                assert (left.status(), arrived.status()) == ("postmigrate", "running")
                assert forwarded_to(switch, mac) == numbers[1]
                source.delete()
                assert source.interface == {}
                assert target.interface["ofport"] == numbers[1]
                assert goes_on(stream)
                assert booted not in arrived.said
    target.delete()
    assert switch.ports(BRIDGE) == [PORT]


def defined(launcher: Launcher, definition: str) -> str:
    """The definition that the pod's sidecar makes of the VM, whose network is this NetworkAttachmentDefinition."""
    vmi = Vm("vm1", (NETWORK,)).vmi()
    vmi["metadata"]["namespace"] = launcher.pod.namespace
    vmi["spec"]["networks"][0]["multus"]["networkName"] = definition
    with TemporaryDirectory(prefix="uk-") as directory:
        podinfo, hooks = Path(directory) / "network-info", Path(directory) / "hooks"
        hooks.mkdir()
        podinfo.write_text(json.dumps(launcher.network_info))
        with Sidecar(hooks, USERSPACE_CNI_KUBEVIRT_PODINFO=str(podinfo)) as sidecar:
            xml = HookManager(hooks).collect().on_define_domain(Vm("vm1").xml(), vmi)
            assert f"sources={NETWORK}:device-info" in sidecar.log
            return xml


@pytest.mark.parametrize("bridge", [{"bridgeName": "br-other"}, {"vlanId": 7}], ids=["bridge", "vlan"])
def test_a_running_vm_moves_to_another_network(node: Node, switch: Switch, bridge: dict[str, Any], tmp_path: Path) -> None:
    """KubeVirt changes a VM's network by a migration: in the target's pod the interface's name is on another network.

    The target's own sidecar makes the definition: same socket, same MAC. The guest keeps both, its frames are on the new network,
    and nothing of it is left on the former one.
    """
    name, vlan = bridge.get("bridgeName", BRIDGE), bridge.get("vlanId", 0)
    with netns() as one, netns() as other:
        source = Launcher(node, "aaaaa", one, pings=(ADDRESS,))
        target = Launcher(node, "bbbbb", other, pings=(ADDRESS,), bridge=bridge)
        for launcher in (source, target):
            launcher.add()
        mac = source.attached["mac"]
        definition = defined(source, "red")
        assert defined(target, "green") == definition
        (made,) = ET.fromstring(definition).findall("devices/interface[@type='vhostuser']")
        found = {child.tag: child.attrib for child in made}
        assert (found["source"]["path"], found["mac"]["address"]) == (socket_path(IFNAME), mac)
        with peer_at(switch, name, tmp_path) as peer, source.qemu() as left:
            if vlan:
                switch.vsctl("set", "Port", PORT, f"tag={vlan}")
            booted = left.until("GUEST up")
            left.until(" lost ")
            assert forwarded_to(switch, mac) == source.interface["ofport"]
            assert peer.requests == []
            with target.qemu(incoming=True) as arrived:
                migrate(left, arrived)
                with peer.stream(mac, GUEST, STREAM_EVERY_S) as stream:
                    assert goes_on(stream)
                    arrived.until(" ok ")
                    assert set(peer.requests) == {mac}
                    assert forwarded_to(switch, mac, name, vlan) == target.interface["ofport"]
                    source.delete()
                    assert source.interface == {}
                    assert goes_on(stream)
                assert booted not in arrived.said
        target.delete()


def test_post_copy_is_refused_before_anything_moves(launchers: tuple[Launcher, Launcher]) -> None:
    """A target connected to this switch refuses post-copy, as OVS does by default, and says so when asked."""
    _, target = launchers
    target.emulator = replace(TRIXIE, user=0)  # Linux would refuse QEMU's own user, before QEMU asks the switch
    with target.qemu(incoming=True) as arriving:
        with pytest.raises(MonitorError, match="not capable of postcopy"):
            arriving.monitor.run("migrate-set-capabilities", capabilities=[{"capability": "postcopy-ram", "state": True}])
        assert arriving.status() == "inmigrate"
