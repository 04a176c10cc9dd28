"""A claim's parameters as the keys of a network."""

from __future__ import annotations

from typing import Any

import pytest

from userspace_cni.base.errors import InvalidConfig, UnsupportedField
from userspace_cni.cni import keys
from userspace_cni.dra.claim_objects import Parameters
from userspace_cni.dra.claim_parameters import API_VERSION, KIND, TAKEN, network_of

HEADER = {"apiVersion": API_VERSION, "kind": KIND}


def parameters(source: str, **said: Any) -> Parameters:
    return Parameters(source, {**HEADER, **said})


def test_no_parameters() -> None:
    """A claim that says nothing is a port on the device's bridge."""
    assert network_of([], "br0") == {"host": {"bridge": {"bridgeName": "br0"}}}


def test_a_claim_adds_to_its_class() -> None:
    """Keys of both are together, whatever their spelling; the same value twice is no contradiction."""
    of_class = parameters("FromClass", host={"mtu": 9000, "bridge": {"vlanId": 7}})
    of_claim = parameters("FromClaim", HOST={"MAC": "02:00:00:00:00:01", "Mtu": 9000}, bandwidth={"ingressRate": 1000})
    assert network_of([of_class, of_claim], "br0") == {
        "host": {"mtu": 9000, "mac": "02:00:00:00:00:01", "bridge": {"vlanId": 7, "bridgeName": "br0"}},
        "bandwidth": {"ingressRate": 1000},
    }


def test_a_claim_cannot_change_its_class() -> None:
    """What an administrator's class says stands, also against another spelling."""
    of_class = parameters("FromClass", host={"bridge": {"vlanId": 7}})
    for said in ({"host": {"bridge": {"vlanId": 8}}}, {"Host": {"BRIDGE": {"VLANID": 8}}}, {"host": {"bridge": "x"}}):
        with pytest.raises(InvalidConfig, match="differs from what the claim's class says"):
            network_of([of_class, parameters("FromClaim", **said)], "br0")


@pytest.mark.parametrize(("source", "whose"), [("FromClass", "class"), ("FromClaim", "claim")])
def test_one_source_that_contradicts_itself(source: str, whose: str) -> None:
    """Whose parameters differ is told right: a claim's own are not its class's."""
    with pytest.raises(InvalidConfig, match=f"differs from what other parameters of the {whose} say: 1500"):
        network_of([parameters(source, host={"mtu": 1500}), parameters(source, host={"mtu": 9000})], "br0")


@pytest.mark.parametrize(
    ("of_class", "of_claim"),
    [
        ({"host": {"bridge": {"vlanId": 7}}}, {"host": {"bridge": {"vlanMode": "native-untagged"}}}),
        ({"host": {"bridge": {"vlanId": 7}}}, {"HOST": {"Bridge": {"TRUNKS": [8], "vlanmode": "native-tagged"}}}),
        ({"host": {"bridge": {"trunks": [7]}}}, {"host": {"bridge": {"vlanId": 8}}}),
        ({"bandwidth": {"egressRate": 1000}}, {"bandwidth": {"egressBurst": 10**15}}),
        ({"bandwidth": {"ingressRate": 1000}}, {"bandwidth": {"ingressBurst": 10**15}}),
    ],
)
def test_a_key_beside_the_class(of_class: dict[str, Any], of_claim: dict[str, Any]) -> None:
    """VLANs and limits of a class are whole: no other key of the claim makes other VLANs of them, or no limit."""
    first = parameters("FromClass", **of_class)
    with pytest.raises(InvalidConfig, match="which its class says"):
        network_of([first, parameters("FromClaim", **of_claim)], "br0")
    again = [first, parameters("FromClass", **of_claim), parameters("FromClaim", **of_class)]
    assert network_of(again, "br0") == network_of(again[:2], "br0")
    network_of([parameters("FromClaim", **of_class), parameters("FromClaim", **of_claim)], "br0")


def test_unknown_keys() -> None:
    """A key that no network has is not passed over: what it was to say would be missing."""
    with pytest.raises(UnsupportedField, match="'limits' cannot be in the parameters of a claim"):
        network_of([parameters("FromClaim", limits={"egressRate": 1})], "br0")


def test_the_bridge_is_the_devices() -> None:
    """The bridge is chosen by the device; saying it again does no harm, saying another one is refused."""
    same = network_of([parameters("FromClaim", host={"bridge": {"bridgeName": "br0"}})], "br0")
    assert same["host"]["bridge"]["bridgeName"] == "br0"
    with pytest.raises(InvalidConfig, match=r"'br1' .*bridge 'br0'"):
        network_of([parameters("FromClaim", host={"bridge": {"bridgeName": "br1"}})], "br0")


@pytest.mark.parametrize("key", sorted({*keys.TOP, *keys.STANDARD} - set(TAKEN)))
def test_keys_of_networks_alone(key: str) -> None:
    """Every other key of a network is refused by name, in any case: none of them is a claim's."""
    for spelled in (key, key.upper()):
        with pytest.raises(UnsupportedField, match="cannot be in the parameters of a claim"):
            network_of([parameters("FromClaim", **{spelled: "x"})], "br0")


def test_another_version() -> None:
    """Parameters of a form that this version does not know are refused, not passed over."""
    with pytest.raises(UnsupportedField, match="v2"):
        network_of([Parameters("FromClass", {**HEADER, "apiVersion": "userspace-cni.io/v2"})], "br0")
    with pytest.raises(UnsupportedField, match="kind None"):
        network_of([Parameters("FromClaim", {"apiVersion": API_VERSION})], "br0")
