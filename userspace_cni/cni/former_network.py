"""Networks of the type `ovn_cni`, of ovn-kubernetes' first tools, as networks of ours. Pure.

Such a network is `10-net.conf` of then: `{"name": "net", "type": "ovn_cni", "bridge": "br-int", "isGateway": "true", "ipMasq":
"false", "ipam": {…}}`. It has no cniVersion, and its ipam was never asked. Each interface is a kernel link, and a logical port of
the node's switch with the addresses of the pod's annotation `ovn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TYPE: Final = "ovn_cni"
VERSIONS: Final = ("0.1.0", "0.2.0")
"""Of the specification, beside those of every network: the first is that of a configuration that names none."""
MTU: Final = 1400
"""That of then, which leaves room for OVN's tunnels where a NIC has 1500."""
_OF_THEN: Final = frozenset({"bridge", "isGateway", "ipMasq", "ipam", "mtu"})
"""Keys that are read here, or had no effect then."""


def is_former(raw: Mapping[str, Any]) -> bool:
    return raw.get("type") == TYPE


def translate(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as one of ours; keys that it shares with ours stay, and hold."""
    rest = {key: value for key, value in raw.items() if key not in _OF_THEN}
    host = {"iftype": "veth", "mtu": raw.get("mtu", MTU), "bridge": {"bridgeName": raw.get("bridge", "")}}
    return {"host": host, "ovn": {}, "addresses": "annotations", **rest}


def first_form(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result of ours as a caller of VERSIONS reads it: one address of each family, with the routes of that family."""
    found: dict[str, Any] = {"cniVersion": result["cniVersion"], "dns": result.get("dns") or {}}
    for key, is_of in (("ip6", True), ("ip4", False)):
        first = next((each for each in result.get("ips", ()) if (":" in each["address"]) is is_of), None)
        if first is None:
            continue
        routes = [
            {name: each[name] for name in ("dst", "gw") if name in each}
            for each in result.get("routes", ())
            if (":" in each["dst"]) is is_of
        ]
        found[key] = {
            "ip": first["address"],
            **({"gateway": first["gateway"]} if first.get("gateway") else {}),
            **({"routes": routes} if routes else {}),
        }
    return found
