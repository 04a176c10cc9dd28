"""A gateway's link has the addresses of its step; an administrator's additions stay."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.places import soon
from tests.lab.network.outside import NIC, Wire, wired
from tests.lab.runtimes.runtime import netns
from tests.lab.switch.veths import inside
from userspace_cni.attachment.steps import NodeLink
from userspace_cni.base.root import HERE
from userspace_cni.host.netlink.link_messages import FoundLink
from userspace_cni.host.node_net import node_links
from userspace_cni.host.node_net.nics import look
from userspace_cni.host.node_net.node_links import NodeLinkDriver
from userspace_cni.host.node_net.switch_links import addresses_of
from userspace_cni.host.pod_net import pod_links as host_links
from userspace_cni.linux.netlink import NetlinkConnection

OURS, THEIRS = "10.56.0.1/24", "192.0.2.50/24"


@pytest.fixture
def wire(sandbox: str) -> Iterator[Wire]:
    """A link in a namespace of its own, with an address of an administrator."""
    with wired(sandbox, (THEIRS,), ("192.0.2.1/24",)) as made:
        yield made


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "older"])
def test_what_an_administrator_has_added_stays(wire: Wire, monkeypatch: pytest.MonkeyPatch, marks: bool) -> None:
    """They stay even when all of ours are gone, and on a kernel that keeps no protocol of addresses."""
    monkeypatch.setattr(node_links, "MARKS_ADDRESSES", marks)
    driver, step = NodeLinkDriver(), NodeLink(NIC, (OURS,), switch_netns=wire.node)
    driver.apply(step, soon())
    for _ in range(2):
        driver.undo(step, soon())
        found = look(NIC, wire.node)
        assert found
        assert found.shown_addresses == (THEIRS,)


def test_sysctls_that_cannot_be_written(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sysctl that has the desired value is not opened for writing: /proc/sys may be read-only."""
    driver, step = NodeLinkDriver(), NodeLink(NIC, (OURS,), switch_netns=wire.node)
    driver.apply(step, soon())
    real = Path.open

    def read_only(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if "+" in mode or "w" in mode:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(self, mode, *more, **named)

    monkeypatch.setattr(Path, "open", read_only)
    driver.apply(step, soon())
    assert driver.check(step, soon()) == []


def test_a_link_that_goes_between_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that vanishes before its addresses are read is left out, and the others are reported."""
    with netns() as place:
        for name in ("goes", "stays"):
            inside(place, "ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-0")
            inside(place, "ip", "address", "add", "192.0.2.1/24" if name == "goes" else "198.51.100.1/24", "dev", name)
        find = host_links.find_link

        def found_link(kernel: NetlinkConnection, name: str) -> FoundLink | None:
            found = find(kernel, name)
            if name == "goes":
                inside(place, "ip", "link", "delete", name)
            return found

        monkeypatch.setattr(host_links, "find_link", found_link)
        assert addresses_of(("goes", "stays"), place, HERE) == {"stays": ("198.51.100.1",)}
