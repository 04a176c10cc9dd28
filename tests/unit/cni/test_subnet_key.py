"""Networks that name a Subnet: which keys are filled in, and which they cannot have beside it."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.base.subnets import Placement, place, read_subnet
from userspace_cni.base.vlans import Vlan, list_carried_vlans
from userspace_cni.cni.options import read_options
from userspace_cni.cni.request import Environment, Request, read_network
from userspace_cni.cni.subnet_keys import as_leased, complete_request, require_possible
from userspace_cni.consumers import CONSUMERS
from userspace_cni.node.remarks import remarks_on

ADD = Environment("ADD", "0", "", "eth0", {}, (), netns_override=False, variables={})
SPEC = {
    "cidrBlock": "10.56.0.0/16",
    "bridge": "br-pods",
    "mtu": 1400,
    "perNodePrefix": 24,
    "gatewayType": "distributed",
    "excludeIps": ["10.56.1.9"],
}
RANGES = [
    {"subnet": "10.56.1.0/24", "rangeStart": "10.56.1.2", "rangeEnd": "10.56.1.8", "gateway": "10.56.1.1"},
    {"subnet": "10.56.1.0/24", "rangeStart": "10.56.1.10", "rangeEnd": "10.56.1.254", "gateway": "10.56.1.1"},
]


def request(**keys: Any) -> Request:
    """A call for a network that names the Subnet `pods`."""
    stdin = json.dumps({"cniVersion": "1.0.0", "name": "podnet", "type": "userspace", "subnet": "pods", **keys}).encode()
    return Request(ADD, read_network(stdin, "ADD"), stdin)


def placement(vlan: tuple[int | None, str] = (None, ""), **changes: Any) -> Placement:
    """The Subnet on a node whose range is 10.56.1.0/24."""
    return place(read_subnet("pods", {**SPEC, **changes}), vlan, [ip_network("10.56.1.0/24")])


def test_what_the_subnet_gives() -> None:
    """Bridge, VLAN, MTU, ranges and the default route are filled in; the network, also the delegate's, is then complete."""
    done = complete_request(request(host={"iftype": "veth"}), placement((100, "net1")), leases="/leases", shared=False)
    assert {**done.network.raw, "name": "pods"} == json.loads(done.stdin)
    assert done.network.name == done.network.raw["name"] == "podnet"
    options = read_options(done, CONSUMERS, print)
    assert (options.bridge, options.vlan, options.mtu) == ("br-pods", Vlan(100, mode="access"), 1400)
    assert done.network.ipam == "host-local"
    routes = [{"dst": "0.0.0.0/0", "gw": "10.56.1.1"}]
    assert done.network.raw["ipam"] == {"type": "host-local", "dataDir": "/leases", "ranges": [RANGES], "routes": routes}
    assert done.network.raw["subnet"] == "pods"


def test_what_the_network_may_say_itself() -> None:
    """The network may repeat the Subnet's values, have host-local's other keys, and routes of its own, in any case of keys."""
    host = {"MTU": 1400, "Bridge": {"BRIDGENAME": "br-pods", "vlanid": 100, "vlanMode": "access"}}
    ipam = {"type": "host-local", "resolvConf": "/x", "routes": []}
    done = complete_request(request(Host=host, ipam=ipam), placement((100, "net1")), leases="/leases", shared=False)
    options = read_options(done, CONSUMERS, print)
    assert (options.bridge, options.vlan.tag, options.mtu) == ("br-pods", 100, 1400)
    assert done.network.raw["ipam"] == {**ipam, "dataDir": "/leases", "ranges": [RANGES]}


def test_a_subnet_without_a_bridge() -> None:
    """Where the Subnet names neither bridge nor VLAN, those of the network hold."""
    host = {"bridge": {"bridgeName": "br7", "vlanId": 7}}
    done = complete_request(request(host=host), placement(bridge=""), leases="/leases", shared=False)
    assert done.network.raw["host"] == {"mtu": 1400, **host}


def test_untagged_is_one_vlan() -> None:
    """In a Subnet without a VLAN a port carries frames without a tag alone, and not all VLANs of its bridge."""
    done = complete_request(request(), placement(), leases="/leases", shared=False)
    assert list_carried_vlans(read_options(done, CONSUMERS, print).vlan) == frozenset({0})


def test_no_gateway() -> None:
    """A Subnet without a gateway gives no default route."""
    done = complete_request(request(), placement(gatewayType=""), leases="/leases", shared=False)
    assert done.network.raw["ipam"]["routes"] == []


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"host": {"mtu": 1500}}, "host.mtu"),
        ({"host": {"bridge": {"bridgeName": "br0"}}}, "host.bridge.bridgeName"),
        ({"host": {"bridge": {"vlanId": 7}}}, "host.bridge.vlanId"),
    ],
)
def test_what_both_say(keys: dict[str, Any], named: str) -> None:
    """A value of the network that differs from the Subnet's is refused by the key's name, with both values."""
    with pytest.raises(InvalidConfig, match=f"key '{named}' is .*Subnet 'pods' says"):
        complete_request(request(**keys), placement(), leases="/leases", shared=False)


@pytest.mark.parametrize(
    ("keys", "named", "code"),
    [
        ({"addresses": "annotations"}, "addresses", 7),
        ({"mirrorOutput": "ids"}, "mirrorOutput", 7),
        ({"ipam": {"type": "whereabouts"}}, "ipam.type", 2),
        ({"ipam": {"type": "host-local", "subnet": "10.56.0.0/16"}}, "ipam.subnet", 7),
        ({"ipam": {"ranges": []}}, "ipam.ranges", 7),
        ({"ipam": {"dataDir": "/x"}}, "ipam.dataDir", 7),
        ({"host": {"bridge": {"trunks": [1]}}}, "host.bridge.trunks", 7),
        ({"host": {"bridge": {"vlanMode": "trunk"}}}, "host.bridge.vlanMode", 7),
    ],
)
def test_what_cannot_stand_beside_it(keys: dict[str, Any], named: str, code: int) -> None:
    """A key that no Subnet could go with is refused by name, by ADD and lint alike."""
    with pytest.raises((InvalidConfig, UnsupportedField), match=f"key '{named}'") as caught:
        require_possible(request(**keys).network)
    assert caught.value.code == code
    [remark] = remarks_on({"cniVersion": "1.0.0", "name": "n", "type": "userspace", "subnet": "pods", **keys})
    assert (remark.code, remark.path) == (code, named)


def test_lint_knows_the_key() -> None:
    """A network that names a Subnet needs no `ipam` of its own, also where something needs addresses."""
    network = {"cniVersion": "1.0.0", "name": "n", "type": "userspace", "subnet": "pods"}
    assert remarks_on({**network, "host": {"iftype": "veth"}, "gatewayCheck": True}) == []
    [remark] = remarks_on({**network, "subnet": "../x"})
    assert (remark.code, remark.path) == (7, "subnet")


def test_shared_addresses_are_asked_for() -> None:
    """A Subnet whose nodes have no ranges is served only where the network says that host-local alone is enough."""
    shared = placement(perNodePrefix=0, gatewayType="")
    with pytest.raises(InvalidConfig, match="no ranges of their own"):
        complete_request(request(), shared, leases="/leases", shared=True)
    done = complete_request(request(ipam={"type": "host-local"}), shared, leases="/leases", shared=True)
    [[first, _]] = done.network.raw["ipam"]["ranges"]
    assert (first["subnet"], first["rangeStart"]) == ("10.56.0.0/16", "10.56.0.1")


def test_other_verbs_need_no_subnet() -> None:
    """For verbs other than ADD the delegate gets what leased, or else a placeholder range, because any would do."""
    asked = request(ipam={"routes": []})
    ranges = [[{"subnet": "192.0.2.0/24"}]]
    unknown = json.loads(as_leased(asked, "/leases", None).stdin)
    assert unknown["ipam"] == {"routes": [], "type": "host-local", "dataDir": "/leases", "ranges": ranges}
    leased = json.loads(complete_request(asked, placement(), leases="/former", shared=False).stdin)
    found = json.loads(as_leased(asked, "/leases", leased).stdin)
    assert (found["ipam"], found["name"], unknown["name"]) == (leased["ipam"], "pods", "pods")
