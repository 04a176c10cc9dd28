"""Specs of several sources combined: which of two with one name, or for one NIC, is used, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping

from userspace_cni.attachment.records import Record, node_container
from userspace_cni.attachment.steps import UplinkInterface, UplinkPort
from userspace_cni.base.gateways import Gateway
from userspace_cni.base.provider_networks import ProviderNetwork
from userspace_cni.network.spec_list import (
    ANNOTATIONS,
    GATEWAY,
    OBJECTS,
    PROVIDER_NETWORK,
    SETTINGS,
    Desired,
    SpecList,
    merge_sources,
)
from userspace_cni.network.spec_sources import holders


def met(found: SpecList) -> set[tuple[str, str]]:
    """Source and name of what goes together."""
    networks = {(source, network.name) for source, network in found.provider_networks}
    return networks | {(source, gateway.port) for source, gateway in found.gateways}


def refused(found: SpecList) -> Mapping[tuple[str, str], str]:
    return {key: refusal.why for key, refusal in found.refused.items()}


def test_the_settings_beat_objects() -> None:
    """Of two specs with one name the settings' is used, even if an object's network has the NIC now."""
    settings = Desired(SETTINGS, complete=True, provider_networks=(ProviderNetwork("net1", "eth1"),))
    objects = Desired(
        OBJECTS, complete=True, provider_networks=(ProviderNetwork("net1", "eth0"), ProviderNetwork("net2", "eth2"))
    )
    found = merge_sources((settings, objects), {"eth0": "net1"})
    assert met(found) == {(SETTINGS, "net1"), (OBJECTS, "net2")}
    assert found.refused == {}


def test_a_nic_stays_with_its_holder() -> None:
    """Of two networks that want one NIC the holder keeps it; without a holder the more important one gets it; a member of a
    bond counts."""
    settings = Desired(SETTINGS, complete=True, provider_networks=(ProviderNetwork("new", "eth0"),))
    objects = Desired(OBJECTS, complete=True, provider_networks=(ProviderNetwork("old", "eth0"),))
    found = merge_sources((settings, objects), {"eth0": "old"})
    assert met(found) == {(OBJECTS, "old")}
    assert "desired for provider network old" in refused(found)[PROVIDER_NETWORK, "new"]
    assert found.refused[PROVIDER_NETWORK, "new"].source == SETTINGS
    assert met(merge_sources((settings, objects), {})) == {(SETTINGS, "new")}


def test_a_bridge_has_one_network() -> None:
    """One that a network names is not that of another one, by its name."""
    settings = Desired(SETTINGS, complete=True, provider_networks=(ProviderNetwork("a", "eth0", bridge="br-b"),))
    objects = Desired(OBJECTS, complete=True, provider_networks=(ProviderNetwork("b", "eth1"),))
    found = merge_sources((settings, objects), {})
    assert met(found) == {(SETTINGS, "a")}
    assert "bridge br-b is desired for provider network a" in refused(found)[PROVIDER_NETWORK, "b"]


def test_holders_are_read_from_records() -> None:
    """By the interfaces of recorded uplinks: kernel NICs by name, devices of DPDK by what specs call them."""
    nic, device = UplinkInterface("eth0", "system"), UplinkInterface("dpdk0", "dpdk", devargs="0000:3b:00.0,x=1")
    steps = (UplinkPort("br-net1", "bond", (nic, device)),)
    found = holders([Record("ready", SETTINGS, node_container(PROVIDER_NETWORK), "net1", steps=steps)])
    assert {found["eth0"], found["pci:0000:3b:00.0"]} == {"net1"}
    assert holders([Record("ready", SETTINGS, node_container(GATEWAY), "gw", steps=steps)]) == {}


def test_a_gateway_where_it_cannot_be() -> None:
    """On a bridge with an uplink, unless it is the sole one; with a part of another's subnet; with the name of a bridge."""
    networks = (ProviderNetwork("net1", "eth0"),)
    gateways = (
        Gateway("gw1", "br-net1", ("10.1.0.1/24",)),
        Gateway("gw2", "br-net1", ("10.2.0.1/24",), sole=True),
        Gateway("gw3", "br0", ("10.2.0.129/25",)),
        Gateway("br-net1", "br0", ("10.3.0.1/24",)),
    )
    found = merge_sources((Desired(OBJECTS, complete=True, provider_networks=networks, gateways=gateways),), {})
    assert met(found) == {(OBJECTS, "net1"), (OBJECTS, "gw2")}
    assert {key[1]: why.split()[0] for key, why in refused(found).items()} == {
        "gw1": "bridge",
        "gw3": "its",
        "br-net1": "br-net1",
    }


def test_what_a_source_refuses_itself() -> None:
    """It blocks what less important sources say of that name, and counts for nothing where a more important one has said it."""
    key = (GATEWAY, "gw1")
    settings = Desired(SETTINGS, complete=True, gateways=(Gateway("gw1", "br0", ("10.1.0.1/24",)),))
    objects = Desired(OBJECTS, complete=True, refused={key: "no such field", ("subnet", "pods"): "it overlaps"})
    annotations = Desired(ANNOTATIONS, complete=True, gateways=(Gateway("gw1", "br0", ("10.1.0.1/24",)),))
    assert refused(merge_sources((settings, objects), {})) == {("subnet", "pods"): "it overlaps"}
    found = merge_sources((objects, annotations), {})
    assert (met(found), refused(found)[key]) == (set(), "no such field")
