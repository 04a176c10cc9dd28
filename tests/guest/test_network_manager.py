"""A NIC of NetworkManager: addresses cannot move while it configures the NIC, and move once it does not."""

from __future__ import annotations

from tests.lab.hardware.full_guest import FullGuest
from tests.lab.hardware.guest_node import GuestNode, provider, veth_network

_STARTED = """
mkdir -p /run/dbus /run/udev /var/lib/NetworkManager
dbus-daemon --system --fork
ln -s /usr/bin/udevadm /run/systemd-udevd; /run/systemd-udevd --daemon
udevadm trigger --subsystem-match=net --action=add; udevadm settle
printf '[main]\\nplugins=keyfile\\nno-auto-default=*\\n[keyfile]\\nunmanaged-devices=except:interface-name:k0\\n' \\
    >/etc/NetworkManager/NetworkManager.conf
NetworkManager
until nmcli general; do sleep 0.2; done  # its name on the bus comes later
nmcli --wait 60 connection add type ethernet ifname k0 con-name k0 autoconnect no ipv6.method disabled {addresses}
nmcli --wait 60 connection up k0
"""
"""NetworkManager's daemon, and what it needs of a node. It manages k0 alone."""


def managed(guest: FullGuest, addresses: str) -> None:
    """Start NetworkManager, and make it configure k0."""
    guest.shell(_STARTED.format(addresses=addresses))


def test_addresses_move_once_network_manager_lets_go(guest: FullGuest, node: GuestNode) -> None:
    """The reason names the command that makes it release the NIC; then the addresses move, and stay when it starts again."""
    managed(guest, "ipv4.method manual ipv4.addresses 192.0.2.11/24")
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-k0")
    told = node.has(provider("k0", move_addresses="true"))
    assert not told["net1"]["ready"]
    assert "nmcli device set k0 managed no" in told["net1"]["problem"], told
    guest.do("nmcli", "device", "set", "k0", "managed", "no")
    # it lets go a moment after its command has ended
    guest.until(lambda: node.looked()["net1"]["ready"], "the addresses to be moved")
    assert "192.0.2.11/24" in guest.do("ip", "-brief", "address", "show", "br-net1")
    guest.do("nmcli", "general", "reload")
    guest.shell("nmcli networking off; nmcli networking on")
    assert "192.0.2.11/24" in guest.do("ip", "-brief", "address", "show", "br-net1")
    assert node.reaches("192.0.2.11")


def test_a_lease_of_network_manager_stays_at_the_nic(guest: FullGuest, node: GuestNode) -> None:
    """An address from DHCP cannot move; if none is to move, the NIC keeps it, and pods reach the wire beside it."""
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-k0")
    guest.do("tee", "/run/udhcpd.conf", stdin="interface o-k0\nstart 192.0.2.50\nend 192.0.2.50\noption subnet 255.255.255.0\n")
    guest.shell("mkdir -p /var/lib/misc; touch /var/lib/misc/udhcpd.leases")
    node.outside("busybox", "udhcpd", "/run/udhcpd.conf")
    managed(guest, "ipv4.method auto")
    assert "192.0.2.50/24" in guest.do("ip", "-brief", "address", "show", "k0")
    assert not node.has(provider("k0", move_addresses="true"))["net1"]["ready"]
    told = node.has(provider("k0"))
    assert told["net1"]["ready"], told
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    assert node.reaches("192.0.2.100")
    assert node.reaches("192.0.2.50")
