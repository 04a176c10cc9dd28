"""kube-ovn's annotations of a node: what gateway they make, and what of them is refused."""

from __future__ import annotations

import pytest

from userspace_cni.base.errors import InvalidConfig
from userspace_cni.base.gateways import Gateway
from userspace_cni.base.limits import Limits, Rate
from userspace_cni.base.settings import Settings
from userspace_cni.network.node_annotations import gateway_of, read_desired
from userspace_cni.network.spec_list import ANNOTATIONS, GATEWAY, Desired

OVN0 = {
    "ovn.kubernetes.io/ip_address": "100.64.0.2",
    "ovn.kubernetes.io/cidr": "100.64.0.0/16",
    "ovn.kubernetes.io/mac_address": "00:00:00:7A:0B:01",
    "ovn.kubernetes.io/gateway": "100.64.0.1",
    "ovn.kubernetes.io/port_name": "node-worker-1",
    "ovn.kubernetes.io/chassis": "not read",
}
ASKED = Settings(kubeovn_annotations=True, gateway_bridge="br-int")


def test_a_gateway() -> None:
    """Port, address with the subnet's prefix length, MAC and router are the annotations', the bridge is the setting's."""
    assert gateway_of(OVN0, "br-int") == Gateway(
        port="node-worker-1",
        bridge="br-int",
        addresses=("100.64.0.2/16",),
        mac="00:00:00:7a:0b:01",
        next_hops=("100.64.0.1",),
        sole=True,
    )


def test_both_families() -> None:
    """Addresses and subnets of both families stand in one annotation, in one order."""
    both = {
        **OVN0,
        "ovn.kubernetes.io/ip_address": "100.64.0.2, fd00:100:64::2",
        "ovn.kubernetes.io/cidr": "100.64.0.0/16,fd00:100:64::/112",
        "ovn.kubernetes.io/gateway": "100.64.0.1,fd00:100:64::1",
    }
    found = gateway_of(both, "br-int")
    assert found
    assert found.addresses == ("100.64.0.2/16", "fd00:100:64::2/112")
    assert found.next_hops == ("100.64.0.1", "fd00:100:64::1")


@pytest.mark.parametrize("routers", ["100.64.0.1,100.64.0.3", "100.64.0.1,fd00::1", "x", "100.64.0.1/16"])
def test_routers_that_cannot_be(routers: str) -> None:
    """Each router is one that is asked, of its own family; what cannot be one is refused by the annotation's name."""
    said = {**OVN0, "ovn.kubernetes.io/gateway": routers}
    with pytest.raises(InvalidConfig, match=r"annotation 'ovn\.kubernetes\.io/gateway' of the node"):
        gateway_of(said, "br-int")


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ({"ingress_rate": "100"}, Limits(to_pod=Rate(100_000_000, 10_000_000))),
        ({"egress_rate": " 3 ", "egress_burst": "2"}, Limits(from_pod=Rate(3_000_000, 2_000_000))),
        ({"ingress_rate": "100", "egress_rate": "0"}, Limits(to_pod=Rate(100_000_000, 10_000_000))),
        ({"ingress_rate": "", "latency": "5"}, Limits()),
    ],
    ids=str,
)
def test_rates(said: dict[str, str], limits: Limits) -> None:
    """They are in Mbit/s and Mbit. As with kube-ovn's daemon `ingress_rate` is the port's QoS, `egress_rate` its policing."""
    found = gateway_of({**OVN0, **{f"ovn.kubernetes.io/{key}": value for key, value in said.items()}}, "br-int")
    assert found
    assert found.limits == limits


@pytest.mark.parametrize("annotations", [{}, {"ovn.kubernetes.io/chassis": "x"}, {"ovn.kubernetes.io/ip_address": ""}], ids=str)
def test_none(annotations: dict[str, str]) -> None:
    """A node of which kube-ovn's controller says nothing has no such gateway."""
    assert gateway_of(annotations, "br-int") is None


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("ip_address", "100.64.0", "'ovn.kubernetes.io/ip_address' of the node is '100.64.0'"),
        ("ip_address", "100.65.0.2", "which is not in annotation 'ovn.kubernetes.io/cidr'"),
        ("ip_address", "100.64.0.0", "the network itself"),
        ("ip_address", "100.64.0.2,fd00::2", "each family has one address and one subnet"),
        ("cidr", "100.64.0.1/16", "which is not in annotation"),
        ("cidr", "", "each family"),
        ("mac_address", "01:00:00:00:00:01", "'ovn.kubernetes.io/mac_address' of the node is '01:"),
        ("gateway", "nowhere", "'ovn.kubernetes.io/gateway' of the node is 'nowhere'"),
        ("gateway", "100.64.0.2", "an address of the gateway itself"),
        ("port_name", "node-worker-with-a-long-name", "'ovn.kubernetes.io/port_name' of the node"),
        ("port_name", "../x", "'ovn.kubernetes.io/port_name' of the node"),
        ("ingress_rate", "100M", "annotation 'ovn.kubernetes.io/ingress_rate' of the node is '100M'"),
        ("egress_rate", "-1", "annotation 'ovn.kubernetes.io/egress_rate' of the node is '-1'"),
        ("ingress_burst", "5", "annotation 'ovn.kubernetes.io/ingress_burst' of the node is 5000000 without a rate"),
    ],
)
def test_what_is_refused(key: str, value: str, why: str) -> None:
    """The error names the annotation and its value; what was there before stays, for it is not known what is desired."""
    annotations = {**OVN0, f"ovn.kubernetes.io/{key}": value}
    with pytest.raises(InvalidConfig) as refused:
        gateway_of(annotations, "br-int")
    assert why in str(refused.value)
    found = read_desired(annotations, ASKED)
    assert (found.complete, found.gateways) == (False, ())
    assert why in found.refused[GATEWAY, annotations["ovn.kubernetes.io/port_name"]]


def test_a_gateway_without_a_name_is_told_of() -> None:
    """What is refused has a name in any case."""
    assert list(read_desired({"ovn.kubernetes.io/cidr": "10.0.0.0/8"}, ASKED).refused) == [(GATEWAY, "annotations")]


def test_on_the_bridge_of_ovn() -> None:
    """OVN knows the port by its name where the bridge is OVN's, and elsewhere not at all."""
    elsewhere = Settings(kubeovn_annotations=True, gateway_bridge="br-ex")
    assert [read_desired(OVN0, each).gateways[0].logical_port for each in (ASKED, elsewhere)] == ["node-worker-1", ""]


def test_as_a_source() -> None:
    """They ask for something where both settings say so; what cannot be read is no complete list."""
    assert read_desired(OVN0, Settings(kubeovn_annotations=True)) == Desired(ANNOTATIONS, complete=True)
    assert read_desired(OVN0, Settings(gateway_bridge="br-int")) == Desired(ANNOTATIONS, complete=True)
    assert read_desired(None, ASKED) == Desired(ANNOTATIONS, complete=False)
    assert read_desired({}, ASKED) == Desired(ANNOTATIONS, complete=True)
    assert [each.port for each in read_desired(OVN0, ASKED).gateways] == ["node-worker-1"]
