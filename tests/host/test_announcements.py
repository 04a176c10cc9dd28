"""Neighbours learn a pod's addresses at once, and a neighbour that already has one of them makes ADD fail."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.host.places import looping, soon
from tests.lab.frames.taps import SECONDS, links, socket_in
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.switch import wait_until
from tests.lab.switch.veths import give, inside, veth
from userspace_cni.attachment.steps import Announcement
from userspace_cni.base.errors import ContainerGone, StepFailed
from userspace_cni.host.pod_net import announcements
from userspace_cni.host.pod_net.announcements import AnnouncementDriver

V4, V6 = "10.9.0.1", "2001:db8::1"
STALE = "02:00:00:00:00:99"


@pytest.fixture
def other() -> Iterator[str]:
    """The namespace of another machine on the wire."""
    with netns() as path:
        yield path


@pytest.fixture
def step(sandbox: str, other: str) -> Announcement:
    """A pod's interface with two addresses, and the other machine's on the same wire."""
    veth(other, "wire0", sandbox, "eth0", f"{V4}/24", f"{V6}/64")
    give(other, "wire0", "10.9.0.254/24", "2001:db8::254/64", "fe80::254/64")
    mac = links(sandbox)["eth0"]["address"]
    return Announcement("eth0", mac, sandbox, Path(sandbox).stat().st_ino, (f"{V4}/24", f"{V6}/64"))


def known(other: str) -> dict[str, str]:
    """The MAC that the other machine has cached for each of the pod's addresses."""
    return {each["dst"]: each.get("lladdr", "") for each in json.loads(inside(other, "ip", "-json", "neighbour"))}


def with_stale_caches(other: str) -> None:
    """The other machine has cached the addresses of a pod that is gone."""
    for address in (V4, V6):
        inside(other, "ip", "neighbour", "replace", address, "lladdr", STALE, "dev", "wire0", "nud", "reachable")
    assert known(other).items() >= {V4: STALE, V6: STALE}.items()


def test_caches_are_replaced(step: Announcement, other: str) -> None:
    """A neighbour that had another MAC for the addresses gets the pod's, for both IP versions."""
    with_stale_caches(other)
    driver = AnnouncementDriver()
    driver.apply(step, soon())
    wait_until(lambda: known(other).items() >= {V4: step.mac, V6: step.mac}.items(), SECONDS, "the pod's MAC in both caches")
    assert driver.check(step, soon()) == []
    driver.undo(step, soon())


@pytest.mark.parametrize("address", [f"{V4}/24", f"{V6}/64"])
def test_a_duplicate_is_refused(step: Announcement, other: str, address: str) -> None:
    """An address that another machine has is refused with its MAC, and not announced; without the check no question is sent."""
    with_stale_caches(other)
    give(other, "wire0", address)
    theirs = links(other)["wire0"]["address"]
    with pytest.raises(StepFailed, match=f"{address.partition('/')[0]} is in use by {theirs}") as caught:
        AnnouncementDriver().apply(replace(step, duplicate_check=True), soon())
    assert caught.value.code == 100
    assert step.mac not in known(other).values()
    AnnouncementDriver().apply(step, soon())


def test_a_question_that_is_lost(step: Announcement, other: str) -> None:
    """The question is repeated, because a switch may lose an answer in the first milliseconds of a port."""
    with socket_in(other, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("wire0", 0x0806))
        AnnouncementDriver().apply(replace(step, addresses=(f"{V4}/24",), duplicate_check=True), soon())
        probes = [wire.recv(100)[28:32] for _ in range(2)]
    assert probes == [bytes(4)] * 2


def test_free_addresses_are_taken(step: Announcement, other: str) -> None:
    """With the check, free addresses are announced after a limited time, even when a neighbour never stops sending frames."""
    with_stale_caches(other)
    with socket_in(other, socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("wire0", 0))
        with looping(lambda: wire.send(b"\xff" * 6 + bytes(8) + b"\x08\x06" + bytes(28))):
            AnnouncementDriver().apply(replace(step, duplicate_check=True), soon())
    wait_until(lambda: known(other).items() >= {V4: step.mac, V6: step.mac}.items(), SECONDS, "the pod's MAC in both caches")


def test_gateways(step: Announcement, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways that answer, also a link-local one, are no problem; one that does not is named."""
    there = ("10.9.0.254", "2001:db8::254", "fe80::254")
    AnnouncementDriver().apply(replace(step, gateways=there), soon())
    AnnouncementDriver().apply(replace(step, addresses=(), gateways=there), soon())
    monkeypatch.setattr(announcements, "GATEWAY_S", 0.3)
    with pytest.raises(StepFailed, match=r"no answer from the gateway 10\.9\.0\.253 within") as caught:
        AnnouncementDriver().apply(replace(step, gateways=(*there, "10.9.0.253")), soon())
    assert caught.value.code == 100


def test_no_link_to_announce_by(step: Announcement, sandbox: str) -> None:
    """A link that is down or gone, and a namespace that is another one, are errors that name them."""
    inside(sandbox, "ip", "link", "set", "eth0", "down")
    with pytest.raises(StepFailed, match=r"link eth0: announcing .*: Network is down"):
        AnnouncementDriver().apply(step, soon())
    inside(sandbox, "ip", "link", "del", "eth0")
    with pytest.raises(StepFailed, match=r"link eth0: announcing .*: No such device"):
        AnnouncementDriver().apply(step, soon())
    with pytest.raises(ContainerGone, match="another namespace"):
        AnnouncementDriver().apply(replace(step, netns_inode=1), soon())
