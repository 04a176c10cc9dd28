"""The traits of a kind of port agree with its rows: most code uses the traits, the switch the rows."""

from __future__ import annotations

from typing import get_args

import pytest

from userspace_cni.attachment.steps import HostEnd, Internal, OvsPort, Patch, PortInterface, VhostUserClient, VhostUserServer
from userspace_cni.base.errors import SwitchRefused
from userspace_cni.base.limits import Limits, Netem, Rate
from userspace_cni.base.port_kinds import KernelPort
from userspace_cni.switch.ovsdb.rows.interface_row import SERVER_PATH, interface_row
from userspace_cni.switch.ovsdb.rows.qos_row import policing_columns, qos_row

RATE = Rate(1_000_000, 1_000_000)
KINDS: tuple[PortInterface, ...] = (
    VhostUserClient("/run/app.sock"),
    VhostUserServer(),
    *(HostEnd(each) for each in get_args(KernelPort)),
    Internal(),
    Patch("other"),
)


def port(kind: PortInterface, limits: Limits) -> OvsPort:
    return OvsPort("br0", "p", kind, limits=limits)


def can_have(kind: PortInterface, limits: Limits) -> bool:
    """Whether there are rows for these limits of such a port."""
    try:
        qos_row(port(kind, limits))
    except SwitchRefused:
        return False
    return True


def test_no_kind_is_left_out() -> None:
    """The tests here cover all kinds."""
    assert {type(kind) for kind in KINDS} == set(get_args(PortInterface))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.opened_as)
def test_what_a_kind_says_of_itself(kind: PortInterface) -> None:
    """Type and socket are those of its row, and what the switch can limit has rows."""
    row = interface_row(port(kind, Limits()))
    assert (row.type, row.options.get(SERVER_PATH, "")) == (kind.type, kind.server_path)
    assert (kind.role == "client") == bool(kind.server_path)
    assert not (kind.role and kind.link_by)
    assert can_have(kind, Limits(from_pod=RATE)) == kind.polices
    assert can_have(kind, Limits(netem=Netem(latency_ms=1))) == (kind.limited_as == "system")
    assert can_have(kind, Limits(to_pod=RATE)) == (kind.limited_as != "afxdp")
    if kind.polices:
        assert policing_columns(port(kind, Limits(from_pod=RATE)))["ingress_policing_rate"] == 1000


def test_who_makes_the_socket() -> None:
    """If the switch is the server, it makes the socket; then the path has to be free."""
    assert [port(kind, Limits()).switch_makes_socket for kind in KINDS] == [isinstance(kind, VhostUserServer) for kind in KINDS]


def test_links_of_a_port() -> None:
    """The kernel has a link of the port's name if it is a veth's host end or a link of the node."""
    assert [port(kind, Limits()).links for kind in KINDS] == [
        ("p",) if isinstance(kind, HostEnd | Internal) else () for kind in KINDS
    ]
