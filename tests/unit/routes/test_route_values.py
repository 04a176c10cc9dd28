"""Destinations, devices and gateways: which texts are read, and which are refused by name."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.routes.prefixes import PrefixTable, alone, host, prefix
from userspace_cni.routes.route_values import AUTO, read_dev, read_dst, read_network_entry, read_service_entry, read_via


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("10.124.0.0/16", "10.124.0.0/16"),
        ("172.16.0.0/16 ", "172.16.0.0/16"),
        ("\t10.0.0.1/32\n", "10.0.0.1/32"),
        ("default", "0.0.0.0/0"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("FD00:1::/32", "fd00:1::/32"),
        ("2000::/3", "2000::/3"),
    ],
)
def test_destinations(said: str, read: str) -> None:
    """A destination is a network, with blanks around it removed, or the default route."""
    assert read_dst(said, "", "'dst'") == ip_network(read)


@pytest.mark.parametrize(
    "said",
    [
        *("127.0.0.0/8", "127.0.0.1/32", "0.0.0.0/1", "::1/128", "::/1", "0.0.0.0/8", "0.0.0.0/32"),
        *("169.254.0.0/16", "169.254.169.254/32", "168.0.0.0/7", "128.0.0.0/1", "fe80::/10", "fe80::/64", "8000::/1"),
        *("224.0.0.0/4", "239.1.2.3/32", "ff00::/8", "ff02::1/128", "255.255.255.255/32", "240.0.0.0/4"),
        *("::ffff:10.0.0.0/104", "::ffff:0:0/96", "::/128"),
    ],
)
def test_destinations_that_are_never_routed(said: str) -> None:
    """Networks that contain, or are in, loopback, link-local, multicast, broadcast or mapped addresses are refused by value."""
    with pytest.raises(InvalidConfig, match="never made") as refused:
        read_dst(said, "", "'dst'")
    assert repr(said) in str(refused.value)


@pytest.mark.parametrize(
    "said",
    [
        *("10.0.0.1/8", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0.0/255.0.0.0", "10.0.0.0/0.0.0.255", "010.0.0.0/8"),
        *("fd00::%eth0/64", "1/8", "/8", "", " ", "any", "DEFAULT", "10.0.0.0/8 x", "10.0.0.0/-1", "10.0.0.0/٨"),
        *(None, 10, True, [], {}, ["10.0.0.0/8"]),
    ],
)
def test_what_is_no_destination(said: Any) -> None:
    """Refused are bits of a host, other forms of masks, zones, and values that are no text."""
    with pytest.raises(InvalidConfig, match="'dst' is"):
        read_dst(said, "", "'dst'")


def test_default_is_of_its_gateways_family() -> None:
    """`default` is IPv4's, as for ip(8), unless its gateway has an IPv6 address."""
    entry = read_network_entry({"dst": "default", "dev": "eth1", "via": "fd00::1"}, "spec.route[0]")
    assert (str(entry.dst), str(entry.via)) == ("::/0", "fd00::1")
    assert str(read_network_entry({"dst": "default", "dev": "eth1", "via": "auto"}, "spec.route[0]").dst) == "0.0.0.0/0"


@pytest.mark.parametrize("said", ["eth1", "e", "abcdefghijklmno", "eth0.10", "net-1", "a@b"])
def test_devices(said: str) -> None:
    """A device has a name that the kernel accepts for a link."""
    assert read_dev(said, "'dev'") == said


@pytest.mark.parametrize(
    "said",
    [
        "lo",
        ".",
        "..",
        "",
        "a/b",
        "abcdefghijklmnop",
        "网卡名",
        "eth 1",
        "eth1\n",
        "a:b",
        "\x00",
        "eté",
        None,
        1,
        True,
        ["eth1"],
        {},
    ],
)
def test_what_is_no_device(said: Any) -> None:
    """Refused are loopback, and names that no link can have."""
    with pytest.raises(InvalidConfig, match="'dev' is"):
        read_dev(said, "'dev'")


def test_gateways() -> None:
    """A gateway is an address, also a link-local one; `auto`; or none."""
    assert read_via(" 10.124.2.1 ", "'via'") == ip_address("10.124.2.1")
    assert read_via("169.254.1.1", "'via'") == ip_address("169.254.1.1")
    assert read_via("fe80::1", "'via'") == ip_address("fe80::1")
    assert [read_via(each, "'via'") for each in ("auto", "", None)] == [AUTO, "", ""]


@pytest.mark.parametrize(
    "said",
    [
        *("127.0.0.1", "::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::", "255.255.255.255", "::ffff:10.0.0.1", "fe80::1%eth0"),
        *("10.0.0.0/8", "gateway", "Auto", 1, 167772161, True, False, [], {}),
    ],
)
def test_what_is_no_gateway(said: Any) -> None:
    """Refused are loopback, multicast and unspecified addresses, numbers, and texts that are no address."""
    with pytest.raises(InvalidConfig, match="'via' is"):
        read_via(said, "'via'")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"dst": "10.0.0.0/8", "dev": "eth1", "via": "fd00::1"}, "one family"),
        ({"dst": "fd00::/8", "dev": "eth1", "via": "10.0.0.1"}, "one family"),
        ({"dst": "10.0.0.1/32", "dev": "eth1", "via": "10.0.0.1"}, "to which the route itself leads"),
        ({"dst": "10.0.0.0/8", "dev": "eth1", "vai": "10.0.0.1"}, "unknown field 'vai'"),
        ({"dst": "10.0.0.0/8"}, "'dev' is None"),
        ("10.0.0.0/8", "must be an object"),
    ],
)
def test_entries_that_cannot_be(entry: Any, why: str) -> None:
    """A gateway must be of its destination's family and not be the destination; each error names the place of the entry."""
    with pytest.raises(InvalidConfig, match=why) as refused:
        read_network_entry(entry, "spec.route[7]")
    assert "spec.route[7]" in str(refused.value)


@pytest.mark.parametrize(
    "entry",
    [
        {"namespace": "default", "dev": "eth1"},
        {"namespace": "", "name": "nginx", "dev": "eth1"},
        {"namespace": "*", "name": "nginx", "dev": "eth1"},
        {"namespace": "default", "name": "ngi*", "dev": "eth1"},
        {"namespace": "default", "name": "nginx", "dev": "lo"},
        {"namespace": "a" * 64, "name": "nginx", "dev": "eth1"},
    ],
)
def test_service_entries_that_cannot_be(entry: Any) -> None:
    """A Service has a namespace and a name. `*` may stand for all names, `*/*` for all Services; no other text may have it."""
    with pytest.raises(InvalidConfig, match=r"spec\.svc\[0\]"):
        read_service_entry(entry, "spec.svc[0]")


def test_the_longest_prefix() -> None:
    """The longest prefix that covers an address or a network is found, of equal ones the first. Families do not mix."""
    table = PrefixTable(
        (prefix(ip_network(text)), number) for number, text in enumerate(("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8"))
    )
    best = [
        table.best(prefix(ip_network(text)))
        for text in ("10.1.2.3/32", "10.1.0.0/16", "10.0.0.0/9", "9.0.0.0/8", "::/0", "fd00::/8")
    ]
    assert [each and each[1] for each in best] == [2, 2, 1, 0, None, None]
    assert str(host(ip_address("fd00::1"))) == "fd00::1/128"
    assert alone(ip_address("::10.0.0.1")) == ip_network("::10.0.0.1/128")
    assert alone(ip_address("10.0.0.1")) == ip_network("10.0.0.1/32")
