"""Addresses, MAC and VLAN out of a pod's annotations, as kube-ovn and OVN's own tools write them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.vlans import Vlan
from userspace_cni.cni.addressing import NotedAddresses, choose_vlan, missing, read_addresses_noted, read_noted
from userspace_cni.cni.annotations import PodInterface, is_read
from userspace_cni.cni.result import EMPTY, ResultAddresses

ETH0 = PodInterface("podnet", "blue", "eth0", kubeovn_read=True)
NET1 = PodInterface("podnet", "blue", "net1", kubeovn_read=True)
OVN = "ovn.kubernetes.io/"
BLUE = "podnet.blue.ovn.kubernetes.io/"


def of(prefix: str, **values: str) -> dict[str, str]:
    """kube-ovn's annotations of one provider."""
    return {prefix + key: value for key, value in values.items()}


def test_both_families() -> None:
    """Addresses get the prefix lengths of their subnets and the gateway of
    their family, and the default interface gets its routes.
    """
    noted = of(
        OVN,
        ip_address="10.16.0.7,fd00::7",
        cidr="10.16.0.0/16,fd00::/112",
        gateway="10.16.0.1,fd00::1",
        mac_address="00:00:00:AA:00:07",
        vlan_id="100",
        routes='[{"dst": "198.51.100.0/24", "gw": "10.16.0.9"}]',
        pod_nic_type="internal-port",
    )
    ips = ({"address": "10.16.0.7/16", "gateway": "10.16.0.1"}, {"address": "fd00::7/112", "gateway": "fd00::1"})
    routes = (
        {"dst": "0.0.0.0/0", "gw": "10.16.0.1"},
        {"dst": "::/0", "gw": "fd00::1"},
        {"dst": "198.51.100.0/24", "gw": "10.16.0.9"},
    )
    assert read_addresses_noted(noted, ETH0) == ResultAddresses(ips, routes)
    assert read_noted(noted, ETH0) == NotedAddresses("00:00:00:aa:00:07", 100, nic_type="internal-port")
    for other in (NET1, PodInterface("podnet", "blue", "eth0")):
        assert (read_addresses_noted(noted, other), read_noted(noted, other)) == (EMPTY, NotedAddresses())


def test_a_further_interface() -> None:
    """An attachment uses its provider's annotations, one with its own name first, and gets no default route unasked."""
    noted = of(BLUE, ip_address="10.17.0.7/24", gateway="10.17.0.1")
    [ip] = read_addresses_noted(noted, NET1).ips
    assert (ip, read_addresses_noted(noted, NET1).routes) == ({"address": "10.17.0.7/24", "gateway": "10.17.0.1"}, ())
    [route] = read_addresses_noted({**noted, BLUE + "default_route": "true"}, NET1).routes
    assert route == {"dst": "0.0.0.0/0", "gw": "10.17.0.1"}
    named = {**noted, "podnet.blue.ovn.net1.kubernetes.io/ip_address": "10.17.0.8/24"}
    assert [ip["address"] for ip in read_addresses_noted(named, NET1).ips] == ["10.17.0.8/24"]
    other = of("podnet.red.ovn.kubernetes.io/", ip_address="10.18.0.7/24")
    assert [ip["address"] for ip in read_addresses_noted(other, NET1).ips] == ["10.18.0.7/24"]


def test_ovns_own_annotation() -> None:
    """`ovn` applies to the default interface, and takes precedence."""
    text = json.dumps({"ip_address": "192.168.3.4/24", "mac_address": "0A:00:00:00:00:01", "gateway_ip": "192.168.3.1"})
    noted = {"ovn": text, **of(OVN, ip_address="10.16.0.7/16")}
    found = read_addresses_noted(noted, ETH0)
    assert found.ips == ({"address": "192.168.3.4/24", "gateway": "192.168.3.1"},)
    assert (found.routes, read_noted(noted, ETH0).mac) == (({"dst": "0.0.0.0/0", "gw": "192.168.3.1"},), "0a:00:00:00:00:01")
    assert (read_addresses_noted({"ovn": text}, NET1), read_noted({"ovn": text}, NET1)) == (EMPTY, NotedAddresses())


@pytest.mark.parametrize(
    ("noted", "interface", "wanted"),
    [
        ({}, ETH0, f"{OVN}ip_address (with {OVN}cidr), or ovn with 'ip_address'"),
        ({}, NET1, f"{BLUE}ip_address (with {BLUE}cidr)"),
        (of(OVN, ip_address="10.16.0.7/16"), NET1, f"{BLUE}ip_address (with {BLUE}cidr)"),
        (of(OVN, ip_address="10.16.0.7"), ETH0, f"{OVN}cidr"),
        (of(OVN, ip_address="10.16.0.7/16"), ETH0, ""),
        (of(BLUE, ip_address="10.16.0.7", cidr="10.16.0.0/16"), NET1, ""),
        ({"ovn": '{"mac_address": "0a:00:00:00:00:01"}'}, ETH0, f"{OVN}ip_address (with {OVN}cidr), or ovn with 'ip_address'"),
        ({"ovn": '{"ip_address": "192.168.3.4/24"}'}, ETH0, ""),
    ],
)
def test_what_is_missing(noted: dict[str, str], interface: PodInterface, wanted: str) -> None:
    """The error names what an interface waits for: an address, or the subnet of one without a prefix length."""
    assert missing(noted, interface) == wanted


@pytest.mark.parametrize(
    ("noted", "named"),
    [
        (of(OVN, ip_address="ten", cidr="10.16.0.0/16"), "ip_address' is 'ten'"),
        (of(OVN, ip_address="10.17.0.7", cidr="10.16.0.0/16"), "ip_address' is '10.17.0.7': 10.17.0.7 is not in 10.16.0.0/16"),
        (of(OVN, ip_address="10.16.0.7", cidr="x"), "cidr' is 'x'"),
        (of(OVN, ip_address="10.16.0.7"), "has no prefix length"),
        (of(OVN, ip_address="fe80::1%eth0/64"), "ip_address' is"),
        (of(OVN, ip_address="224.0.0.1/24"), "ip_address' is"),
        (of(OVN, ip_address=",".join(["10.16.0.7/16"] * 9)), "ip_address' is"),
        (of(OVN, ip_address="10.16.0.7/16", gateway="10.17.0.1"), "gateway' is '10.17.0.1': 10.17.0.1 is not in 10.16.0.0/16"),
        (of(OVN, ip_address="10.16.0.7/16", gateway="gw"), "gateway' is 'gw'"),
        (of(OVN, mac_address="01:00:00:00:00:01"), "mac_address' is '01:00:00:00:00:01'"),
        (of(OVN, vlan_id="4095"), "vlan_id' is '4095'"),
        (of(OVN, ip_address="10.16.0.7/16", routes="{}"), "routes' is '{}'"),
        (of(OVN, ip_address="10.16.0.7/16", routes='[{"dst": "x"}]'), "routes' is"),
        ({"ovn": "{"}, "annotation 'ovn' is not JSON"),
        ({"ovn": '{"ip_address": 5}'}, "'ip_address' is 5"),
        ({"ovn": '{"ip_address": "10.16.0.7/16", "gateway_ip": "10.17.0.1"}'}, "10.17.0.1 is not in 10.16.0.0/16"),
    ],
)
def test_annotations_that_cannot_be_meant(noted: dict[str, str], named: str) -> None:
    """An address outside of its subnet, and any other invalid value, is refused with the annotation's name and value."""
    with pytest.raises(InvalidConfig) as refused:
        _ = (read_noted(noted, ETH0), read_addresses_noted(noted, ETH0))
    assert named in refused.value.message
    assert refused.value.message.startswith("annotation 'ovn")
    assert refused.value.details


@pytest.mark.parametrize(
    ("network", "vlan", "port"),
    [
        (Vlan(), None, Vlan()),
        (Vlan(), 100, Vlan(100)),
        (Vlan(100), 100, Vlan(100)),
        (Vlan(trunks=(5, 100)), 100, Vlan(100)),
        (Vlan(trunks=(5, 100), mode="trunk"), None, Vlan(trunks=(5, 100), mode="trunk")),
    ],
)
def test_a_vlan_within_the_networks(network: Vlan, vlan: int | None, port: Vlan) -> None:
    """A pod may choose one of the VLANs that its port would carry anyway."""
    assert choose_vlan(network, NotedAddresses(vlan=vlan)) == port


@pytest.mark.parametrize("network", [Vlan(5), Vlan(trunks=(5, 6)), Vlan(5, (100,), "native-tagged")])
def test_a_vlan_beyond_the_networks(network: Vlan) -> None:
    """A pod cannot leave the VLANs of its network by an annotation."""
    with pytest.raises(InvalidConfig, match="VLAN 100, which its network does not allow"):
        choose_vlan(network, NotedAddresses(vlan=100))


@given(st.dictionaries(st.sampled_from(["ip_address", "cidr", "gateway", "routes", "vlan_id"]), st.text()), st.text())
def test_any_text_in_annotations(values: dict[str, str], ovn: str) -> None:
    """Any text gives an address or a refusal, and every annotation that is read is also kept by the watch."""
    noted = {**of(OVN, **values), "ovn": ovn}
    assert all(map(is_read, noted))
    try:
        missing(noted, ETH0)
        found = read_noted(noted, ETH0)
        read_addresses_noted(noted, ETH0)
    except InvalidConfig:
        return
    assert found.vlan is None or 0 < found.vlan < 4095


@pytest.mark.parametrize("name", ["ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/routes", "ovn"])
def test_an_annotation_longer_than_any(name: str) -> None:
    """A text longer than any valid value is refused by its length with 7."""
    with pytest.raises(InvalidConfig) as refused:
        read_addresses_noted({"ovn.kubernetes.io/ip_address": "10.16.0.7/16"} | {name: '{"a":1,' * 2341}, ETH0)
    assert refused.value.message == f"annotation '{name}' has 16387 characters"
    assert (refused.value.code, refused.value.details) == (7, "16384 are read at most")


FIRST = PodInterface("podnet", "blue", "net1", logical="first")
FURTHER = PodInterface("podnet", "blue", "net2", logical="further")
SAID = {"ip_address": "192.168.2.3/24", "mac_address": "0a:00:00:00:00:01", "gateway_ip": "192.168.2.1"}


def test_a_logical_port() -> None:
    """Its annotation is read whatever the setting says of kube-ovn's; a gateway is the pod's only at its default interface."""
    noted = {"ovn": json.dumps(SAID)}
    ips = ({"address": "192.168.2.3/24", "gateway": "192.168.2.1"},)
    assert read_addresses_noted(noted, FIRST) == ResultAddresses(ips, ())
    assert read_noted(noted, FIRST).mac == "0a:00:00:00:00:01"
    default = PodInterface("podnet", "blue", "eth0", logical="first")
    assert read_addresses_noted(noted, default) == ResultAddresses(ips, ({"dst": "0.0.0.0/0", "gw": "192.168.2.1"},))
    assert (missing(noted, FIRST), missing({}, FIRST)) == ("", "ovn with 'ip_address'")
    assert read_addresses_noted(noted, PodInterface("podnet", "blue", "eth0")) == EMPTY


def test_both_families_in_a_list() -> None:
    """OVN's annotation has both families in lists, or with a comma between."""
    listed = SAID | {"ip_address": ["192.168.2.3/24", "fd00::3/64"], "gateway_ip": ["192.168.2.1", "fd00::1"]}
    commas = SAID | {"ip_address": "192.168.2.3/24,fd00::3/64", "gateway_ip": "192.168.2.1,fd00::1"}
    plural = {"ip_addresses": listed["ip_address"], "gateway_ips": listed["gateway_ip"]}
    found = [read_addresses_noted({"ovn": json.dumps(each)}, FIRST).ips for each in (listed, commas, plural)]
    assert (
        found
        == [
            (
                {"address": "192.168.2.3/24", "gateway": "192.168.2.1"},
                {"address": "fd00::3/64", "gateway": "fd00::1"},
            )
        ]
        * 3
    )


def test_further_logical_ports() -> None:
    """Each has its network's entry of the other annotation, the one with its own name first."""
    own = {"ip_address": "10.0.0.7/8", "gateway_ip": "10.0.0.1"}
    noted = {"ovn": json.dumps(SAID), "k8s.ovn.org/pod-networks": json.dumps({"default": SAID, "blue/podnet": own})}
    assert [ip["address"] for ip in read_addresses_noted(noted, FURTHER).ips] == ["10.0.0.7/8"]
    named = {"k8s.ovn.org/pod-networks": json.dumps({"blue/podnet": SAID, "blue/podnet/net2": {"ip_address": "10.0.0.8/8"}})}
    assert [ip["address"] for ip in read_addresses_noted(named, FURTHER).ips] == ["10.0.0.8/8"]
    lacking = missing({"k8s.ovn.org/pod-networks": "{}"}, FURTHER)
    assert lacking == "k8s.ovn.org/pod-networks with 'ip_address' of network podnet"
    with pytest.raises(InvalidConfig, match="has 7 as 'blue/podnet'"):
        missing({"k8s.ovn.org/pod-networks": '{"blue/podnet": 7}'}, FURTHER)


@pytest.mark.parametrize(
    "text",
    [
        str(SAID),
        "{u'ip_address': u'192.168.2.3/24', u'gateway_ip': u'192.168.2.1', u'mac_address': u'0a:00:00:00:00:01'}",
        "  {'mac_address':'0a:00:00:00:00:01','ip_address':\"192.168.2.3/24\",'gateway_ip':'192.168.2.1'}  ",
    ],
)
def test_the_former_form(text: str) -> None:
    """A dict as Python 2 or 3 writes it, which OVN's tools did at first."""
    assert [ip["address"] for ip in read_addresses_noted({"ovn": text}, FIRST).ips] == ["192.168.2.3/24"]
    assert read_noted({"ovn": text}, FIRST).mac == "0a:00:00:00:00:01"


@pytest.mark.parametrize(
    "text",
    [
        "{'ip_address': __import__('os').getpid()}",
        "{'ip_address': '192.168.2.3/24', 'ip_address': '192.168.2.4/24'}",
        "{'ip_address': '192.168.2.3/24'",
        "{'ip_address': '192.168.2.3/24'} x",
        "{'ip_address': '192.168.2.3\\x2f24'}",
        "{'ip_address': ['192.168.2.3/24']}",
        "['ip_address']",
        '{"ip_address": 7}',
        '{"ip_address": [7]}',
        json.dumps({"ip_address": ["192.168.2.3/24"] * 9}),
        json.dumps(SAID | {"ip_address": "192.168.2.3"}),
        json.dumps(SAID | {"mac_address": "01:00:00:00:00:01"}),
        json.dumps(SAID | {"mac_address": {"a": 1}}),
        "{" + "'a':'b'," * 4000 + "}",
    ],
)
def test_what_the_annotation_cannot_be(text: str) -> None:
    """It is refused by its name, whatever program wrote it, and nothing of it is run."""
    with pytest.raises(InvalidConfig, match="annotation 'ovn'"):
        _read_all({"ovn": text})


@given(st.text("{}'\"u:, abc", max_size=60))
def test_any_text_like_the_former_form(text: str) -> None:
    """It is read, or refused as what is no annotation of OVN's."""
    with suppress(InvalidConfig):
        assert missing({"ovn": text}, FIRST) in ("", "ovn with 'ip_address'")


def _read_all(annotations: dict[str, str]) -> None:
    read_noted(annotations, FIRST)
    read_addresses_noted(annotations, FIRST)
