"""A network of ovs-cni as one of this plugin: each of its keys, and the example of the page."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.pages import ROOT, blocks
from userspace_cni.cni.ovs_cni_network import convert_network
from userspace_cni.diagnosis.networks import JudgedNetworks, Place, judge_text
from userspace_cni.node.remarks import remarks_on

PAGE = ROOT / "docs" / "from-ovs-cni.md"
PLAIN = {"cniVersion": "1.0.0", "name": "net", "type": "ovs", "bridge": "br1"}


def block(**keys: Any) -> dict[str, Any]:
    """The object `host` of a network of ovs-cni with these keys."""
    host = convert_network(PLAIN | keys).configuration["host"]
    assert (host.pop("engine"), host.pop("iftype"), host["bridge"].pop("bridgeName")) == ("ovs", "veth", "br1")
    return dict(host)


def losses(**keys: Any) -> list[str]:
    return [key for key, _ in convert_network(PLAIN | keys).losses]


@pytest.mark.parametrize(
    ("keys", "host"),
    [
        ({}, {"bridge": {}}),
        ({"vlan": 100}, {"bridge": {"vlanId": 100}}),
        ({"vlan": 0}, {"bridge": {"vlanMode": "access"}}),
        ({"VLAN": 7, "Mtu": 9000}, {"bridge": {"vlanId": 7}, "mtu": 9000}),
        (
            {"trunk": [{"id": 42}, {"minID": 1000, "maxID": 1010}]},
            {"bridge": {"trunks": [{"id": 42}, {"minID": 1000, "maxID": 1010}]}},
        ),
        ({"trunk": [], "vlan": None, "mtu": 0}, {"bridge": {}}),
    ],
)
def test_keys_that_move(keys: dict[str, Any], host: dict[str, Any]) -> None:
    """Bridge, VLANs and MTU come below `host`; a zero that Go takes for a missing key is left out; ADD has nothing to say."""
    assert (block(**keys), losses(**keys)) == (host, [])
    assert remarks_on(convert_network(PLAIN | keys).configuration) == []


def test_keys_without_an_equal() -> None:
    """Each is named with the spelling of its author, and is not in the result; one that says nothing is not named."""
    keys = {"socket_file": "unix:/run/db.sock", "OFport_request": 7, "interface_type": "system", "deviceID": "0000:01:00.1"}
    assert losses(**keys, configuration_path="", link_state_check_retries=5) == [*keys, "link_state_check_retries"]
    assert block(**keys) == {"bridge": {}}
    assert losses(trunk=[{"id": 1}], vlan=5) == ["vlan"]
    assert block(trunk=[{"id": 1}], vlan=5) == {"bridge": {"trunks": [{"id": 1}]}}


def test_a_bridge_that_follows_from_something_else() -> None:
    """A network without a bridge is converted without one, and says so: ours would be on br0."""
    converted = convert_network({"cniVersion": "1.0.0", "name": "net", "type": "ovs"})
    assert converted.configuration["host"]["bridge"] == {}
    assert [key for key, _ in converted.losses] == ["bridge"]


def test_keys_of_others_stay() -> None:
    """ipam, args and what the specification names are taken over unchanged."""
    others = {
        "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"},
        "args": {"cni": {"OvnPort": "x"}},
        "capabilities": {"mac": True},
    }
    assert others.items() <= convert_network(PLAIN | others).configuration.items()


def test_example_of_the_page() -> None:
    """The second network of the page is what the first one becomes, as `lint` shows it."""
    networks = [yaml.safe_load(each.text) for each in blocks(PAGE) if "NetworkAttachmentDefinition" in each.text]
    before, after = (json.loads(each["spec"]["config"]) for each in networks[:2])
    assert convert_network(before).configuration == after
    assert remarks_on(after) == []
    judged = JudgedNetworks()
    judge_text(judged, Place("net.yaml"), json.dumps(before))
    [(_, note)] = judged.found
    assert (note.name, note.severity) == ("ovs-cni-network", "note")
    assert json.dumps(after) in note.message


@given(
    st.dictionaries(
        st.sampled_from(["bridge", "vlan", "trunk", "mtu", "ipam", "deviceID", "host", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=4,
        ),
    )
)
def test_any_values(keys: dict[str, Any]) -> None:
    """Whatever the keys say, lint gives notes and no error, and never fails."""
    judged = JudgedNetworks()
    judge_text(judged, Place("net.yaml"), json.dumps({"cniVersion": "1.0.0", "name": "net", **keys, "type": "ovs"}))
    assert judged.networks == 0
    assert {finding.severity for _, finding in judged.found} == {"note"}
