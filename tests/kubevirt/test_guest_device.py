"""How a VM's vhost-user device appears to its guest depends on QEMU, on the guest and on the port: MTU and queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.guests import guest_peer
from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.guest_port import ADDRESS, MAC, PORT, SOCKET, guest_at_port
from tests.lab.guests.qemu import Machine, Qemu, VhostNic
from tests.lab.switch.switch import Switch, wait_until

JUMBO, BIG = 9000, 8000


@pytest.fixture(scope="module")
def guest(switch: Switch) -> Iterator[Qemu]:
    """A guest with two processors, two queues and jumbo frames, which pings the peer."""
    append = command_line(Nic(MAC, ADDRESS), ping=(guest_peer.ADDRESS,), big=BIG, every_ms=50)
    with guest_at_port(switch, Machine(append, (VhostNic(SOCKET, MAC, mtu=JUMBO, queues=2),), vcpus=2)) as started:
        yield started


def test_queues_are_what_the_guest_takes(guest: Qemu, switch: Switch) -> None:
    """The guest uses both queue pairs that QEMU offers, and so does the port, unconfigured."""
    assert " queues=2 " in guest.until(f"GUEST up mac={MAC}")
    row = wait_until(lambda: (row := switch.interface(PORT))["link_state"] == "up" and row, what="the port's link")
    assert (row["status"]["status"], row["status"]["num_of_vrings"]) == ("connected", "4")


def test_jumbo_frames_end_where_the_port_is_smaller(guest: Qemu, switch: Switch) -> None:
    """Frames of QEMU's MTU pass if the port has it, too; a smaller port drops them silently, and short ones pass."""
    assert f" mtu={JUMBO} " in guest.until(f"GUEST up mac={MAC}")
    guest.until(f"ok size={BIG}")
    switch.vsctl("set", "Interface", PORT, "mtu_request=1500")
    wait_until(lambda: switch.interface(PORT)["mtu"] == 1500, what="the port's MTU")
    guest.until(f"lost size={BIG}", after=len(guest.said))
    told = len(guest.said)
    guest.until(" ok peer=", after=told)
    assert " lost " in guest.until("PING-BIG ", after=told)
    switch.vsctl("set", "Interface", PORT, f"mtu_request={JUMBO}")
    guest.until(f"ok size={BIG}", after=told)
