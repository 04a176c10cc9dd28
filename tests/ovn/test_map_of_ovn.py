"""`map` of a real node with an uplink, a gateway, a mirror, limits and logical ports: all of it is in the picture."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

from tests.lab.ovn.pictured_world import NAME, pictured_world


def test_a_whole_node() -> None:
    """Each pod has its VLAN or logical switch, its state and rates; uplink, gateway, mirror and OVN's patch are there; and what
    OVN's database does not answer is told, while its ports stay."""
    with pictured_world() as world:
        found = json.loads(world.map("--json"))
        svg = world.map()
        refused = json.loads(world.map("--json", "--seconds", "0", USERSPACE_CNI_OVN_NB="unix:/nowhere.sock"))
    ports: dict[str, dict[str, Any]] = {port["owner"]: port for bridge in found["bridges"] for port in bridge["ports"]}
    assert (found["head"]["node"], found["faults"], found["unasked"], found["vswitchd"]) == (NAME, [], [], "alive")
    assert {each["behind"] for each in ports.values()} == {"pod", "node", "uplink", "patch"}
    limited = ports["default/web-5c9d8f7b6-k2x4z"]
    assert (limited["state"], limited["vlan"]["tag"], limited["limits"]) == ("up", 100, [100_000_000, 50_000_000])
    assert min(limited["rates"]["out_bits"], limited["rates"]["in_bits"]) > 100_000
    assert [ports[f"default/packet-gateway-{number}"]["state"] for number in (0, 1)] == ["connected", "waiting"]
    assert ports["default/packet-gateway-0"]["polled"]
    assert (ports["nic0"]["state"], ports["br-net1-gw"]["addresses"]) == ("up", ["10.56.0.1/24"])
    assert (ports["shop/cart"]["logical"], ports["shop/cart"]["logical_switch"]) == ("shop_cart", "shop")
    assert found["logical"]["switches"] == [{"name": "shop", "subnets": ["10.16.1.0/24"], "router": "campus"}]
    assert found["logical"]["routers"] == [{"name": "campus", "next_hops": ["10.16.1.254"]}]
    texts = {each.text for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    shown = {
        "logical switch shop",
        "logical router campus",
        "default route via 10.16.1.254",
        "to bridge br-int",
        "to bridge br-net1",
    }
    assert shown | {"VLAN 100", "VLAN 200", "M1", "→M1", "nic0", "cart"} <= texts
    assert "OVN's northbound database cannot be asked" in "".join(refused["unasked"])
    assert {port["logical"] for bridge in refused["bridges"] for port in bridge["ports"]} >= {"shop_cart", "shop_checkout"}
