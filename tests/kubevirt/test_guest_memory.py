"""Memory that QEMU does not share: the reason why the sidecar shares it, and the lint asks for it."""

from __future__ import annotations

from tests.lab.guests import guest_peer
from tests.lab.guests.guest import Nic, command_line
from tests.lab.guests.guest_port import ADDRESS, BRIDGE, MAC, PORT, SOCKET, guest_at_port
from tests.lab.guests.qemu import Machine, VhostNic
from tests.lab.switch.switch import Switch


def test_private_memory_connects_and_carries_nothing(switch: Switch) -> None:
    """With memory that QEMU does not share, guest and switch both say that the link is up, and no frame passes."""
    append = command_line(Nic(MAC, ADDRESS), ping=(guest_peer.ADDRESS,))
    with guest_at_port(switch, Machine(append, (VhostNic(SOCKET, MAC, mtu=1500),), shared=False)) as guest:
        assert " carrier=1 " in guest.until("GUEST up")
        assert " lost " in guest.until("PING seq=1 ")
        assert " lost " in guest.until("PING seq=2 ")
        row = switch.interface(PORT)
        assert (row["link_state"], row["status"]["status"]) == ("up", "connected")
        assert MAC not in switch.appctl("fdb/show", BRIDGE)
