"""The specs that objects of the API make for a node: which are for it, which are refused by name, and what is never concluded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.kube.definitions import definitions
from userspace_cni.base.gateways import EgressGateway, Gateway, StaticRoute, egress_gateway, gateway_port
from userspace_cni.base.provider_networks import Bond, ProviderNetwork
from userspace_cni.base.subnets import _FIELDS as SUBNET_FIELDS
from userspace_cni.kube.resources import VLANS, ApiResource
from userspace_cni.network.object_specs import _NETWORK_FIELDS, read_desired
from userspace_cni.network.spec_list import GATEWAY, OBJECTS, PROVIDER_NETWORK, VLAN, Desired
from userspace_cni.node.objects import SPECS, KeptObject, KnownObjects, OwnNode

NODE = "worker-1"
OWN = OwnNode({"zone": "a", "nic": "fast"}, {}, ("192.0.2.11",))
RANGES = [
    {"node": "worker-2", "range": "10.56.2.0/24", "address": "192.0.2.12"},
    {"node": NODE, "range": "10.56.1.0/24", "address": "192.0.2.11"},
    {"node": "worker-3", "range": "10.56.3.0/24", "address": ""},
]
PODS: dict[str, Any] = {"cidrBlock": "10.56.0.0/16", "gatewayType": "distributed", "bridge": "br0", "perNodePrefix": 24}


def kept(spec: Any, created: str = "2026-01-01T00:00:00Z", ranges: Any = None) -> KeptObject:
    """An object as the watch keeps it."""
    return KeptObject(created, spec, ranges)


def desired_by(
    networks: Mapping[str, Any] | None = None, vlans: Mapping[str, Any] | None = None, subnets: Mapping[str, Any] | None = None
) -> Desired:
    """What objects with these specs ask for; a Subnet may be a Kept."""
    specs = [
        {name: each if isinstance(each, KeptObject) else kept(each) for name, each in (of or {}).items()}
        for of in (networks, vlans, subnets)
    ]
    return read_desired(KnownObjects(NODE, OWN, *specs))


def network(**spec: Any) -> ProviderNetwork:
    found = desired_by({"net1": spec})
    assert not found.refused, found.refused
    [made] = found.provider_networks
    return made


def refusal(spec: Any, kind: str = "networks", name: str = "net1") -> str:
    """Why the one object is refused."""
    found = desired_by(**{kind: {name: spec}})
    [why] = found.refused.values()
    assert (found.provider_networks, found.gateways) == ((), ())
    return why


def gateway(spec: Mapping[str, Any], **others: Any) -> Gateway:
    found = desired_by(subnets={"pods": kept(spec, ranges=RANGES), **others.pop("subnets", {})}, **others)
    assert not found.refused, found.refused
    return next(each for each in found.gateways if each.port == "pods-gw")


def test_what_is_not_known_is_not_gone() -> None:
    """Until all lists and the node itself are known nothing is complete; uplinks wait for Vlans, but not for Subnets."""
    whole = KnownObjects(NODE, OWN, {"net1": kept({"defaultInterface": "eth1"})}, {}, {})
    assert read_desired(whole).complete
    for less in (replace(whole, own=None), replace(whole, provider_networks=None), replace(whole, vlans=None)):
        assert read_desired(less) == Desired(OBJECTS, complete=False)
    without = read_desired(replace(whole, subnets=None))
    assert (without.complete, len(without.provider_networks)) == (False, 1)


@pytest.mark.parametrize("resource", SPECS, ids=str)
def test_what_one_list_lacks_is_not_gone(resource: ApiResource) -> None:
    """Of any of the resources; of Vlans the spec itself says that there may be more."""
    whole = KnownObjects(NODE, OWN, {"net1": kept({"defaultInterface": "eth1"})}, {}, {}, unconfirmed=frozenset({resource}))
    found = read_desired(whole)
    assert not found.complete
    assert [each.vlans_by for each in found.provider_networks] == ["some objects" if resource is VLANS else "objects"]


def test_which_interface_a_node_gets() -> None:
    """The first custom one that names the node, else the default; a node without one is reported for this object alone."""
    customs = [
        {"interface": "eth8", "nodes": ["worker-9"]},
        {"interface": "eth2", "nodes": [NODE]},
        {"interface": "eth3", "nodes": [NODE]},
    ]
    assert network(defaultInterface="eth1") == ProviderNetwork("net1", "eth1", vlans_by="objects")
    assert network(defaultInterface="eth1", customInterfaces=customs).interface == "eth2"
    assert "no interface for this node" in refusal({"customInterfaces": customs[:1]})
    bond = {"members": ["eth1", "eth2"], "mode": "balance-tcp", "lacp": "active", "updelayMs": 100}
    assert network(bond=bond).bond == Bond(("eth1", "eth2"), "balance-tcp", "active", 100)
    assert network(bond=bond, customInterfaces=customs[1:]).interfaces == ("eth2",)
    assert "both" in refusal({"bond": bond, "defaultInterface": "eth1"})


@pytest.mark.parametrize(
    ("spec", "selected"),
    [
        ({"excludeNodes": [NODE]}, False),
        ({"excludeNodes": ["worker-9"]}, True),
        ({"nodeSelector": {"matchLabels": {"zone": "a"}}, "excludeNodes": [NODE]}, True),
        ({"nodeSelector": {"matchLabels": {"zone": "b"}}}, False),
        ({"nodeSelector": {}}, True),
        ({"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}}, True),
        ({"nodeSelector": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}}, False),
        ({"nodeSelector": {"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["a"]}]}}, True),
        ({"nodeSelector": {"matchExpressions": [{"key": "nic", "operator": "Exists"}]}}, True),
        ({"nodeSelector": {"matchExpressions": [{"key": "nic", "operator": "DoesNotExist"}]}}, False),
    ],
)
def test_which_nodes_have_it(spec: dict[str, Any], selected: bool) -> None:
    """A nodeSelector alone decides if it exists, else excludeNodes; a node that is left out is no refusal."""
    found = desired_by({"net1": {"defaultInterface": "eth1", **spec}})
    assert (len(found.provider_networks), found.refused, found.complete) == (int(selected), {}, True)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (7, "must be an object"),
        ({"defaultInterface": "eth1", "defaultInterfaces": "eth2"}, "unknown field 'defaultInterfaces'"),
        ({"defaultInterface": "eth1", "exchangeLinkName": True}, "'exchangeLinkName' is True, which is not built"),
        ({"defaultInterface": "eth1 --bad"}, "'interface' is 'eth1 --bad'"),
        ({"defaultInterface": "vdev:net_pcap0,iface=eth1"}, "run programs or open files"),
        ({"defaultInterface": ["eth1"]}, "must be a text"),
        ({"defaultInterface": "eth1", "port": "dpdk"}, "port"),
        ({"defaultInterface": "eth1", "mtu": "1500"}, "'mtu' is '1500'"),
        ({"defaultInterface": "eth1", "mtu": 67}, "'mtu' is 67"),
        ({"defaultInterface": "eth1", "moveAddresses": "yes"}, "'moveAddresses' is 'yes'"),
        ({"defaultInterface": "eth1", "giveBackAfterSeconds": 0}, "give_back_after_s"),
        ({"defaultInterface": "eth1", "vlanInterfaces": ["a b"]}, "vlan_interfaces"),
        ({"defaultInterface": "eth1", "excludeNodes": NODE}, "'excludeNodes'"),
        ({"customInterfaces": [{"interface": "eth1", "node": NODE}]}, "unknown field 'node'"),
        ({"bond": {"members": ["eth1"]}}, "two members"),
        ({"bond": {"members": ["eth1", "eth2"], "mode": "balance-alb"}}, "bond.mode"),
        ({"bond": {"members": ["eth1", "eth2"], "miimon": 1}}, "unknown field 'miimon'"),
        ({"defaultInterface": "eth1", "nodeSelector": {"matchLabel": {}}}, "unknown field 'matchLabel'"),
        ({"defaultInterface": "eth1", "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "="}]}}, "'operator' can"),
    ],
)  # fmt: skip
def test_provider_networks_that_cannot_be(spec: Any, words: str) -> None:
    """Each invalid one is refused by object and field, even if the server accepted it."""
    why = refusal(spec)
    assert "ProviderNetwork 'net1'" in why
    assert words in why


def test_one_that_cannot_be_is_refused_alone() -> None:
    """The others are made, and the refusal has the name under which the node may have a part of it."""
    found = desired_by(
        {
            "bad": {"defaultInterface": "eth2", "x": 1},
            "net1": {"defaultInterface": "eth1"},
            "way-too-long-name": {"defaultInterface": "eth3"},
        }
    )
    assert [each.name for each in found.provider_networks] == ["net1"]
    assert set(found.refused) == {(PROVIDER_NETWORK, "bad"), (PROVIDER_NETWORK, "way-too-long-name")}


def test_all_that_an_object_can_say() -> None:
    """Each field has its place in the spec."""
    made = network(
        defaultInterface="eth1",
        moveAddresses="primary",
        giveBackAfterSeconds=3,
        port="afxdp",
        mtu=9000,
        rxQueues=2,
        vlanInterfaces=["eth1.10"],
    )
    assert made == ProviderNetwork("net1", "eth1", None, "afxdp", "primary", 3.0, (), ("eth1.10",), 9000, 2, "objects")
    assert made.said_by == "ProviderNetwork 'net1'"
    assert [network(defaultInterface="eth1", moveAddresses=each).move_addresses for each in (False, True)] == ["no", "yes"]


def test_vlans_are_the_trunk() -> None:
    """Those of the Vlan objects of the network; 0 alone is untagged frames and no VLAN, none at all is every VLAN."""
    one = {"net1": {"defaultInterface": "eth1"}}
    vlans = {"a": {"id": 200, "provider": "net1"}, "b": {"id": 100, "provider": "net1"}, "c": {"id": 7, "provider": "other"}}
    assert desired_by(one, vlans).provider_networks[0].vlans == (100, 200)
    assert desired_by(one, {"a": {"id": 0, "provider": "net1"}}).provider_networks[0].vlans == (0,)
    assert desired_by(one).provider_networks[0].vlans == ()


def test_two_vlans_of_one_id_are_both_told() -> None:
    """Both are reported, and the trunk has the id once."""
    same = {"id": 100, "provider": "net1"}
    found = desired_by({"net1": {"defaultInterface": "eth1"}}, {"a": same, "b": same, "c": {"id": 100, "provider": "other"}})
    assert found.provider_networks[0].vlans == (100,)
    assert set(found.refused) == {(VLAN, "a"), (VLAN, "b")}
    assert "Vlan 'b', too" in found.refused[VLAN, "a"]


@pytest.mark.parametrize(
    "spec", [{"id": 5000, "provider": "net1"}, {"id": "1", "provider": "net1"}, {"id": 1, "provider": "net1", "tag": 1}]
)
def test_a_vlan_that_cannot_be_leaves_the_trunk_as_it_is(spec: dict[str, Any]) -> None:
    """Its network is refused with it: otherwise the trunk would lose a VLAN, or carry all."""
    found = desired_by({"net1": {"defaultInterface": "eth1"}, "net2": {"defaultInterface": "eth2"}}, {"a": spec})
    assert [each.name for each in found.provider_networks] == ["net2"]
    assert set(found.refused) == {(VLAN, "a"), (PROVIDER_NETWORK, "net1")}
    assert set(desired_by({}, {"a": spec}).refused) == {(VLAN, "a")}


def test_objects_of_kube_ovn() -> None:
    """A field of kube-ovn's is reported as not supported, not as unknown, and
    a Vlan's fault in its network's name is reported.
    """
    objects: dict[str, dict[str, Any]] = {"ProviderNetwork": {}, "Vlan": {}, "Subnet": {}}
    for each in yaml.safe_load_all((Path(__file__).parent / "data" / "kube-ovn-objects.yaml").read_text()):
        objects[each["kind"]][each["metadata"]["name"]] = each["spec"]
    refused = desired_by(*objects.values()).refused
    assert set(refused) == {(PROVIDER_NETWORK, "underlay-offload"), (VLAN, "vlan10"), (GATEWAY, gateway_port("ext"))}
    assert "'enableExternalLBAddress' is True, which is not built" in refused[GATEWAY, gateway_port("ext")]
    assert "'provider' is 'underlay-offload', and no ProviderNetwork can be called so" in refused[VLAN, "vlan10"]
    assert "12 characters at most" in refused[VLAN, "vlan10"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"id": 5, "provider": "net1", "vlanId": 5}, "'vlanId' is 5, which is not built"),
        ({"id": 5, "provider": "Net1;"}, "no ProviderNetwork can be called so"),
    ],
)
def test_vlans_that_cannot_be(spec: dict[str, Any], words: str) -> None:
    """Each is refused by object and field; a field of kube-ovn's that says nothing is let pass."""
    assert words in desired_by({"net1": {"defaultInterface": "eth1"}}, {"a": spec}).refused[VLAN, "a"]
    assert desired_by({}, {"a": {"id": 5, "provider": "net1", "vlanId": 0, "providerInterfaceName": ""}}).refused == {}


def test_a_distributed_gateway() -> None:
    """Each node has the first address of its range, and routes to the others' ranges by their addresses."""
    made = gateway({**PODS, "natOutgoing": True, "mtu": 1400}, subnets={"more": kept({"cidrBlock": "10.57.0.0/16"})})
    assert made == Gateway(
        port="pods-gw",
        bridge="br0",
        addresses=("10.56.1.1/24",),
        mtu=1400,
        masquerade=True,
        not_masqueraded=("10.56.0.0/16", "10.57.0.0/16"),
        routes=(StaticRoute("10.56.2.0/24", "192.0.2.12"),),
    )
    assert made.said_by == "Subnet 'pods'"
    assert gateway(PODS).not_masqueraded == ()


def test_a_gateway_in_a_vlan() -> None:
    """On the bridge of the Vlan's provider network; whether that has an uplink here is for all specs together to see."""
    spec = {**PODS, "vlan": "blue"}
    del spec["bridge"]
    made = gateway(spec, vlans={"blue": {"id": 100, "provider": "net1"}})
    assert (made.bridge, made.vlan, made.sole) == ("br-net1", 100, False)
    assert gateway(spec, vlans={"blue": {"id": 0, "provider": "net1"}}).vlan is None


def test_a_centralized_gateway() -> None:
    """One node has the Subnet's gateway, of each family; the others have nothing of it, and need no range."""
    spec = {
        "cidrBlock": "10.56.0.0/16,fd00:56::/64",
        "gateway": "10.56.0.1,fd00:56::1",
        "gatewayType": "centralized",
        "bridge": "br0",
    }
    made = gateway({**spec, "gatewayNode": NODE})
    assert (made.addresses, made.sole, made.routes) == (("10.56.0.1/16", "fd00:56::1/64"), True, ())
    assert desired_by(subnets={"pods": {**spec, "gatewayNode": "worker-2"}}) == Desired(OBJECTS, complete=True)


def test_a_way_out_of_its_own() -> None:
    """Policy routing to an egress gateway needs table and priority, and excludes masquerading."""
    way = {"externalEgressGateway": "192.0.2.1", "policyRoutingTableID": 1042, "policyRoutingPriority": 1043}
    assert gateway({**PODS, **way}).egress_gateway == EgressGateway("192.0.2.1", 1042, 1043)
    assert "one way" in refusal(kept({**PODS, **way, "natOutgoing": True}, ranges=RANGES), "subnets", "pods")
    assert "table" in refusal(kept({**PODS, **way, "policyRoutingTableID": 254}, ranges=RANGES), "subnets", "pods")


def test_a_subnet_without_gateway_type_is_a_routers() -> None:
    """Its gateway is a router outside: nothing of it is made on a node."""
    assert desired_by(subnets={"pods": {"cidrBlock": "10.56.0.0/16", "gateway": "10.56.0.1"}}) == Desired(OBJECTS, complete=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cidrBlock": "10.56.0.1/16"}, "cidrBlock"),
        ({"vpc": "red"}, "'vpc' is 'red', which is not built"),
        ({"u2oInterconnection": True}, "not built"),
        ({"u2oFeatures": {"overlayOnlyRouting": True}}, "not built"),
        ({"htbqos": "high"}, "'htbqos' is 'high', which is not built"),
        ({"acls": [{"action": "drop"}]}, "not built"),
        ({"enableDHCP": True}, "not built"),
        ({"natOutgoin": True}, "unknown field 'natOutgoin'"),
        ({"natOutgoing": "yes"}, "natOutgoing"),
        ({"bridge": "br0; rm"}, "bridge"),
        ({"bridge": ""}, "needs a 'bridge' or a 'vlan'"),
        ({"vlan": "blue"}, "both 'bridge' and 'vlan'"),
        ({"vlan": "blue", "bridge": ""}, "no such Vlan"),
        ({"perNodePrefix": 0}, "needs 'perNodePrefix'"),
        ({"gatewayType": "centralized"}, "no 'gatewayNode'"),
        ({"gatewayType": "centralized", "gatewayNode": f"{NODE},worker-2"}, "several are not built"),
        ({"gatewayType": "centralized", "gatewayNode": NODE}, "needs 'gateway'"),
        ({"mtu": 20}, "mtu"),
    ],
)
def test_subnets_that_cannot_be(change: dict[str, Any], words: str) -> None:
    """Each is refused by object and field, as the gateway that it would make: what the node has of it stays."""
    found = desired_by(subnets={"pods": kept({**PODS, **change}, ranges=RANGES)})
    assert list(found.refused) == [(GATEWAY, "pods-gw")]
    assert "Subnet 'pods'" in found.refused[GATEWAY, "pods-gw"]
    assert words in found.refused[GATEWAY, "pods-gw"]
    assert (found.gateways, found.complete) == ((), True)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (None, "no range for this node yet"),
        ([], "no range for this node yet"),
        (RANGES[:1], "no range for this node yet"),
        ([{"node": NODE, "range": "10.99.0.0/24"}], "not in its 'cidrBlock'"),
        ([RANGES[1], {"node": "x", "range": "10.56.4.0/24", "address": "127.0.0.1"}], "loopback"),
        ([RANGES[1], {"node": "x", "range": "10.56.4.0/24", "address": "; reboot"}], "the address of node x"),
        ([RANGES[1], {"node": "x", "range": "0.0.0.0/0", "address": "192.0.2.13"}], "must be a network of machines"),
        ([RANGES[1], {"node": "x", "range": "10.56.1.128/25", "address": "192.0.2.13"}], "overlaps"),
        (7, "no range"),
    ],
)
def test_ranges_that_cannot_be(ranges: Any, words: str) -> None:
    """A range that is missing, another Subnet's, or by no address of a machine: the gateway stays as it is, and says why."""
    assert words in refusal(kept(PODS, ranges=ranges), "subnets", "pods")


def test_a_subnet_that_overlaps_is_refused() -> None:
    """The later one, whatever their names; a node's address is in none, but where no pod gets it and no node is its gateway."""
    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    found = desired_by(subnets={"a": kept({"cidrBlock": "10.56.4.0/24"}, late), "b": kept({"cidrBlock": "10.56.0.0/16"}, early)})
    assert list(found.refused) == [(GATEWAY, "a-gw")]
    assert "overlaps that of Subnet 'b'" in found.refused[GATEWAY, "a-gw"]
    lan = {"cidrBlock": "192.0.2.0/24"}
    assert "192.0.2.11, the address of a node" in refusal(lan, "subnets")
    assert desired_by(subnets={"lan": {**lan, "excludeIps": ["192.0.2.1..192.0.2.20"]}}).refused == {}
    other = {"pods": kept(PODS, ranges=RANGES), "lan": {"cidrBlock": "192.0.2.12/30"}}
    assert "192.0.2.12, the address of a node" in desired_by(subnets=other).refused[GATEWAY, "lan-gw"]


def test_the_port_of_a_gateway_is_a_link() -> None:
    """Named by the Subnet where that fits, else by a hash of its name; two Subnets never share one."""
    assert gateway_port("pods") == "pods-gw"
    long = [gateway_port(f"a-subnet-with-a-long-name-{number}") for number in (1, 2)]
    assert len(set(long)) == 2
    assert all(len(each) <= 15 and each.startswith("gw-") for each in long)
    assert gateway_port("a.b") == "a.b-gw"


def test_the_definitions_have_the_fields_that_are_read() -> None:
    """No more and no fewer, each with a description; an object that says what is not among them reaches the agent."""
    schemas = {each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for each in definitions()}
    specs = {kind: schema["properties"]["spec"] for kind, schema in schemas.items() if "spec" in schema["properties"]}
    assert set(specs["ProviderNetwork"]["properties"]) == _NETWORK_FIELDS
    assert set(specs["Subnet"]["properties"]) == SUBNET_FIELDS
    assert all(specs[kind]["x-kubernetes-preserve-unknown-fields"] for kind in ("ProviderNetwork", "Vlan", "Subnet"))

    def undescribed(name: str, schema: Mapping[str, Any]) -> list[str]:
        below = [each for key, value in schema.get("properties", {}).items() for each in undescribed(f"{name}.{key}", value)]
        return (
            [*below, *undescribed(f"{name}[]", {**schema["items"], "description": "of its list"})]
            if "items" in schema
            else [*below, *([] if schema.get("description") else [name])]
        )

    missing = [each for kind, schema in schemas.items() for each in undescribed(kind, schema)]
    assert missing == [f"{kind}.metadata" for kind in schemas], "of metadata the server allows no description"


@pytest.mark.parametrize("bound", ["minimum", "maximum"])
def test_the_ends_of_the_definitions_ranges_can_be(bound: str) -> None:
    """What the API server lets through at the ends of a number's range is not refused afterwards."""
    fields = {each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for each in definitions()}
    of = {kind: schema["properties"].get("spec", {}).get("properties", {}) for kind, schema in fields.items()}
    names = ("giveBackAfterSeconds", "mtu", "rxQueues")
    numbers = {name: of["ProviderNetwork"][name][bound] for name in names}
    assert network(defaultInterface="eth1", port="afxdp", **numbers).mtu == numbers["mtu"]
    way = {"table": of["Subnet"]["policyRoutingTableID"][bound], "priority": of["Subnet"]["policyRoutingPriority"][bound]}
    assert egress_gateway({"via": "192.0.2.1", **way}, "here").priority == way["priority"]
