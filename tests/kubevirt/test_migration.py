"""A VM moves from one launcher pod to another, both attached by the plugin: what the switch and the VM's peer see of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lab.guest_peer import PORT, Peer, Stream, peer_at
from tests.lab.node import Node
from tests.lab.qemu import HERE, TRIXIE, MonitorError, migrate
from tests.lab.qemu_pods import BRIDGE, GUEST, Launcher, forwarded_to
from tests.lab.runtime import netns
from tests.lab.switch import Switch, wait_until

STREAM_EVERY_S = 0.005
MORE_ANSWERS = 50


@pytest.fixture
def launchers(node: Node, request: pytest.FixtureRequest) -> Iterator[tuple[Launcher, Launcher]]:
    """The pod in which the VM runs, and the one to which it shall move; both are attached. The parameter is their QEMU."""
    emulator = getattr(request, "param", TRIXIE)
    with netns() as one, netns() as other:
        source, target = Launcher(node, "aaaaa", one, emulator), Launcher(node, "bbbbb", other, emulator)
        source.add()
        target.add()
        yield source, target


@pytest.fixture
def peer(launchers: tuple[Launcher, Launcher], switch: Switch) -> Iterator[Peer]:
    """Somebody else on the VM's network."""
    with TemporaryDirectory(prefix="uc-") as directory, peer_at(switch, BRIDGE, Path(directory)) as peer:
        yield peer


def goes_on(stream: Stream) -> bool:
    """Whether requests that are sent from now on are answered."""
    last = len(stream.sent)
    return bool(wait_until(lambda: sum(number > last for number in list(stream.answered)) >= MORE_ANSWERS, 30, "answers"))


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


def test_post_copy_is_refused_before_anything_moves(launchers: tuple[Launcher, Launcher]) -> None:
    """A target connected to this switch does not take part in post-copy, as OVS by default does not; it says so when asked."""
    _, target = launchers
    target.emulator = replace(TRIXIE, user=0)  # Linux would refuse QEMU's own user, before QEMU asks the switch
    with target.qemu(incoming=True) as arriving:
        with pytest.raises(MonitorError, match="not capable of postcopy"):
            arriving.monitor.run("migrate-set-capabilities", capabilities=[{"capability": "postcopy-ram", "state": True}])
        assert arriving.status() == "inmigrate"
