"""Key `ovn`, the sources of a logical port's addresses, and `OvnPort` of ovs-cni and the forks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.node.configurations import read as options
from userspace_cni.base.errors import InvalidConfig, Undecodable, UnsupportedField, UserspaceError
from userspace_cni.cni.ovn_keys import OvnOptions

STATIC = {"type": "static", "addresses": [{"address": "192.0.2.7/24"}]}


def test_a_network_without_a_logical_port() -> None:
    """Its port is on its own bridge, and has addresses from nowhere."""
    read = options()
    assert (read.ovn, read.bridge, read.addresses_noted) == (None, "br0", False)


def test_what_holds_where_nothing_is_said() -> None:
    """The node's switch, port security, the pod's own chassis, a wait for OVN; addresses in the annotations, on OVN's bridge."""
    read = options(ovn={})
    assert (read.ovn, read.bridge, read.addresses_noted) == (OvnOptions(), "", True)


def test_every_key() -> None:
    """Keys match in any case, as all others."""
    read = options(ovn={"Switch": "tenants", "WAIT": "port", "portsecurity": False, "requestedChassis": False})
    assert read.ovn == OvnOptions("tenants", waits=False, port_security=False, requested_chassis=False)


@pytest.mark.parametrize(
    ("keys", "noted"),
    [
        ({"addresses": "annotations"}, True),
        ({"addresses": "unknown"}, False),
        ({"ipam": STATIC}, False),
        ({"addresses": "", "ipam": STATIC}, False),
        ({"addresses": None}, True),
    ],
)
def test_where_the_addresses_are(keys: dict[str, Any], noted: bool) -> None:
    """In the annotations, with the IPAM plugin, or with the pod alone."""
    assert options(ovn={}, **keys).addresses_noted == noted


@pytest.mark.parametrize(
    ("keys", "error", "named"),
    [
        ({"ovn": {}, "host": {"bridge": {"vlanId": 7}}}, UnsupportedField, "key 'host.bridge.vlanId' is 7 beside key 'ovn'"),
        ({"ovn": {}, "host": {"bridge": {"trunks": [5]}}}, UnsupportedField, "key 'host.bridge.trunks' is [5] beside key 'ovn'"),
        ({"ovn": {}, "host": {"bridge": {"vlanMode": "trunk"}}}, UnsupportedField, "key 'host.bridge.vlanMode' is 'trunk'"),
        ({"ovn": {}, "mirrorOutput": "ids"}, UnsupportedField, "key 'mirrorOutput' is 'ids' beside key 'ovn'"),
        ({"ovn": {}, "subnet": "s", "ipam": {"type": "host-local"}}, UnsupportedField, "key 'subnet' is 's' beside key 'ovn'"),
        ({"ovn": {"wait": "ready"}}, InvalidConfig, "key 'ovn.wait' is 'ready'"),
        ({"ovn": {"limits": "me"}}, InvalidConfig, "key 'ovn.limits' is 'me'"),
        ({"ovn": {"switch": "a b"}}, InvalidConfig, "key 'ovn.switch' is 'a b'"),
        ({"ovn": {"switch": "x" * 254}}, InvalidConfig, "key 'ovn.switch' is 'xxx"),
        ({"ovn": {"switch": 7}}, Undecodable, "key 'ovn.switch' is a whole number"),
        ({"ovn": {"portSecurity": "no"}}, Undecodable, "key 'ovn.portSecurity' is a string"),
        ({"ovn": {"requestedChassis": 1}}, Undecodable, "key 'ovn.requestedChassis' is a whole number"),
        ({"ovn": "node"}, Undecodable, "key 'ovn' is a string"),
        ({"ovn": {"portSecurty": True}}, InvalidConfig, "key 'ovn.portSecurty' is unknown: 'ovn.portSecurity'"),
        ({"ovn": {}, "addresses": "annotation"}, InvalidConfig, "key 'addresses' is 'annotation'"),
        ({"ovn": {}, "addresses": "unknown", "ipam": STATIC}, InvalidConfig, "key 'addresses' is 'unknown' beside 'ipam.type'"),
        ({"addresses": "unknown"}, InvalidConfig, "key 'addresses' is 'unknown', and the network has no 'ovn'"),
    ],
)
def test_what_a_logical_port_cannot_have(keys: dict[str, Any], error: type[UserspaceError], named: str) -> None:
    """It is refused by key and value: OVN's switch decides about VLANs, and a misspelt key would leave a port unprotected."""
    with pytest.raises(error) as refused:
        options(**keys)
    assert named in refused.value.message
    assert type(refused.value).default_code == error.default_code


@pytest.mark.parametrize("zero", [{"vlanId": 0}, {"vlanId": None, "trunks": []}, {"vlanMode": ""}])
def test_no_vlan_is_none(zero: dict[str, Any]) -> None:
    """What says that there is no VLAN is no contradiction."""
    assert options(ovn={}, host={"bridge": zero}).ovn == OvnOptions()


@pytest.mark.parametrize(
    ("cni_args", "args"),
    [
        ("", {"cni": {"OvnPort": "0f9c1c2a"}}),
        ("", {"cni": {"ovnPort": "0f9c1c2a", "mac": "02:00:00:00:00:01"}}),
        ("IgnoreUnknown=1;OvnPort=0f9c1c2a", {}),
    ],
)
def test_a_port_that_the_pod_names(cni_args: str, args: dict[str, Any]) -> None:
    """Its interface is that logical port, in the words of ovs-cni and of a fork; its switch is not known, its addresses are not
    awaited. With key `ovn` the network's own words hold for the rest."""
    read = options(cni_args=cni_args, args=args)
    assert (read.ovn, read.bridge, read.addresses_noted) == (OvnOptions(switch="", port="0f9c1c2a", source=""), "", False)
    both = options(cni_args=cni_args, args=args, ovn={"wait": "port"})
    assert (both.ovn, both.addresses_noted) == (OvnOptions(port="0f9c1c2a", waits=False), True)


@pytest.mark.parametrize("value", [7, ["p"], "p q\n", "\u00e9", "x" * 513])
def test_a_port_that_cannot_have_that_name(value: object) -> None:
    """What is no name of a logical port is refused with the key."""
    with pytest.raises(InvalidConfig, match=r"key 'args\.cni\.ovnport' is"):
        options(args={"cni": {"ovnport": value}})


@pytest.mark.parametrize("args", [{}, {"cni": {"OvnPort": ""}}, {"cni": {"OvnPort": None}}, {"cni": ["OvnPort"]}, "OvnPort"])
def test_no_logical_port_asked_for(args: Any) -> None:
    """An empty name, as Go's zero value, and args that are no object ask for nothing."""
    assert options(cni_args="OvnPort=", args=args).bridge == "br0"


def test_a_logical_port_needs_no_vlan_with_a_named_port() -> None:
    """The refusal names the pod's part where the network has no key `ovn`."""
    with pytest.raises(UnsupportedField, match="beside the logical port that the pod names"):
        options(args={"cni": {"OvnPort": "p"}}, host={"bridge": {"vlanId": 7}})
