"""Networks of the type `ovn_cni`, of ovn-kubernetes' first tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from userspace_cni.base.errors import UnsupportedVersion
from userspace_cni.cni.former_network import first_form
from userspace_cni.cni.request import read_network

FILE = {"name": "net", "type": "ovn_cni", "bridge": "br-int", "isGateway": "true", "ipMasq": "false", "ipam": {"type": "none"}}


def read(verb: Any = "ADD", **more: Any) -> Any:
    return read_network(json.dumps({**FILE, **more}).encode(), verb)


def test_it_is_a_network_of_ours() -> None:
    """A veth as a logical port with noted addresses; what had no effect then has none, and other keys stay."""
    found = read(args={"cni": {}}, mtu=1300)
    assert (found.name, found.version, found.ipam) == ("net", "0.1.0", "")
    assert found.raw == {
        "name": "net",
        "type": "ovn_cni",
        "host": {"iftype": "veth", "mtu": 1300, "bridge": {"bridgeName": "br-int"}},
        "ovn": {},
        "addresses": "annotations",
        "args": {"cni": {}},
    }
    assert read().raw["host"]["mtu"] == 1400


@pytest.mark.parametrize(("version", "read_as"), [("", "0.1.0"), ("0.2.0", "0.2.0"), ("1.0.0", "1.0.0")])
def test_its_versions(version: str, read_as: str) -> None:
    """Those before 0.3.0, which no other network can have, and ours; verbs that came later need a later one."""
    assert read(cniVersion=version).version == read_as
    with pytest.raises(UnsupportedVersion, match="incompatible"):
        read(cniVersion="0.0.1")
    if version != "1.0.0":
        with pytest.raises(UnsupportedVersion, match=r"CHECK needs cniVersion 0\.4\.0"):
            read("CHECK", cniVersion=version)
        with pytest.raises(UnsupportedVersion):
            read_network(json.dumps({**FILE, "type": "userspace", "cniVersion": version}).encode(), "ADD")


def test_the_first_form_of_a_result() -> None:
    """One address of each family, with its gateway and the routes of its family."""
    ips = [{"address": "fd00::3/64"}, {"address": "10.0.0.3/24", "gateway": "10.0.0.1"}, {"address": "10.0.0.4/24"}]
    routes = [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 9}, {"dst": "::/0"}]
    assert first_form({"cniVersion": "0.2.0", "ips": ips, "routes": routes}) == {
        "cniVersion": "0.2.0",
        "dns": {},
        "ip4": {"ip": "10.0.0.3/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]},
        "ip6": {"ip": "fd00::3/64", "routes": [{"dst": "::/0"}]},
    }
