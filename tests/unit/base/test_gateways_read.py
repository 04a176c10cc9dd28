"""The tables [[gateway]] of the settings: how they are read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute, read_gateways
from userspace_cni.base.limits import Limits, Rate

WHERE = "settings file /c.toml"
LEAST = {"bridge": "br0", "addresses": ["10.56.217.1/24"]}
OTHER = {"bridge": "br1", "addresses": ["10.57.0.1/24"]}
EGRESS = {"via": "192.0.2.1", "table": 1042, "priority": 1042}


def test_what_is_needed() -> None:
    """Bridge and addresses are enough; the port is named after the bridge."""
    assert read_gateways([LEAST], WHERE) == (Gateway("br0-gw", "br0", ("10.56.217.1/24",)),)


def test_every_key() -> None:
    """All keys are read, addresses in their usual forms; `said_by` names the table."""
    table = {
        "bridge": "br0",
        "addresses": ["10.56.217.1/24", "FD00:0::1/64"],
        "port": "gw",
        "mac": "02:00:00:00:00:AA",
        "mtu": 1400,
        "vlan": 100,
        "masquerade": True,
        "not_masqueraded": ["10.0.0.0/8"],
        "clamp_mss": True,
        "routes": [{"dst": "10.56.218.0/24", "gw": "192.0.2.18"}],
        "sole": True,
        "egress_gateway": EGRESS,
        "next_hop": "192.0.2.1",
        "bandwidth": {"ingressRate": "100M", "egressRate": 50_000_000, "egressBurst": "9M"},
    }
    (found,) = read_gateways([table], WHERE)
    assert found == Gateway(
        port="gw",
        bridge="br0",
        addresses=("10.56.217.1/24", "fd00::1/64"),
        mac="02:00:00:00:00:aa",
        mtu=1400,
        vlan=100,
        masquerade=True,
        not_masqueraded=("10.0.0.0/8",),
        clamp_mss=True,
        routes=(StaticRoute("10.56.218.0/24", "192.0.2.18"),),
        sole=True,
        egress_gateway=EgressGateway("192.0.2.1", 1042, 1042),
        next_hops=("192.0.2.1",),
        limits=Limits(Rate(100_000_000, 10_000_000), Rate(50_000_000, 9_000_000)),
    )
    assert found.said_by == f"{WHERE}, [[gateway]] number 1"
    assert [str(each) for each in found.subnets] == ["10.56.217.0/24", "fd00::/64"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adresses": []}, "unknown key 'adresses'"),
    ({"bridge": "b" * 16}, "'bridge' is 'bbbb"),
    ({"bridge": "b/x"}, "'bridge' is 'b/x'"),
    ({"bridge": "b" * 13}, "'port' is missing"),
    ({"port": "br0"}, "'port' is 'br0', the bridge's own"),
    ({"port": 'x"; drop'}, "'port' is"),
    ({"addresses": []}, "'addresses' is missing or empty"),
    ({"addresses": "10.56.217.1/24"}, "it must be a list"),
    ({"addresses": ["10.56.217.1"]}, "number 1 is '10.56.217.1'"),
    ({"addresses": ["10.56.217.1/33"]}, "number 1 is '10.56.217.1/33'"),
    ({"addresses": ["10.56.217.1/24", "10.56.217.1/24"]}, "same value is there twice"),
    ({"addresses": ["10.56.217.1/24", "10.56.0.1/16"]}, "which overlap"),
    ({"addresses": ["10.56.217.0/24"]}, "the network itself"),
    ({"addresses": ["10.56.217.255/24"]}, "broadcast"),
    ({"addresses": ["10.56.217.1/0"]}, "its subnet is everything"),
    ({"addresses": ["169.254.1.1/24"]}, "link-local"),
    ({"addresses": ["fe80::1/64"]}, "link-local"),
    ({"addresses": ["fd00::1%eth0/64"]}, "with prefix length"),
    ({"addresses": ["224.0.0.1/24"]}, "multicast"),
    ({"addresses": ["127.0.0.1/24"]}, "loopback"),
    ({"addresses": ["240.0.0.1/24"]}, "reserved"),
    ({"addresses": ["::ffff:10.0.0.1/120"]}, "IPv4 in IPv6"),
    ({"addresses": [7]}, "number 1 is 7"),
    ({"mac": "01:00:00:00:00:01"}, "'mac' is '01:"),
    ({"mac": "00:00:00:00:00:00"}, "'mac' is '00:"),
    ({"mac": "x"}, "'mac' is 'x'"),
    ({"mtu": 67}, "'mtu' is 67"),
    ({"mtu": 65536}, "'mtu' is 65536"),
    ({"addresses": ["fd00::1/64"], "mtu": 1279}, "it must be 0 or from 1280"),
    ({"vlan": 0}, "'vlan' is 0"),
    ({"vlan": 4095}, "'vlan' is 4095"),
    ({"vlan": True}, "'vlan' is True"),
    ({"masquerade": "yes"}, "'masquerade' is 'yes'"),
    ({"not_masqueraded": ["10.0.0.1/8"]}, "without host bits"),
    ({"not_masqueraded": ["0.0.0.0/0"]}, "'0.0.0.0/0'"),
    ({"routes": [{"dst": "10.58.0.1/24", "gw": "192.0.2.1"}]}, "without host bits"),
    ({"routes": [{"dst": "10.58.0.0/24"}]}, "'gw' is missing"),
    ({"routes": [{"dst": "10.58.0.0/24", "gw": "192.0.2.1", "dev": "x"}]}, "unknown key 'dev'"),
    ({"routes": [{"dst": "10.58.0.0/24", "gw": "fd00::1"}]}, "both must be of one family"),
    ({"routes": [{"dst": "10.58.0.0/24", "gw": "10.58.0.1"}]}, "lies in 10.58.0.0/24 itself"),
    ({"routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1"}]}, "the default route is the node's own"),
    ({"routes": [{"dst": "10.56.217.128/25", "gw": "192.0.2.1"}]}, "overlaps the gateway's own subnet"),
    ({"routes": [{"dst": "10.58.0.0/24", "gw": each} for each in ("192.0.2.1", "192.0.2.2")]}, "a dst twice"),
    ({"egress_gateway": {"via": "192.0.2.1"}}, "'table' is missing"),
    ({"egress_gateway": {**EGRESS, "via": "fd00::1"}}, "the gateway has no address of its family"),
    ({"egress_gateway": {**EGRESS, "via": "10.56.217.1"}}, "an address of the gateway itself"),
    *(({"egress_gateway": {**EGRESS, "table": table}}, f"'table' is {table}") for table in (0, 253, 254, 255, 2**32)),
    *(({"egress_gateway": {**EGRESS, "priority": each}}, f"'priority' is {each}") for each in (0, 1, 32766, 32767, 32768)),
    ({"routes": [{"dst": "10.56.218.0/24", "gw": "10.56.217.1"}]}, "an address of the gateway itself"),
    ({"addresses": ["10.56.217.1/24", "10.56.217.2/24"]}, "which overlap"),
    ({"next_hop": "10.56.217.1"}, "an address of the gateway itself"),
    ({"next_hop": "192.0.2.1/24"}, "'next_hop' is '192.0.2.1/24'"),
    ({"logical_port": ""}, "'logical_port' is ''"),
    ({"logical_port": "a b"}, "'logical_port' is 'a b'"),
    ({"bandwidth": {"ingresRate": 1}}, "unknown key 'ingresRate'"),
    ({"bandwidth": {"ingressRate": 1}}, "'ingressRate' is 1"),
    ({"bandwidth": {"ingressRate": "much"}}, "'ingressRate' is 'much'"),
    ({"bandwidth": {"egressBurst": 100000}}, "without a rate"),
]


@pytest.mark.parametrize(("keys", "named"), REFUSED, ids=str)
def test_what_is_refused(keys: dict[str, Any], named: str) -> None:
    """The error names the file, the table by its number, the key and its value."""
    with pytest.raises(InvalidConfig) as refused:
        read_gateways([OTHER, {**LEAST, **keys}], WHERE)
    assert f"{WHERE}, [[gateway]] number 2" in str(refused.value)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"port": "br1-gw"}, "'port' is 'br1-gw'"),
        ({"addresses": ["10.57.0.129/25"]}, "overlaps 10.57.0.0/24 of gateway br1-gw"),
        ({"routes": [{"dst": "10.99.0.0/24", "gw": "192.0.2.2"}]}, "has a route to 10.99.0.0/24, too"),
        ({"egress_gateway": {**EGRESS, "priority": 2000}}, "'egress_gateway.table' is 1042"),
        ({"egress_gateway": {**EGRESS, "table": 7, "priority": 1041}}, "'egress_gateway.priority' is 1041"),
    ],
    ids=str,
)
def test_two_that_do_not_go_together(keys: dict[str, Any], named: str) -> None:
    """Of two gateways that cannot both exist the later one is named."""
    first = {**OTHER, "routes": [{"dst": "10.99.0.0/24", "gw": "192.0.2.1"}], "egress_gateway": EGRESS}
    with pytest.raises(InvalidConfig) as refused:
        read_gateways([first, {**LEAST, **keys}], WHERE)
    assert f"{WHERE}, [[gateway]] number 2" in str(refused.value)
    assert named in str(refused.value)


@pytest.mark.parametrize("raw", [{}, [7], "x"], ids=str)
def test_no_tables(raw: Any) -> None:
    """What is no array of tables is refused by its name."""
    with pytest.raises(InvalidConfig, match="'gateway' is"):
        read_gateways(raw, WHERE)


@pytest.mark.parametrize("key", ["bridge", "mac", "masquerade", "routes", "addresses", "x"])
def test_a_long_value_is_cut(key: str) -> None:
    """An error names the key, and only the beginning of a long value."""
    with pytest.raises(InvalidConfig) as refused:
        read_gateways([{**LEAST, key: "x" * 3000}], WHERE)
    assert f"'{key}'" in str(refused.value)
    assert len(str(refused.value)) < 1000
