"""PCI NICs as uplinks, by vfio-pci and an IOMMU: what is refused, what works, and what a dead switch leaves."""

from __future__ import annotations

import json
import re

from tests.lab.hardware.full_guest import NICS, FullGuest, PciNic
from tests.lab.hardware.guest_node import GuestNode, bonded_provider, provider, veth_network
from tests.lab.hardware.snapshot import AGENT_LOG, START_SWITCH

P0, P1 = (each for each in NICS if each.polled)
K0 = next(each for each in NICS if not each.polled)


def device(guest: FullGuest, nic: str) -> str:
    """The polled NIC's address, as a spec names it."""
    return f"pci:{guest.do('cat', f'/run/{nic}').strip()}"


def kernel_device(guest: FullGuest, nic: str) -> str:
    return f"pci:{guest.shell(f'basename $(readlink -f /sys/class/net/{nic}/device)').strip()}"


def dpdk_ports(guest: FullGuest) -> set[str]:
    """The names of the interfaces of the switch that are devices of DPDK."""
    return {*guest.do("ovs-vsctl", "--bare", "--columns=name", "find", "Interface", "type=dpdk").split()}


def test_devices_that_dpdk_cannot_open_are_refused_by_name(guest: FullGuest, node: GuestNode) -> None:
    """A missing device, one with the kernel's driver, one that is no NIC, and another network's are refused."""
    p0, k0 = device(guest, "p0"), kernel_device(guest, "k0")
    specs = (provider(p0), provider("pci:0000:77:00.0", "none"), provider(k0, "kernel"), provider("pci:0000:00:1f.2", "disk"))
    told = node.has("".join(specs))
    assert told["net1"]["ready"], told
    assert "there is no PCI device 0000:77:00.0" in told["none"]["problem"]
    assert f"PCI device {k0.removeprefix('pci:')} is bound to driver e1000e" in told["kernel"]["problem"]
    assert "is not a network device" in told["disk"]["problem"]


def test_a_pod_reaches_the_wire_by_a_pci_uplink(guest: FullGuest, node: GuestNode) -> None:
    """A pod's frames pass the NIC, which is polled on its own NUMA node and returned when the network is removed."""
    p0 = device(guest, "p0")
    told = node.has(provider(p0))
    assert told["net1"]["ready"], told
    network = veth_network("br-net1", "192.0.2.100/24")
    result = node.add("pod", network)
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-p0")
    assert node.reaches("192.0.2.100")
    assert node.ask("CHECK", "pod", network | {"prevResult": result}) == {}
    [port] = dpdk_ports(guest)
    assert guest.do("ovs-vsctl", "get", "Interface", port, "status:numa_id") == '"1"\n'
    polled = guest.do("ovs-appctl", "dpif-netdev/pmd-rxq-show")
    [at] = [block for block in polled.split("pmd thread ") if port in block]
    assert at.startswith("numa_id 1 "), polled
    node.delete("pod", network)
    assert node.has("") == {}
    assert guest.do("ovs-vsctl", "list-br") == ""


def test_a_pod_at_a_vhost_user_port_reaches_the_wire(guest: FullGuest, node: GuestNode) -> None:
    """Frames of a vhost-user application, of which a tap makes a link in the pod, pass the PCI uplink."""
    assert node.has(provider(device(guest, "p0")))["net1"]["ready"]
    network = {"cniVersion": "1.0.0", "name": "net", "type": "userspace", "host": {"bridge": {"bridgeName": "br-net1"}}}
    node.add("pod", network)
    socket = "/usr/local/var/run/openvswitch/pod/pod-net1"
    tap = f"python3 -m userspace_cni tap {socket} --name tap0 --address 192.0.2.100/24"
    guest.shell(f"setsid nsenter --net=/run/netns/pod {tap} >/var/log/tap.log 2>&1 </dev/null & echo $! >/run/tap.pid")
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-p0")
    assert node.reaches("192.0.2.100"), guest.do("cat", "/var/log/tap.log")
    guest.shell("kill $(cat /run/tap.pid)")
    node.delete("pod", network)


def test_a_killed_switch_has_the_uplink_again(guest: FullGuest, node: GuestNode) -> None:
    """After ovs-vswitchd was killed the next one carries the pod's frames by the PCI device; the agent reports it as ready."""
    assert node.has(provider(device(guest, "p0")))["net1"]["ready"]
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-p0")
    assert node.reaches("192.0.2.100")
    guest.shell("kill -9 $(cat /run/openvswitch/ovs-vswitchd.pid)")
    guest.shell(START_SWITCH)
    assert node.reaches("192.0.2.100")
    assert node.looked()["net1"]["ready"]


def test_a_device_that_is_pulled_out_is_let_go(guest: FullGuest, node: GuestNode) -> None:
    """The agent makes ovs-vswitchd release it, for which the kernel waits, and says why the uplink carries nothing.

    Once it is put back, with the driver that the reason names, the pod reaches the wire again.
    """
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-p0")
    p0 = device(guest, "p0")
    assert node.has(provider(p0))["net1"]["ready"]
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    assert node.reaches("192.0.2.100")
    guest.pull_out(P0)
    guest.until(lambda: p0.removeprefix("pci:") in node.statuses()["net1"]["problem"], "the agent to say so")
    guest.put_back(P0)
    bind(guest, node)
    guest.until(node.ready, "the agent to have the device again")
    assert node.reaches("192.0.2.100")


def test_a_bond_goes_on_without_a_device(guest: FullGuest, node: GuestNode) -> None:
    """While one of its devices is pulled out the other carries the pod's frames; put back, it does so in its turn."""
    join_wires(node, P0, P1)
    told = node.has(bonded_provider((device(guest, "p0"), device(guest, "p1")), "active-backup"))
    assert told["net1"]["ready"], told
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    assert node.reaches("192.0.2.100")
    guest.pull_out(P0)
    assert node.reaches("192.0.2.100"), guest.do("cat", AGENT_LOG)
    assert dpdk_ports(guest) == {"up-net1-1"}
    assert node.ready()
    assert "is made of its other devices" in guest.do("cat", AGENT_LOG)
    guest.put_back(P0)
    guest.do("driverctl", "set-override", device(guest, "p0").removeprefix("pci:"), "vfio-pci")
    guest.until(lambda: dpdk_ports(guest) == {"up-net1-0", "up-net1-1"}, "the bond to have both devices")
    guest.cut(P1)
    assert node.reaches("192.0.2.100")


def test_a_bond_of_a_kernel_nic_and_a_device_that_are_both_pulled_out(guest: FullGuest, node: GuestNode) -> None:
    """The device, which goes last, is let go, for which the kernel waits; each carries the pod's frames when it is put back."""
    join_wires(node, K0, P0)
    p0 = device(guest, "p0")
    told = node.has(bonded_provider(("k0", p0), "active-backup"))
    assert told["net1"]["ready"], told
    node.add("pod", veth_network("br-net1", "192.0.2.100/24"))
    guest.pull_out(K0)
    assert node.reaches("192.0.2.100"), guest.do("cat", AGENT_LOG)
    guest.pull_out(P0)
    guest.until(lambda: not node.ready(), "the agent to notice")
    problem = node.statuses()["net1"]["problem"]
    assert "there is no NIC k0" in problem
    assert f"PCI device {p0.removeprefix('pci:')}" in problem
    guest.put_back(K0)
    guest.until(node.ready, "the agent to have the NIC again")
    assert node.reaches("192.0.2.100")
    guest.put_back(P0)
    guest.do("driverctl", "set-override", p0.removeprefix("pci:"), "vfio-pci")
    guest.until(lambda: dpdk_ports(guest), "the bond to have the device again")
    guest.cut(K0)
    assert node.reaches("192.0.2.100")


def join_wires(node: GuestNode, *nics: PciNic) -> None:
    """Make a switch beyond the NICs, with an address."""
    node.outside("ip", "link", "add", "wire", "type", "bridge")
    for nic in nics:
        node.outside("ip", "link", "set", f"o-{nic.name}", "master", "wire")
    node.outside("ip", "link", "set", "wire", "up")
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "wire")


def bind(guest: FullGuest, node: GuestNode) -> None:
    """Run the command that the agent names as the remedy for a device with a kernel driver."""
    said = guest.until(lambda: re.search(r"driver igb,.*'(driverctl [^']+)'", node.statuses()["net1"]["problem"]), "the remedy")
    guest.do(*said[1].split())


def test_large_frames_pass_a_pci_uplink(guest: FullGuest, node: GuestNode) -> None:
    """With an MTU of 9000 of network and pod, a datagram of that length passes unbroken."""
    told = node.has(provider(device(guest, "p0"), mtu="9000"))
    assert told["net1"]["ready"], told
    node.add("pod", veth_network("br-net1", "192.0.2.100/24", mtu=9000))
    node.outside("ip", "link", "set", "o-p0", "mtu", "9000")
    node.outside("ip", "address", "add", "192.0.2.1/24", "dev", "o-p0")
    assert node.reaches("192.0.2.100", "", "-M", "do", "-s", "8972")


def test_a_device_whose_group_the_kernel_uses_is_refused(guest: FullGuest, node: GuestNode) -> None:
    """Of two devices in one IOMMU group, one with a kernel driver blocks the other for DPDK; with both at vfio-pci it works."""
    one, other = guest.shell(_GROUPED).split()
    told = node.has(provider(f"pci:{one}"))
    assert f"PCI device {other}, in the same IOMMU group" in told["net1"]["problem"]
    assert "is bound to driver e1000" in told["net1"]["problem"]
    guest.shell(f"echo {other} >/sys/bus/pci/drivers/e1000/unbind")
    told = node.looked()
    assert told["net1"]["ready"], told


_GROUPED = """
modprobe e1000
devices=$(grep -l 0x100e /sys/bus/pci/devices/*/device)
set -- $(for each in $devices; do basename ${each%/device}; done)
echo vfio-pci >/sys/bus/pci/devices/$1/driver_override
echo $1 >/sys/bus/pci/drivers/e1000/unbind
echo $1 >/sys/bus/pci/drivers_probe
echo $1 $2
"""


def test_pods_are_hinted_to_the_node_of_their_nic(guest: FullGuest) -> None:
    """With polling threads on both NUMA nodes a bridge has its NIC's node; without a NIC, or a thread there, it has none."""
    p1 = device(guest, "p1").removeprefix("pci:")
    guest.shell(f"""
ovs-vsctl add-br br-near -- set Bridge br-near datapath_type=netdev -- add-port br-near d0 \\
    -- set Interface d0 type=dpdk options:dpdk-devargs={p1}
ovs-vsctl add-br br-plain -- set Bridge br-plain datapath_type=netdev
""")
    assert hints(guest) == {"br-near": 1, "br-plain": None}
    guest.do("ovs-vsctl", "set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x1")
    assert hints(guest) == {"br-near": None, "br-plain": 0}


def hints(guest: FullGuest) -> dict[str, int | None]:
    """The NUMA node that the kubelet would be told of the devices of each bridge."""
    return dict(json.loads(guest.do("python3", "-c", _HINTS)))


_HINTS = """
import json, os
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.settings import load
from userspace_cni.node.devices import DeviceRoom
from userspace_cni.node.local_node import LocalNode
node = LocalNode(load(os.environ), os.environ, resident=True)
ports = node.switch.ports
ports.connect(Deadline.after(60))
room = DeviceRoom(node.installation, node.store.journal, ports)
print(json.dumps({each.name: each.numa for each in room.bridges()}))
"""
