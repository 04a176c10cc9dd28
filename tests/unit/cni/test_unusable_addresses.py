"""Addresses that no machine can have, and where they are refused: annotations, networks, an IPAM plugin's result, Subnets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import ip_interface

import pytest

from tests.lab.node.configurations import read as options
from userspace_cni.base.addresses import why_not_in_subnet
from userspace_cni.base.errors import DelegateBroken, UserspaceError
from userspace_cni.base.subnets import read_subnet
from userspace_cni.cni.addressing import missing, read_addresses_noted
from userspace_cni.cni.annotations import PodInterface
from userspace_cni.cni.result import read_addresses, read_prev_result

ETH0 = PodInterface("podnet", "blue", "eth0", kubeovn_read=True)
OVN = "ovn.kubernetes.io/"
UNUSABLE: Mapping[str, str] = {
    "0.0.0.0/0": "the unspecified address",
    "0.0.0.0/8": "the unspecified address",
    "0.1.2.3/8": "reserved",
    "10.0.0.7/0": "its subnet is everything",
    "10.9.0.0/24": "the address of the network itself",
    "10.9.0.255/24": "the broadcast address",
    "127.0.0.1/8": "a loopback address",
    "224.0.0.1/24": "a multicast address",
    "255.255.255.255/32": "the broadcast address",
    "::/64": "the unspecified address",
    "::1/64": "a loopback address",
    "ff02::1/64": "a multicast address",
    "fd00::/64": "the address of the network itself",
    "::ffff:10.0.0.1/96": "an address of IPv4 in IPv6",
    "::ffff:0.0.0.0/96": "an address of IPv4 in IPv6",
}
USABLE = (
    "10.9.0.0/31",
    "10.9.0.0/32",
    "10.9.0.255/16",
    "169.254.1.1/16",
    "240.0.0.7/8",
    "fd00::/127",
    "fe80::7/64",
    "fd00::7/64",
)


def annotated(**values: str) -> None:
    """The kube-ovn annotations of the default interface are read."""
    read_addresses_noted({OVN + key: value for key, value in values.items()}, ETH0)


READERS: Mapping[str, Callable[[str], object]] = {
    "annotation": lambda text: annotated(ip_address=text),
    "annotation, while ADD waits": lambda text: missing({OVN + "ip_address": f"10.0.0.7,{text}"}, ETH0),
    "annotation of OVN's": lambda text: read_addresses_noted({"ovn": f'{{"ip_address": "{text}"}}'}, ETH0),
    "prefix length of 'cidr'": lambda text: annotated(ip_address=text.partition("/")[0], cidr=text),
    "gateway": lambda text: annotated(ip_address=_neighbour(text), gateway=text.partition("/")[0]),
    "runtimeConfig.ips": lambda text: options([], runtimeConfig={"ips": [text]}, ipam={"type": "static"}),
    "ipam.addresses": lambda text: options([], ipam={"type": "static", "addresses": [{"address": text}]}),
    "IPAM plugin": lambda text: read_addresses({"ips": [{"address": text}]}, "1.0.0"),
}


def _neighbour(text: str) -> str:
    """Another address of the same subnet."""
    address = ip_interface(text)
    other = address.ip + 1 if int(address.ip) % 2 == 0 else address.ip - 1
    return f"{other}/{address.network.prefixlen}"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", UNUSABLE)
def test_what_no_machine_can_have(text: str, reader: str) -> None:
    """An author who writes one gets 7; a plugin that answers one is broken."""
    with pytest.raises(UserspaceError) as refused:
        READERS[reader](text)
    assert (refused.value.code == 7) == (reader != "IPAM plugin")
    assert isinstance(refused.value, DelegateBroken) == (reader == "IPAM plugin")
    if reader != "gateway":  # its neighbour may be refused before
        assert UNUSABLE[text] in refused.value.message
        assert text.partition("/")[0] in refused.value.message


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"gateway"}))
@pytest.mark.parametrize("text", USABLE)
def test_what_machines_have(text: str, reader: str) -> None:
    """All other addresses are accepted, also one that looks like the network's own in a subnet that has only machines."""
    assert not why_not_in_subnet(ip_interface(text))
    READERS[reader](text)


@pytest.mark.parametrize("gateway", ["10.9.0.0", "10.9.0.255", "224.0.0.1"])
def test_a_gateway_that_is_none(gateway: str) -> None:
    """A gateway has to be a possible machine of the subnet, too."""
    with pytest.raises(UserspaceError, match=rf"gateway' is '{gateway}': {gateway}") as refused:
        annotated(ip_address="10.9.0.7/24", gateway=gateway)
    assert refused.value.code == 7
    annotated(ip_address="10.9.0.7/24", gateway="10.9.0.1")


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        *(({"cidrBlock": cidr}, cidr) for cidr in ("0.0.0.0/0", "0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/8", "::/64", "ff02::/64")),
        ({"cidrBlock": "::ffff:10.0.0.0/112"}, "an address of IPv4 in IPv6"),
        ({"cidrBlock": "10.9.0.0/24", "gateway": "10.9.0.0"}, "the address of the network itself"),
        ({"cidrBlock": "10.9.0.0/24", "gateway": "10.9.0.255"}, "the broadcast address"),
    ],
)
def test_a_subnet_without_machines(spec: dict[str, str], named: str) -> None:
    """A Subnet whose addresses or gateway no machine can have is refused, before pods get them."""
    with pytest.raises(UserspaceError) as refused:
        read_subnet("pods", spec)
    assert named in refused.value.message


def test_an_address_with_a_zone() -> None:
    """An address of one link of the node is none that a plugin could assign."""
    with pytest.raises(UserspaceError, match="holds 'fe80::1%eth0/64'"):
        READERS["runtimeConfig.ips"]("fe80::1%eth0/64")


def test_what_a_previous_plugin_says() -> None:
    """Its addresses are its own, and are passed on."""
    read = partial(read_prev_result, config_version="1.0.0")
    assert read({"ips": [{"address": "10.9.0.0/24"}]})["ips"] == [{"address": "10.9.0.0/24"}]


@pytest.mark.parametrize("text", ["x", "10.16.0.7,", "", " ,", "10.16.0.7 10.16.0.8", "10.16.0.7/33", "fe80::1%eth0"])
def test_what_can_never_be_read_is_not_waited_for(text: str) -> None:
    """An address that no 'cidr' could complete is refused at once, by name, before the 'cidr' comes."""
    noted = {OVN + "ip_address": text}
    if not text:
        assert missing(noted, ETH0).startswith(f"{OVN}ip_address")
        return
    with pytest.raises(UserspaceError, match=r"annotation 'ovn\.kubernetes\.io/ip_address' is") as refused:
        missing(noted, ETH0)
    assert refused.value.code == 7


def test_a_cidr_that_can_never_be_read() -> None:
    """ADD does not wait for an address whose subnet is invalid, either."""
    with pytest.raises(UserspaceError, match=r"annotation 'ovn\.kubernetes\.io/cidr' is 'x'"):
        missing({OVN + "cidr": "x"}, ETH0)
