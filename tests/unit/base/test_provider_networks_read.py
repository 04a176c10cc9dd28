"""The tables [[provider_network]] of the settings: how they are read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.provider_networks import Bond, ProviderNetwork, read_provider_networks
from userspace_cni.base.settings import load

WHERE = "settings file /c.toml"
PLAIN = {"name": "net1", "interface": "enp1s0"}
BOND = {"members": ["eth1", "eth2"]}


def test_every_key() -> None:
    """All keys are read; a table with name and interface alone moves nothing and carries all VLANs."""
    full = {
        **PLAIN,
        "name": "net2",
        "bridge": "brnet2",
        "interface": "enp2s0",
        "port": "afxdp",
        "move_addresses": "primary",
        "give_back_after_s": 20,
        "vlans": [100, "200-202"],
        "vlan_interfaces": ["enp2s0.10"],
        "mtu": 9000,
        "rx_queues": 4,
    }
    bonded = {"name": "net3", "bond": {**BOND, "mode": "balance-tcp", "lacp": "active", "updelay_ms": 500}}
    assert read_provider_networks([PLAIN, full, bonded], WHERE) == (
        ProviderNetwork("net1", "enp1s0"),
        ProviderNetwork(
            "net2", "enp2s0", None, "afxdp", "primary", 20.0, (100, 200, 201, 202), ("enp2s0.10",), 9000, 4, bridge="brnet2"
        ),
        ProviderNetwork("net3", bond=Bond(("eth1", "eth2"), "balance-tcp", "active", 500)),
    )


def test_what_a_spec_says_of_itself() -> None:
    """Each network has its bridge, its kernel NICs, what it takes from others, and the place of its spec."""
    plain, vdev, device = read_provider_networks(
        [
            PLAIN,
            {"name": "net2", "interface": "vdev:net_af_packet0,iface=eth5"},
            {"name": "net3", "interface": "pci:0000:3b:00.0"},
        ],
        WHERE,
    )
    assert (plain.bridge, plain.nics, plain.links) == ("br-net1", ("enp1s0",), ("enp1s0",))
    assert (vdev.nics, vdev.links, vdev.claims) == ((), ("eth5",), frozenset({"eth5", "vdev:net_af_packet0"}))
    assert (device.nics, device.links, device.claims) == ((), (), frozenset({"pci:0000:3b:00.0"}))
    assert vdev.said_by == f"{WHERE}, [[provider_network]] number 2"


@pytest.mark.parametrize(
    "interface",
    [
        "eth0.10",
        "pci:0000:3b:00.0",
        "vdev:net_null0",
        "vdev:net_null1,copy=1",
        "vdev:net_af_packet0,iface=eth1,qpairs=2",
        "vdev:net_af_xdp7,iface=eth1,start_queue=0",
    ],
)
def test_what_an_interface_can_be(interface: str) -> None:
    """Kernel NICs, PCI devices and the virtual devices that reach no further than a NIC."""
    assert read_provider_networks([{"name": "n", "interface": interface}], WHERE)[0].interface == interface


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({}, "'provider_network' is {}"),
        ([7], "'provider_network' is [7]"),
        ([{**PLAIN, "interfaces": "x"}], "number 1: unknown key 'interfaces' = 'x'"),
        ([{"interface": "eth1"}], "'name' is missing"),
        ([{**PLAIN, "name": 7}], "'name' is 7"),
        ([{**PLAIN, "name": "Net1"}], "'name' is 'Net1'"),
        ([{**PLAIN, "name": "a" * 13}], "with 12 characters at most"),
        ([{**PLAIN, "name": "a" * 11, "vlan_interfaces": ["e.10"], "move_addresses": True}], "with 10 characters at most"),
        ([{"name": "net1"}], "either an 'interface' or a 'bond'"),
        ([{**PLAIN, "bond": BOND}], "either an 'interface' or a 'bond'"),
        ([{**PLAIN, "interface": "a/b"}], "'interface' is 'a/b'"),
        ([{**PLAIN, "interface": "e" * 16}], "'interface' is 'eeee"),
        ([{**PLAIN, "interface": "br-net1"}], "it is the bridge itself"),
        ([{**PLAIN, "interface": "pci:3b:00.0"}], "'interface' is 'pci:3b:00.0'"),
        ([{**PLAIN, "interface": "pci:0000:3b:00.0,class=eth"}], "a PCI device is as"),
        ([{**PLAIN, "interface": "vdev:net_failsafe0,exec(reboot)"}], "others run programs or open files"),
        ([{**PLAIN, "interface": "vdev:net_pcap0,tx_pcap=/etc/passwd"}], "others run programs or open files"),
        ([{**PLAIN, "interface": "vdev:net_pcap0"}], "others run programs or open files"),
        ([{**PLAIN, "interface": "vdev:net_af_xdp0,iface=eth1,xdp_prog=x"}], "cannot be given 'xdp_prog'"),
        ([{**PLAIN, "interface": "vdev:net_null0 --file-prefix=x"}], "a virtual device is as"),
        ([{"name": "n", "bond": {"members": ["eth1"]}}], "'bond.members' is ['eth1']"),
        ([{"name": "n", "bond": {"members": ["eth1", "eth1"]}}], "each of them once"),
        ([{"name": "n", "bond": {**BOND, "mode": "balance-alb"}}], "'bond': 'mode' is 'balance-alb'"),
        ([{"name": "n", "bond": {**BOND, "mode": "balance-tcp"}}], "it needs 'lacp'"),
        ([{"name": "n", "bond": {**BOND, "lacp": "off"}}], "'lacp' is 'off'"),
        ([{"name": "n", "bond": {**BOND, "updelay_ms": -1}}], "'bond.updelay_ms' is -1"),
        ([{"name": "n", "bond": {**BOND, "slaves": []}}], "unknown key 'slaves'"),
        ([{"name": "n", "bond": "eth1"}], "'bond' is 'eth1'"),
        ([{**PLAIN, "port": "dpdk"}], "'port' is 'dpdk'"),
        ([{**PLAIN, "move_addresses": "yes"}], "'move_addresses' is 'yes'"),
        ([{**PLAIN, "interface": "vdev:net_null0", "move_addresses": True}], "one kernel NIC"),
        ([{"name": "n", "bond": BOND, "move_addresses": "primary"}], "one kernel NIC"),
        ([{**PLAIN, "give_back_after_s": 0}], "'give_back_after_s' is 0"),
        ([{**PLAIN, "give_back_after_s": True}], "'give_back_after_s' is True"),
        ([{**PLAIN, "give_back_after_s": float("nan")}], "'give_back_after_s' is nan"),
        ([{**PLAIN, "vlans": 100}], "'vlans' is 100"),
        ([{**PLAIN, "vlans": [4095]}], "'vlans' holds 4095"),
        ([{**PLAIN, "vlans": []}], "'vlans' is []"),
        ([{**PLAIN, "vlan_interfaces": ["enp1s0.10"]}], "'move_addresses' says whether"),
        ([{**PLAIN, "vlan_interfaces": ["a/b"], "move_addresses": True}], "names of kernel links"),
        ([{**PLAIN, "vlan_interfaces": ["enp1s0"], "move_addresses": True}], "the NIC or the bridge itself"),
        ([{**PLAIN, "mtu": 100}], "'mtu' is 100"),
        ([{**PLAIN, "mtu": True}], "'mtu' is True"),
        ([{**PLAIN, "rx_queues": 65}], "'rx_queues' is 65"),
        ([{**PLAIN, "rx_queues": 2}], "one queue to read from"),
        ([PLAIN, {**PLAIN, "interface": "eth2"}], "number 2: 'net1' is 'net1''s already"),
        ([PLAIN, {"name": "net2", "bridge": "br-net1", "interface": "eth2"}], "number 2: 'br-net1' is 'net1''s already"),
        ([PLAIN, {**PLAIN, "bridge": "br9", "interface": "eth2"}], "number 2: 'net1' is 'net1''s already"),
        ([{**PLAIN, "bridge": "enp1s0"}], "it is the bridge itself"),
        ([{**PLAIN, "bridge": "b" * 16}], "'bridge' is 'bbbb"),
        ([{**PLAIN, "bridge": "a/b"}], "'bridge' is 'a/b'"),
        ([PLAIN, {**PLAIN, "name": "net2"}], "number 2: 'enp1s0' is 'net1''s already"),
        ([PLAIN, {"name": "net2", "interface": "vdev:net_af_packet0,iface=enp1s0"}], "'enp1s0' is 'net1''s already"),
    ],
    ids=str,
)
def test_what_is_refused(tables: Any, named: str) -> None:
    """The error names the file, the table by its number, the key and its value."""
    with pytest.raises(InvalidConfig) as refused:
        read_provider_networks(tables, WHERE)
    assert WHERE in str(refused.value)
    assert named in str(refused.value)


def test_the_file_of_settings(tmp_path: Path) -> None:
    """The tables are in the node's settings file, beside its other keys."""
    file = tmp_path / "config.toml"
    file.write_text('mtu = 1500\n[[provider_network]]\nname = "net1"\ninterface = "enp1s0"\n')
    assert load({"USERSPACE_CNI_CONFIG": str(file)}).provider_networks == (ProviderNetwork("net1", "enp1s0"),)
